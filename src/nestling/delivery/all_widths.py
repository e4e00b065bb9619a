"""One ONNX model that holds every width: its widths are dimensions, fixed when it is loaded or given at each call."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx
import torch
from torch import Tensor, nn

from nestling.delivery.edited_graph import EditedGraph
from nestling.delivery.folded_norms import fold_norms, join_slices
from nestling.delivery.formats import Graph, Port
from nestling.delivery.open_convolutions import write_branches
from nestling.delivery.open_program import onnx_program, open_program
from nestling.delivery.width_table import ROW, Wanted, WidthTable
from nestling.running import Nested, OpenWidths, in_mode
from nestling.runtime import RECORD
from nestling.torch_parts import pytree


def all_widths_model(
    nested: Nested,
    cuts: Mapping[str, Wanted] | Sequence[Wanted],
    graph_of: Callable[[nn.Module], Graph] | None = None,
    *,
    quality: Mapping[str, float] | None = None,
    each_group: bool = False,
) -> onnx.ModelProto:
    """The ONNX model of a network at several cuts, with one copy of the weights.

    Beside the inputs of the network the model has an input of bytes for each of its open dimensions. Only the size of
    such an input counts. It can be fixed when the file is loaded, which makes the file as fast as that of the smaller
    network, or be given at each call. ``nestling.runtime`` finds the sizes for a cut.

    Args:
        nested: The network, at whose cuts the model computes what ``extract`` gives.
        cuts: The cuts of the model's table: fractions, widths by group or ``Cut``, with names if it is a dictionary.
        graph_of: Makes the graph to write of a plain network, with its inputs and outputs, as for a single cut; the
            record of the graph goes into the model. By default the network's own inputs and outputs.
        quality: The quality of cuts, for the record, by the name of the cut.
        each_group: Give each group a dimension, the size of which is the number of its units, so that cuts beside those
            of the table can be chosen too. By default groups share a dimension whose units stay in proportion.

    Returns:
        The model. Under the key "nestling" of its metadata is the record, as JSON; its entry "widths" has the table.

    Raises:
        ArgumentError: The cuts are less than two, or differ in more than units and norms: in bits or whole layers.
        NestlingError: The network can't be written with open sizes; the message names the layer or line.

    Example:
        >>> model = all_widths_model(nested, [0.25, 0.5, 1.0])
        >>> onnx.save(model, "network.onnx")
    """
    table = WidthTable(nested, cuts, each_group=each_group)
    with in_mode(nested, training=False), torch.no_grad():
        network = table.network()
        graph = plain_graph(nested, network) if graph_of is None else graph_of(network)
        program = open_program(_Chosen(graph, network, table), graph.inputs, table.dimensions)
    names = [*(port.name for port in graph.inputs), *table.dimensions]
    model = onnx_program(program, names, graph.outputs).model_proto
    _name_sizes(model, [*(port.open_axes for port in graph.inputs), *({0: name} for name in table.dimensions)])
    edited = EditedGraph(model)
    join_slices(edited)
    fold_norms(edited)
    write_branches(edited, [table.sizes(row) for row in range(len(table.cuts))])
    edited.write()
    record = dict(graph.about) | {"widths": table.about(quality)}
    model.metadata_props.add(key=RECORD, value=json.dumps(record))
    return model


def plain_graph(nested: Nested, network: nn.Module) -> Graph:
    """The graph of a network as it is: its inputs are the tensors of the example, with an open batch size."""
    args, kwargs = nested.example
    tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    open_axes = [{0: "batch"} if tensor.ndim else {} for tensor in tensors]
    ports = map(Port, _numbered("input", len(tensors)), tensors, open_axes)
    outputs = pytree.tree_leaves(nested(*args, **kwargs))
    return Graph(network, tuple(ports), _numbered("output", len(outputs)), {})


def _numbered(name: str, count: int) -> tuple[str, ...]:
    return (name,) if count == 1 else tuple(f"{name}_{number}" for number in range(count))


class _Chosen(nn.Module):
    """A graph with more inputs, the sizes of which say what the network in it keeps."""

    def __init__(self, graph: Graph, network: OpenWidths, table: WidthTable) -> None:
        super().__init__()
        self.module = graph.module.eval()
        self._num_inputs, self._table, self._at = len(graph.inputs), table, network.at

    def forward(self, *inputs: Tensor) -> Any:  # noqa: ANN401
        """Run the graph on the first inputs, at the sizes of the others."""
        given, chosen = inputs[: self._num_inputs], inputs[self._num_inputs :]
        sizes = {name: tensor.shape[0] for name, tensor in zip(self._table.dimensions, chosen, strict=True)}
        with self._at(self._table.units(sizes), sizes.get(ROW, 1)):
            return self.module(*given)


def _name_sizes(model: onnx.ModelProto, wanted: Sequence[Mapping[int, str]]) -> None:
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
