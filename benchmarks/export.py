"""What one ONNX file of every width costs beside a smaller file per width: VGG11, onnxruntime and OpenVINO.

Each width is fixed when the file is loaded; a width given at each call, and the full network, are timed too. Then what
the file of a 50 % cut takes of the full network's time, beside its share of multiply-adds, and where the time goes. CPU
time on one thread, the variants taking turns. The networks are not trained: it costs the same.
"""

import argparse
import json
import statistics
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import openvino as ov
import torch
from measuring import in_turns, ratio, report
from torch import nn

import nestling as nl
from nestling.delivery import all_widths_model

WIDTHS = tuple(number / 8 for number in range(1, 9))
BATCHES = {1: 8, 64: 1}
"""Batch sizes, with the calls that make a figure."""


HALVED: dict[str, tuple[str, dict[str, object]]] = {
    "vgg11": ("vgg11", {}),
    "resnet14": ("resnet14", {}),
    "resnet14, four times as wide": ("resnet14", {"width": 4}),
}
"""The networks whose half is timed."""


def nested_vgg() -> nl.Nested:
    """VGG11 in eight blocks, each width with batch-norm statistics of its own."""
    torch.manual_seed(0)
    nested = nl.nest(nl.models.build("vgg11"), torch.zeros(2, 3, 32, 32), weights=None, num_blocks=8, num_always=1)
    for width in WIDTHS:
        nl.recalibrate(nested.eval(), [torch.randn(64, 3, 32, 32)], width)
    return nested


def smaller_file(nested: nl.Nested, width: float) -> bytes:
    """The ONNX file of one width, as torch exports the extracted network."""
    network: nn.Module = nl.extract(nested, width)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = torch.onnx.export(
            network,
            (torch.zeros(2, 3, 32, 32),),
            dynamo=True,
            external_data=False,
            verbose=False,
            input_names=["input"],
            dynamic_shapes=({0: "batch"},),
        )
    assert made is not None
    content: bytes = made.model_proto.SerializeToString()
    return content


def bytes_of(sizes: dict[str, int]) -> dict[str, np.ndarray]:
    """The inputs of which only the sizes count."""
    return {name: np.zeros(size, np.uint8) for name, size in sizes.items()}


def in_onnxruntime(content: bytes, sizes: dict[str, int], fixed: bool, x: np.ndarray) -> Callable[[], np.ndarray]:
    """A call of a file in onnxruntime."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    for name, size in sizes.items() if fixed else ():
        options.add_free_dimension_override_by_name(name, size)
    session = ort.InferenceSession(content, options)
    inputs = {session.get_inputs()[0].name: x, **bytes_of(sizes)}
    return lambda: session.run(None, inputs)[0]


def in_openvino(content: bytes, sizes: dict[str, int], x: np.ndarray) -> Callable[[], np.ndarray]:
    """A call of a file in OpenVINO."""
    core = ov.Core()
    model = core.read_model(content)
    model.reshape({name: [size] for name, size in sizes.items()})
    options = {"INFERENCE_NUM_THREADS": 1, "INFERENCE_PRECISION_HINT": "f32"}
    request = core.compile_model(model, "CPU", options).create_infer_request()
    inputs: dict[Any, Any] = {model.input(0).any_name: x, **bytes_of(sizes)}
    return lambda: request.infer(inputs)[0]


def halves(rounds: int) -> None:
    """The time of a 50 % cut over the full network's, over the ratio of multiply-adds."""
    for name, (model, options) in HALVED.items():
        torch.manual_seed(0)
        net = nl.models.build(model, **options)
        nested = nl.nest(net, torch.zeros(2, 3, 32, 32), weights=None, num_blocks=8, num_always=1).eval()
        macs = nl.cost(nested, 0.5).macs / nl.cost(nested, 1.0).macs
        files = {width: smaller_file(nested, width) for width in (0.5, 1.0)}
        for batch, calls in BATCHES.items():
            x = np.random.default_rng(0).standard_normal((batch, 3, 32, 32), np.float32)
            runs = {f"{width:g}": in_onnxruntime(content, {}, False, x) for width, content in files.items()}
            times = ratio(in_turns(runs, rounds, calls), "0.5", "1")
            over = {key: round(value / macs, 3) for key, value in times.items()}
            question = f"{name} at 0.5 over full, batch {batch}, onnxruntime"
            report(question, macs=round(macs, 3), time=times, time_over_macs=over)
            for width, content in files.items():
                found = time_by_output(content, x, rounds)
                report(f"{name} at {width:g}, batch {batch}: microseconds by operation and the output of one", **found)


