"""The program of a graph, with open sizes, from which the formats that torch does not write itself are made."""

import warnings

import torch
from torch import Tensor
from torch.export import Dim, ExportedProgram

from nestling.delivery.formats.format import Graph, Port
from nestling.errors import TraceError


def exported(graph: Graph, *, least: int = 2, most: int | None = None) -> ExportedProgram:
    """The program of a graph whose open sizes go from 1 to ``most``, or from 1 upwards.

    ``least`` is the size of the open axes in the example that the program is traced with. It is never 1, which torch
    would take for fixed.

    Raises:
        TraceError: if the code of the module does not allow an open size.
    """
    names = dict.fromkeys(name for port in graph.inputs for name in port.open_axes.values())
    sizes = {name: Dim(name, min=1, max=most) for name in names}
    shapes = tuple({axis: sizes[name] for axis, name in port.open_axes.items()} for port in graph.inputs)
    examples = tuple(_widened(port, least) for port in graph.inputs)
    try:
        with torch.no_grad(), warnings.catch_warnings(action="ignore"):
            return torch.export.export(graph.module, examples, dynamic_shapes=shapes)
    except Exception as error:  # torch raises errors of many kinds
        reason = " ".join(str(error).split())[:200]
        raise TraceError(f"the network can't be exported with open sizes ({', '.join(names)}): {reason}") from None


def _widened(port: Port, least: int) -> Tensor:
    """The example, with its open axes repeated until they have at least that size."""
    example = port.example
    for axis in port.open_axes:
        size = example.shape[axis]
        example = example.index_select(axis, torch.arange(max(size, least)) % size)
    return example
