"""ONNX: one file, for ONNX Runtime and for other programs that read it."""

import json
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram

from nestling.delivery.formats.exported import exported
from nestling.delivery.formats.extras import check_extra
from nestling.delivery.formats.format import FileFormat, Graph
from nestling.errors import ArgumentError
from nestling.reading import quiet_torch_logs, user_line
from nestling.runtime import KEY, OnnxSession

_RANDOM = {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}
_MOST_BYTES = 2**31 - 2**20
"""An ONNX file without files beside it is a protocol buffer, which has at most 2 GiB; some room is for the graph."""


class OnnxFormat(FileFormat):
    """A single .onnx file with open sizes left open, in the set of operations that torch writes by default."""

    suffix = ".onnx"

    def check_installed(self) -> None:
        """Refuse the format where one of its packages is missing."""
        check_extra("onnx", "onnx", "onnxscript", "onnxruntime")

    def write(self, graph: Graph, path: Path) -> tuple[Path, ...]:
        """Write the graph as one file, without the names of files on this machine."""
        proto = model_of(graph)
        path.write_bytes(proto.SerializeToString(deterministic=True))
        return (path,)

    def opened(self, path: Path) -> OnnxSession:
        """The file, opened in ONNX Runtime with torch's number of threads."""
        return OnnxSession(path, threads=torch.get_num_threads())


def model_of(graph: Graph) -> Any:  # noqa: ANN401  (onnx's model, which is a protocol buffer)
    """The graph as an ONNX model with its record."""
    tensors = (*graph.module.parameters(), *graph.module.buffers())
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    if size > _MOST_BYTES:
        advice = "Choose a smaller cut, or to='openvino', whose weights are in a file of their own."
        raise ArgumentError("network", f"{size:,} bytes of weights", "smaller than 2 GiB in one ONNX file", advice)
    return finished(converted(graph, exported(graph)), graph)


def finished(proto: Any, graph: Graph) -> Any:  # noqa: ANN401
    """A model with the record of its graph, checked to be complete and to draw nothing."""
    import onnx

    _without_traces(proto)
    proto.metadata_props.add(key=KEY, value=json.dumps(graph.about, allow_nan=False))
    onnx.checker.check_model(proto)
    drawn = sorted(_operations(proto) & _RANDOM)
    if drawn:
        advice = "Make the noise an input of the network, or leave it out in eval mode."
        raise ArgumentError("network", f"one that draws random numbers ({drawn[0]})", "deterministic", advice)
    return proto


def converted(graph: Graph, program: ExportedProgram) -> Any:  # noqa: ANN401
    """The model that torch makes of the program, with the names of its inputs, outputs and open axes."""
    try:
        with quiet_torch_logs(), warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            made = torch.onnx.export(
                program,
                (),
                dynamo=True,
                external_data=False,
                verbose=False,
                input_names=[port.name for port in graph.inputs],
                output_names=list(graph.outputs),
            )
    except torch.onnx.errors.OnnxExporterError as fault:
        raise ArgumentError("network", _lacking(fault), "made of operations that ONNX has", _REPLACE) from None
    assert made is not None
    proto = made.model_proto
    _name_open_axes(proto, graph)
    return proto


_REPLACE = "Replace it in the network's code, or deliver it with nl.extract and torch.export."


def _lacking(fault: BaseException) -> str:
    """What torch can't convert, from the innermost of its errors."""
    cause: BaseException = fault
    while cause.__cause__ is not None:
        cause = cause.__cause__
    text = str(cause)
    operation = re.search(r"OpOverload\(op='([\w.]+)'", text)
    if operation is None:
        return f"one that can't be converted ({' '.join(text.split())[:200]})"
    line = user_line(str(fault))
    return f"one with {operation[1]}{line and f' at {line}'}"


def _name_open_axes(proto: Any, graph: Graph) -> None:  # noqa: ANN401
    """Call the open axes what the graph calls them: torch has numbers for them."""
    given = {port.name: port for port in graph.inputs}
    names = {}
    for value in proto.graph.input:
        for axis, name in given[value.name].open_axes.items():
            names[value.type.tensor_type.shape.dim[axis].dim_param] = name
    for value in (*proto.graph.input, *proto.graph.output, *proto.graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in names:
                dim.dim_param = names[dim.dim_param]


_WITH_NOTES = ("node", "input", "output", "value_info", "initializer")
"""The parts of a graph that have notes."""


def _without_traces(proto: Any) -> None:  # noqa: ANN401
    """Remove what torch notes of the code that made each node, such as the names of files on this machine."""
    for graph in graphs_of(proto):
        graph.doc_string = ""
        for field in _WITH_NOTES:
            for entry in getattr(graph, field, ()):
                if not isinstance(entry, str):
                    entry.ClearField("metadata_props")
                    entry.doc_string = ""
        del graph.metadata_props[:]
    del proto.metadata_props[:]


def _operations(proto: Any) -> set[str]:  # noqa: ANN401
    """The names of all operations of a model."""
    return {node.op_type for graph in graphs_of(proto) for node in graph.node}


def graphs_of(proto: Any) -> Iterator[Any]:  # noqa: ANN401
    """The graphs of a model: the main one, its functions, and those inside of nodes."""
    waiting = [proto.graph, *proto.functions]
    while waiting:
        graph = waiting.pop()
        yield graph
        waiting += [attribute.g for node in graph.node for attribute in node.attribute if attribute.HasField("g")]
