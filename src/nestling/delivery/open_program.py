"""The program of a module whose widths are the sizes of inputs, in operations that ONNX has for open sizes."""

import re
import traceback
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.export import Dim, ExportedProgram

from nestling.delivery.formats import Graph
from nestling.delivery.formats.exported import plain_attention
from nestling.delivery.mean_graph import CONVOLUTIONS, TRANSPOSED
from nestling.errors import ArgumentError, NestlingError
from nestling.reading import Traced, quiet_torch_logs, user_line
from nestling.torch_parts import example_size

DOMAIN, OPEN_CONVOLUTION, PER_GROUP = "nestling", "OpenConvolution", "per_group"
"""A convolution that ONNX does not have: it has no number of groups, but that of channels which each group puts out."""
_GROUPS = dict.fromkeys((*CONVOLUTIONS, *TRANSPOSED), 6)
"""The place of the number of groups among an operation's arguments."""
_ATTENTION = torch.ops.aten.scaled_dot_product_attention.default
_SPLITS = (torch.ops.aten.chunk.default, torch.ops.aten.split.Tensor)


def open_program(graph: Graph, dimensions: Mapping[str, int]) -> ExportedProgram:
    """The program of a graph, the last inputs of which are those of dimensions, which have these largest sizes.

    The examples of these inputs are smaller than that, so that no size is taken for fixed.
    """
    shapes = [
        dict.fromkeys(port.open_axes, Dim.DYNAMIC if port.name in dimensions else Dim.AUTO) for port in graph.inputs
    ]
    examples = tuple(port.example for port in graph.inputs)
    try:
        with quiet_torch_logs(), plain_attention(), warnings.catch_warnings(action="ignore"):
            program = torch.export.export(Traced(graph.module), (examples, {}), dynamic_shapes=(tuple(shapes), {}))
    except NestlingError:
        raise
    except Exception as fault:  # torch raises errors of many kinds
        trail = "".join(traceback.format_exception(fault))
        fixed = {int(number) for number in re.findall(r"L\['args'\]\[(\d+)\]", str(fault))}
        names = ", ".join(port.name for place, port in enumerate(graph.inputs) if place in fixed)
        why = f"its code fixes a size that a cut changes{names and f' ({names})'}"
        raise refusal(why, user_line(str(fault)) or user_line(trail)) from fault
    for node in program.graph.nodes:
        if node.target in TRANSPOSED and _is_open(node):
            raise refusal("a transposed convolution has a number of groups that a cut changes", layer_of(node))
    return _in_open_operations(program)


def refusal(why: str, where: str = "") -> NestlingError:
    """The error for a network that can't be written as one file of every width."""
    place = f" at {where}" if where else ""
    return NestlingError(f"one file can't hold every width of this network: {why}{place}. Export each cut.")


def refused_by_exporter(program: ExportedProgram, fault: ArgumentError) -> NestlingError:
    """The error for an operation that the exporter can't write with open sizes, with the layer that it is in."""
    cause = fault.__context__
    trail = "".join(traceback.format_exception(cause)) if cause is not None else ""
    translated = re.search(r"Error when translating node %(\w+)", trail)
    lacking = re.search(r"OpOverload\(op='\w+\.(\w+)'", trail)
    for node in program.graph.nodes:
        is_lacking = lacking is not None and str(node.target).rpartition(".")[0].endswith(lacking[1])
        if is_lacking or (translated is not None and node.name == translated[1]):
            return refusal(f"the exporter can't write {node.target} with open sizes", layer_of(node))
    return refusal(f"the exporter refuses {fault.given}")


def layer_of(node: fx.Node) -> str:
    """The layer that a node of a program belongs to, or the user's line that made it."""
    stack = [str(path) for path, _ in node.meta.get("nn_module_stack", {}).values()]
    _, inside, path = (stack[-1] if stack else "").rpartition(".network.")
    return path if inside and path != "network" else user_line(node.meta.get("stack_trace") or "")


def _is_open(node: fx.Node) -> bool:
    place = _GROUPS[node.target]
    return len(node.args) > place and not isinstance(node.args[place], int)


def _in_open_operations(program: ExportedProgram) -> ExportedProgram:
    """The program with operations in place of those that the exporter writes for fixed sizes alone."""
    grouped = any(node.target in CONVOLUTIONS and _is_open(node) for node in program.graph.nodes)
    split = any(node.target in _SPLITS for node in program.graph.nodes)
    shared = any(node.target is _ATTENTION and node.kwargs.get("enable_gqa") for node in program.graph.nodes)
    if not (grouped or split or shared):
        return program
    table: dict[Any, Any] = dict.fromkeys(CONVOLUTIONS, _marked) if grouped else {}
    if split:
        table |= {torch.ops.aten.chunk.default: _chunk, torch.ops.aten.split.Tensor: _split}
    if shared:
        table[_ATTENTION] = _attention
    with warnings.catch_warnings(action="ignore", category=FutureWarning):  # of torch's own, for copied programs
        plain: ExportedProgram = program.run_decompositions(table)
    return plain


def _marked(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sequence[int] = (1,),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    groups: int | torch.SymInt = 1,
) -> Any:  # noqa: ANN401
    """A convolution with an open number of groups as an ``OpenConvolution``; others stay as they are."""
    if isinstance(groups, int):
        return NotImplemented
    zeros = [0] * len(stride)
    shape = torch.ops.aten.convolution(x, weight, bias, stride, padding, dilation, False, zeros, groups).shape
    per_group = weight.shape[0] // groups
    attributes: dict[str, Any] = {
        "strides": list(stride),
        "pads": [*padding, *padding],
        "dilations": list(dilation),
        PER_GROUP: _known(per_group),
    }
    inputs = [x, weight] if bias is None else [x, weight, bias]
    return torch.onnx.ops.symbolic(
        f"{DOMAIN}::{OPEN_CONVOLUTION}", inputs, attributes, dtype=x.dtype, shape=shape, version=1
    )


def _chunk(x: Tensor, chunks: int, dim: int = 0) -> Any:  # noqa: ANN401
    size: Any = x.shape[dim]
    if isinstance(size, int) or example_size(size) % chunks:
        return NotImplemented
    return _split(x, size // chunks, dim)


def _split(x: Tensor, split_size: int | torch.SymInt, dim: int = 0) -> Any:  # noqa: ANN401
    """Slices of one size; the last has what is left."""
    size: Any = x.shape[dim]
    if isinstance(size, int) and isinstance(split_size, int):
        return NotImplemented
    number = -(-_known(size) // _known(split_size))
    starts = [index * split_size for index in range(number)]
    return [
        x.narrow(dim, start, split_size if index + 1 < number else size - start) for index, start in enumerate(starts)
    ]


def _attention(query: Tensor, key: Tensor, value: Tensor, *args: Any, enable_gqa: bool = False, **kwargs: Any) -> Any:  # noqa: ANN401
    """Attention whose heads share keys and values, with a key and a value for each head."""
    if not enable_gqa:
        return NotImplemented
    times = _known(query.shape[-3]) // _known(key.shape[-3])
    key, value = (shared.repeat_interleave(times, -3) for shared in (key, value))
    return _ATTENTION(query, key, value, *args, **kwargs)


def _known(size: Any) -> int:  # noqa: ANN401
    return size if isinstance(size, int) else int(example_size(size))
