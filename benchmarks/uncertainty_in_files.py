"""What uncertainty costs in an exported file, over a plain pass of the same width: VGG11 at a cut, untrained.

Six draws with noise as an input (which is made beforehand; making it is timed by itself) and one pass of moments, in
onnxruntime and OpenVINO, on one thread. With ``--weights ivon`` a layer draws one weight for all positions. "There and
back" has the means and the slopes back through each layer, without any variance: no pass of moments can cost less.
"""

import argparse
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import openvino
import torch
from measuring import in_turns, machine, ratio, report
from torch import Tensor, fx, nn
from torch.nn import functional as F

import nestling as nl
from nestling.delivery.drawn import drawn_graph
from nestling.delivery.formats import Graph
from nestling.delivery.moment_graph import MomentsGraph, moments_graph
from nestling.runtime import noise_for

BATCHES = (1, 32)
Run = Callable[[Mapping[str, np.ndarray]], Any]


def graphs_of(nested: nl.Nested, cut: float) -> dict[str, Graph]:
    """The plain network and both forms of uncertainty."""
    draws, moments = drawn_graph(nested, cut), moments_graph(nested, cut)
    plain = Graph(nl.extract(nested, cut), moments.inputs, ("logits",), {})
    back = Graph(ThereAndBack(moments.module), moments.inputs, ("logits", "slopes"), {})  # type: ignore[arg-type]
    return {"plain": plain, "draws": draws, "moments": moments, "there and back": back}


class ThereAndBack(nn.Module):
    """The means of a pass of moments, and slopes that come back through its layers, with nothing in between."""

    def __init__(self, moments: MomentsGraph) -> None:
        super().__init__()
        self.moments = moments

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The outputs, and the slopes in what the first layer gives."""
        means, buffers = self.moments.means, dict(self.moments.named_buffers())
        values: dict[fx.Node, Any] = {node: buffers[node.name] for node in means.tensors} | {means.input: x}
        for node in means.steps:
            arguments, options = fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
            values[node] = node.target(*arguments, **options)  # type: ignore[operator]
        outputs = slope = values[means.output]
        for node in reversed([*means.layers][1:]):
            sizes = values[node].shape[2:]
            if sizes and slope.ndim == 2:
                slope = slope[..., None, None]
            if slope.shape[2:] != sizes:
                slope = F.interpolate(slope, size=sizes)
            rule, (_, weight, _, *rest) = self.moments.rule_of(node), node.args
            slope = rule.back(slope * values[node], values[weight], rest)  # type: ignore[operator,index]
        return outputs, slope


def write(graph: Graph, path: Path) -> None:
    """Write a graph as ONNX with its open axes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            graph.module,
            tuple(port.example for port in graph.inputs),
            path,
            dynamo=True,
            dynamic_shapes=tuple(dict(port.open_axes) for port in graph.inputs),
            external_data=False,
            verbose=False,
            input_names=[port.name for port in graph.inputs],
        )


def in_onnxruntime(path: Path, shapes: Mapping[str, Sequence[int]]) -> Run:
    """The file on one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda arrays: session.run(None, dict(arrays))


def in_openvino(path: Path, shapes: Mapping[str, Sequence[int]], *, fixed: bool = False) -> Run:
    """The file on one thread, in single precision, with sizes open or ``fixed`` before it is compiled."""
    options = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1, "NUM_STREAMS": 1}
    model = openvino.Core().read_model(path)
    if fixed:
        model.reshape({port.get_any_name(): list(shapes[port.get_any_name()]) for port in model.inputs})
    request = openvino.compile_model(model, "CPU", options).create_infer_request()
    return lambda arrays: request.infer(dict(arrays))


RUNTIMES: dict[str, Callable[[Path, Mapping[str, Sequence[int]]], Run]] = {
    "onnxruntime": in_onnxruntime,
    "openvino": in_openvino,
    "openvino, sizes fixed": partial(in_openvino, fixed=True),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--width", type=float, default=1.0)
    parser.add_argument("--cut", type=float, default=0.5)
    parser.add_argument("--weights", default="gaussian")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    net = nl.models.build("vgg11", width=asked.width).eval()
    nested = nl.nest(net, torch.randn(2, 3, 32, 32), weights=asked.weights, num_blocks=8).eval()
    graphs = graphs_of(nested, asked.cut)
    figures: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as folder:
        paths = {name: Path(folder) / f"{name}.onnx" for name in graphs}
        for name, graph in graphs.items():
            write(graph, paths[name])
        sizes = {name: path.stat().st_size for name, path in paths.items()}
        record = graphs["draws"].about["noise"]
        for runtime, opened in RUNTIMES.items():
            for batch in BATCHES:
                x = np.random.default_rng(0).standard_normal((batch, 3, 32, 32), dtype=np.float32)
                arrays = {"x": x, "noise": noise_for(record, 0, batch)}
                shapes = {name: array.shape for name, array in arrays.items()}
                runs = {name: opened(path, shapes) for name, path in paths.items()}
                functions: dict[str, Callable[[], object]] = {
                    name: partial(run, {port.name: arrays[port.name] for port in graphs[name].inputs})
                    for name, run in runs.items()
                }
                functions["noise"] = partial(noise_for, record, 0, batch)
                times = in_turns(functions, asked.rounds, 20 if batch == 1 else 1)
                figures[f"{runtime}, batch {batch}"] = {
                    name: ratio(times, name, "plain") for name in ("draws", "moments", "there and back", "noise")
                }
    report(
        f"uncertainty in a file over a plain pass: VGG11 x {asked.width} at {asked.cut}, {asked.weights}, 6 draws",
        **figures,
        bytes=sizes,
        machine=machine(),
    )


if __name__ == "__main__":
    main()
