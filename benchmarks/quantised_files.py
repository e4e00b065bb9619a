"""What 8-bit files, and linear layers with 2-, 4- and 8-bit weights, take in bytes and CPU time beside float32.

One thread, all files in turns; the networks are not trained, so that costs are real and agreement says little.
"""

import argparse
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from measuring import in_turns, ratio, report
from torch import nn

import nestling as nl
from nestling.delivery import to_int8, to_packed
from nestling.runtime import OnnxSession, OpenVINOSession, Session

SIZE, PAIRS = 2048, (1, 3, 4)
KINDS: tuple[Literal["bit"]] = ("bit",)


def compared(files: Mapping[str, Path], arrays: Mapping[str, np.ndarray], rounds: int) -> dict[str, object]:
    """The time of each file over that of the file in float32, in both runtimes."""
    found: dict[str, object] = {}
    runtimes: dict[str, type[OnnxSession] | type[OpenVINOSession]]
    runtimes = {"onnxruntime": OnnxSession, "openvino": OpenVINOSession}
    for runtime, kind in runtimes.items():
        sessions: dict[str, Session] = {name: kind(path, threads=1) for name, path in files.items()}
        calls = {name: (lambda session=session: session.run(arrays)) for name, session in sessions.items()}
        times = in_turns(calls, rounds)
        found[runtime] = {name: ratio(times, name, "float32") for name in files if name != "float32"}
    return found


def convolutions(folder: Path, rounds: int) -> dict[str, object]:
    """VGG11 at half width, whole and in 8 bits."""
    net, example = nl.models.build("vgg11", width=0.5).eval(), torch.randn(2, 3, 32, 32)
    whole = nl.export(net, folder / "vgg11.onnx", example, compare=False).files[0]
    name = OnnxSession(whole).inputs[0]
    batches = [{name: torch.randn(16, 3, 32, 32).numpy()} for _ in range(4)]
    small = to_int8(whole, folder / "vgg11-int8.onnx", batches[:2], batches[2:], least_agreement=0.0)
    files = {"float32": whole, "int8": small.file}
    found: dict[str, object] = {"bytes": small.bytes}
    for size in (1, 32):
        found[f"batch {size}"] = compared(files, {name: torch.randn(size, 3, 32, 32).numpy()}, rounds)
    return found


def linear_layers(folder: Path, rounds: int) -> dict[str, object]:
    """A square linear layer on 1, 3 and 4 pairs of levels, between two small ones."""
    net = nn.Sequential(nn.Linear(16, SIZE), nn.ReLU(), nn.Linear(SIZE, SIZE), nn.ReLU(), nn.Linear(SIZE, 16))
    nested = nl.nest(net, torch.randn(2, 16), kinds=KINDS, weights=None, order="uniform").eval()
    found: dict[str, object] = {}
    for pairs in PAIRS:
        cut = nl.Cut((("2.bits", pairs),))
        whole = nl.export(nested, folder / f"linear-{pairs}.onnx", cut=cut, compare=False).files[0]
        name = OnnxSession(whole).inputs[0]
        held_out = [{name: torch.randn(8, 16).numpy()}]
        small = to_packed(whole, folder / f"packed-{pairs}.onnx", nested.levels_at(cut), held_out)
        key = f"{pairs} pairs"
        sizes = {"bytes": small.bytes, "layers": dict(small.layers)}
        timed = {
            f"batch {size}": compared(
                {"float32": whole, "packed": small.file}, {name: torch.randn(size, 16).numpy()}, rounds
            )
            for size in (1, 32)
        }
        found[key] = sizes | timed
    return found


def main() -> None:
    """Measure, and print one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        figures = {
            "vgg11 at 0.5": convolutions(Path(folder), arguments.rounds),
            f"linear {SIZE} x {SIZE}": linear_layers(Path(folder), arguments.rounds),
        }
    report("bytes and CPU time of quantised files", **figures)


if __name__ == "__main__":
    main()
