"""One ONNX model that holds every width: its widths are dimensions, fixed when it is loaded or given at each call."""

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from nestling.delivery.formats import Graph, Port
from nestling.delivery.edited_graph import EditedGraph
from nestling.delivery.folded_norms import fold_norms
from nestling.delivery.open_convolutions import with_open_convolutions, write_branches
from nestling.delivery.width_table import ROW, Wanted, WidthTable
from nestling.errors import NestlingError
from nestling.running import Nested, OpenWidths, in_mode
from nestling.torch_parts import pytree

if TYPE_CHECKING:
    import onnx

METADATA = "nestling"
"""The key of a model's metadata that has its record, as JSON."""


def all_widths_model(
    nested: Nested,
    cuts: Mapping[str, Wanted] | Sequence[Wanted],
    graph_of: Callable[[nn.Module], Graph] | None = None,
    *,
    quality: Mapping[str, float] | None = None,
    each_group: bool = False,
) -> "onnx.ModelProto":
    """The ONNX model of a network at all of some cuts."""
    table = WidthTable(nested, cuts, each_group=each_group)
    with in_mode(nested, training=False), torch.no_grad():
        open_network = table.network()
        graph = graph_of(open_network) if graph_of is not None else plain_graph(nested, open_network)
        module = _Chosen(graph.module.eval(), open_network, table, len(graph.inputs))
        program = with_open_convolutions(_program(module, graph.inputs, table))
        model = _model(program, graph, table)
    edited = EditedGraph(model)
    fold_norms(edited)
    write_branches(edited, [table.sizes(row) for row in range(len(table.cuts))])
    edited.write()
    about = dict(graph.about) | {"widths": table.about(quality)}
    entry = model.metadata_props.add()
    entry.key, entry.value = METADATA, json.dumps(about)
    return model


def plain_graph(nested: Nested, network: nn.Module) -> Graph:
    """The graph of a network as it is: its inputs are those of the example, with an open batch size."""
    args, kwargs = nested.example
    leaves = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    names = ["input"] if len(leaves) == 1 else [f"input_{number}" for number in range(len(leaves))]
    ports = tuple(Port(name, leaf, {0: "batch"} if leaf.ndim else {}) for name, leaf in zip(names, leaves, strict=True))
    outputs = pytree.tree_leaves(nested(*args, **kwargs))
    return Graph(network, ports, ("output",) if len(outputs) == 1 else tuple(f"output_{n}" for n in range(len(outputs))), {})


class _Chosen(nn.Module):
    """A graph with more inputs, the sizes of which say what the network in it keeps."""

    def __init__(self, module: nn.Module, network: OpenWidths, table: WidthTable, num_inputs: int) -> None:
        super().__init__()
        self.module, self.num_inputs = module, num_inputs
        self._network = [network]
        self._table = table

    def forward(self, *inputs: Tensor) -> Any:  # noqa: ANN401
        """Run the graph on the first inputs, at the sizes of the others."""
        sizes = {name: own.shape[0] for name, own in zip(self._table.dimensions, inputs[self.num_inputs :], strict=True)}
        with self._network[0].at(self._table.units(sizes), sizes.get(ROW, 1)):
            return self.module(*inputs[: self.num_inputs])


def _program(module: nn.Module, ports: Sequence[Port], table: WidthTable) -> torch.export.ExportedProgram:
    """The program of a module whose widths are open; its example is smaller than the whole network."""
    dims = [torch.zeros(max(2, most - 1), dtype=torch.uint8) for most in table.dimensions.values()]
    shapes = [dict.fromkeys(port.open_axes, torch.export.Dim.AUTO) for port in ports]
    shapes += [{0: torch.export.Dim.DYNAMIC}] * len(dims)
    try:
        return torch.export.export(
            module, (*(port.example for port in ports), *dims), dynamic_shapes=(tuple(shapes),), strict=False
        )
    except Exception as fault:
        raise
        raise NestlingError(str(fault)) from fault


def _model(program: torch.export.ExportedProgram, graph: Graph, table: WidthTable) -> "onnx.ModelProto":
    names = [*(port.name for port in graph.inputs), *table.dimensions]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = torch.onnx.export(
            program,
            dynamo=True,
            external_data=False,
            input_names=names,
            output_names=list(graph.outputs),
            verbose=False,
        )
    model: onnx.ModelProto = made.model_proto
    _name_sizes(model, [port.open_axes for port in graph.inputs] + [{0: name} for name in table.dimensions])
    return model


def _name_sizes(model: "onnx.ModelProto", wanted: Sequence[Mapping[int, str]]) -> None:
    """Give the open sizes of the inputs their names, wherever they occur."""
    names = {}
    for value, axes in zip(model.graph.input, wanted, strict=True):
        for axis, name in axes.items():
            names[value.type.tensor_type.shape.dim[axis].dim_param] = name
    names.pop("", None)
    for value in (*model.graph.input, *model.graph.output):
        for size in value.type.tensor_type.shape.dim:
            if size.dim_param:
                size.dim_param = names.get(size.dim_param, size.dim_param)
    del model.graph.value_info[:]
