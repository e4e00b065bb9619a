"""The program of a graph, as formats read it: open sizes stay open, and nothing in it draws random numbers."""

import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, fx
from torch.export import Dim, ExportedProgram

from nestling.delivery.formats.format import Graph, Port
from nestling.errors import ArgumentError, TraceError
from nestling.reading import Traced, quiet_torch_logs, user_line
from nestling.torch_parts import OpOverload, schema_of


def exported(graph: Graph, *, least: int = 2, most: int | None = None) -> ExportedProgram:
    """The program of a graph whose open sizes go from 1 to ``most``, or from 1 upwards.

    ``least`` is the size of the open axes in the example that the program is traced with. It is never 1, which torch
    would take for fixed.

    Raises:
        TraceError: if the code of the module does not allow an open size.
        ArgumentError: if the module draws random numbers.
    """
    names = dict.fromkeys(name for port in graph.inputs for name in port.open_axes.values())
    sizes = {name: Dim(name, min=1, max=most) for name in names}
    shapes = tuple({axis: sizes[name] for axis, name in port.open_axes.items()} for port in graph.inputs)
    examples = tuple(_widened(port, least) for port in graph.inputs)
    try:
        with torch.no_grad(), quiet_torch_logs(), plain_attention(), warnings.catch_warnings(action="ignore"):
            program = torch.export.export(Traced(graph.module), (examples, {}), dynamic_shapes=(shapes, {}))
    except Exception as error:  # torch raises errors of many kinds, from the user's code and from torch's
        trail = "".join(traceback.format_exception(error))
        reason = user_line(str(error)) or user_line(trail) or " ".join(str(error).split())[:200]
        open_sizes = ", ".join(sizes) or "fixed sizes"
        problem = f"the network can't be exported with open sizes ({open_sizes}): {reason}"
        raise TraceError(f"{problem}. Change that line of its code, or deliver a part of it.") from error
    _check_repeatable(program)
    return program


@contextmanager
def plain_attention() -> Iterator[None]:
    """Keep attention from its fused kernel in eval mode, which only torch has."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def _widened(port: Port, least: int) -> Tensor:
    """The example, with its open axes repeated until they have at least that size."""
    example = port.example
    for axis in port.open_axes:
        size = example.shape[axis]
        example = example.index_select(axis, torch.arange(max(size, least)) % size)
    return example


def _check_repeatable(program: ExportedProgram) -> None:
    """Refuse a program that draws random numbers: runtimes draw other ones than torch, or the same at every call."""
    parts = (part for part in program.graph_module.modules() if isinstance(part, fx.GraphModule))
    for node in (node for part in parts for node in part.graph.nodes):
        if isinstance(node.target, OpOverload) and _draws(node):
            line = user_line(node.meta.get("stack_trace") or "")
            given = f"one that draws random numbers with {node.target}{line and f' at {line}'}"
            advice = "Make the noise an input of the network, or leave it out in eval mode."
            raise ArgumentError("network", given, "the same at every call", advice)


def _draws(node: fx.Node) -> bool:
    """Whether an operation draws random numbers with the arguments that it is given."""
    if torch.Tag.nondeterministic_seeded not in node.target.tags:  # type: ignore[union-attr]
        return False
    arguments = schema_of(node.target).arguments
    given = {argument.name: argument.default_value for argument in arguments}
    given |= dict(zip((argument.name for argument in arguments), node.args, strict=False)) | dict(node.kwargs)
    is_off = given.get("train") is False or given.get("training") is False
    return not is_off and given.get("dropout_p", given.get("p")) != 0
