"""The program of a module whose widths are the sizes of inputs, in operations that ONNX has for open sizes."""

import re
import traceback
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from nestling.delivery.formats import Port
from nestling.delivery.open_convolutions import CONVOLUTIONS, marked
from nestling.errors import NestlingError
from nestling.reading import user_line
from nestling.torch_parts import example_size

_TRANSPOSED = (
    torch.ops.aten.conv_transpose1d.default,
    torch.ops.aten.conv_transpose2d.input,
    torch.ops.aten.conv_transpose3d.input,
)
_GROUPS = {target: 6 for target in (*CONVOLUTIONS, *_TRANSPOSED)}
"""The place of the number of groups among an operation's arguments."""
_SPLITS = (torch.ops.aten.chunk.default, torch.ops.aten.split.Tensor)


def open_program(
    module: nn.Module, ports: Sequence[Port], dimensions: Mapping[str, int]
) -> torch.export.ExportedProgram:
    """The program of a module that takes, after the ports, an input of bytes for each dimension.

    ``dimensions`` has the largest size of each. The example is smaller than that, so that no size is taken for fixed.
    """
    chosen = [torch.zeros(max(2, most - 1), dtype=torch.uint8) for most in dimensions.values()]
    shapes = [dict.fromkeys(port.open_axes, torch.export.Dim.AUTO) for port in ports]
    shapes += [{0: torch.export.Dim.DYNAMIC}] * len(chosen)
    try:
        program = torch.export.export(
            module, (*(port.example for port in ports), *chosen), dynamic_shapes=(tuple(shapes),), strict=False
        )
    except NestlingError:
        raise
    except Exception as fault:  # torch raises errors of many kinds
        trail = "".join(traceback.format_exception(fault))
        fixed = {int(number) - len(ports) for number in re.findall(r"L\['inputs'\]\[(\d+)\]", str(fault))}
        names = ", ".join(name for place, name in enumerate(dimensions) if place in fixed)
        why = f"its code fixes a size that a cut changes{names and f' ({names})'}"
        raise refusal(why, user_line(str(fault)) or user_line(trail)) from fault
    for node in program.graph.nodes:
        if node.target in _TRANSPOSED and _is_open(node):
            raise refusal("a transposed convolution has a number of groups that a cut changes", layer_of(node))
    return _without_open_splits(program)


def onnx_program(
    program: torch.export.ExportedProgram, inputs: Sequence[str], outputs: Sequence[str]
) -> torch.onnx.ONNXProgram:
    """The program in ONNX."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = torch.onnx.export(
                program,
                dynamo=True,
                external_data=False,
                input_names=list(inputs),
                output_names=list(outputs),
                verbose=False,
            )
    except Exception as fault:  # torch raises errors of many kinds
        trail = "".join(traceback.format_exception(fault))
        found = re.search(r"Error when translating node %(\w+)", trail)
        node = next((own for own in program.graph.nodes if found and own.name == found[1]), None)
        what = "an operation" if node is None else str(node.target)
        raise refusal(f"{what} is not in ONNX for sizes that are open", "" if node is None else layer_of(node)) from fault
    assert made is not None
    return made


def refusal(why: str, where: str) -> NestlingError:
    """The error for a network that can't be written as one file of every width."""
    place = f" at {where}" if where else ""
    return NestlingError(f"one file can't hold every width of this network: {why}{place}. Export each cut.")


def layer_of(node: fx.Node) -> str:
    """The layer that a node of a program belongs to, or the user's line that made it."""
    stack = [str(path) for path, _ in node.meta.get("nn_module_stack", {}).values()]
    _, inside, path = (stack[-1] if stack else "").rpartition(".network.")
    return path if inside else user_line(node.meta.get("stack_trace") or "")


def _is_open(node: fx.Node) -> bool:
    place = _GROUPS[node.target]  # type: ignore[index]
    return len(node.args) > place and not isinstance(node.args[place], int)


def _without_open_splits(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """The program with operations in place of those that the exporter writes for fixed sizes alone."""
    grouped = any(node.target in CONVOLUTIONS and _is_open(node) for node in program.graph.nodes)
    split = any(node.target in _SPLITS for node in program.graph.nodes)
    if not grouped and not split:
        return program
    table: dict[Any, Any] = dict.fromkeys(CONVOLUTIONS, marked) if grouped else {}
    if split:
        table |= {torch.ops.aten.chunk.default: _chunk, torch.ops.aten.split.Tensor: _split}
    return program.run_decompositions(table)


def _chunk(x: Tensor, chunks: int, dim: int = 0) -> Any:  # noqa: ANN401
    size = x.shape[dim]
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


def _known(size: Any) -> int:  # noqa: ANN401
    return size if isinstance(size, int) else int(example_size(size))