def time_by_output(content: bytes, x: np.ndarray, calls: int) -> dict[str, float]:
    """Microseconds of a call by operation and the size of what it gives, in all nodes together: onnxruntime's profile.

    Each is the median over the calls; what the profile itself costs, one or two microseconds per node, is in it.
    """
    with tempfile.TemporaryDirectory() as folder:
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        options.enable_profiling, options.profile_file_prefix = True, str(Path(folder) / "profile")
        session = ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        for _ in range(calls):
            session.run(None, {session.get_inputs()[0].name: x})
        events = json.loads(Path(session.end_profiling()).read_text())
    by_node = dict[tuple[str, str], list[float]]()
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
            sizes = next(iter(event["args"]["output_type_shape"][0].values()))
            key = f"{event['args']['op_name']} {' x '.join(map(str, sizes[1:]))}"
            by_node.setdefault((event["name"], key), []).append(event["dur"])
    found = dict[str, float]()
    for (_, key), times in by_node.items():
        found[key] = found.get(key, 0) + statistics.median(times)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--halves", action="store_true", help="time the 50 %% cuts alone")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    halves(asked.rounds)
    if not asked.halves:
        every_width(asked.rounds)


def every_width(rounds: int) -> None:
    """One file of eight widths beside eight files."""
    nested = nested_vgg()
    model = all_widths_model(nested, WIDTHS)
    record = json.loads(next(entry.value for entry in model.metadata_props if entry.key == "nestling"))
    every: bytes = model.SerializeToString()
    files = {width: smaller_file(nested, width) for width in WIDTHS}
    report(
        "size of one VGG11 file of eight widths",
        times_full=round(len(every) / len(files[1.0]), 3),
        times_eight_files=round(len(every) / sum(map(len, files.values())), 3),
        megabytes=round(len(every) / 1e6, 1),
    )
    for row, width in enumerate(WIDTHS):
        for batch, calls in BATCHES.items():
            x, sizes = (
                np.random.default_rng(0).standard_normal((batch, 3, 32, 32), np.float32),
                record["widths"]["table"][row]["sizes"],
            )
            runs = {
                "smaller file": in_onnxruntime(files[width], {}, False, x),
                "fixed when loaded": in_onnxruntime(every, sizes, True, x),
                "given at each call": in_onnxruntime(every, sizes, False, x),
                "full network": in_onnxruntime(files[1.0], {}, False, x),
                "smaller file, OpenVINO": in_openvino(files[width], {}, x),
                "fixed, OpenVINO": in_openvino(every, sizes, x),
            }
            small, fixed = runs["smaller file"](), runs["fixed when loaded"]()
            times = in_turns(runs, rounds, calls)
            report(
                f"VGG11 at {width:g}, batch {batch}",
                fixed_times_smaller=ratio(times, "fixed when loaded", "smaller file"),
                same_bits=bool(np.array_equal(small, fixed)),
                called_times_smaller=ratio(times, "given at each call", "smaller file"),
                called_times_full=ratio(times, "given at each call", "full network"),
                openvino_fixed_times_smaller=ratio(times, "fixed, OpenVINO", "smaller file, OpenVINO"),
            )


if __name__ == "__main__":
    main()
