"""One ONNX model that holds every width: its widths are dimensions, fixed when it is loaded or given at each call."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from nestling.delivery.about import Known, described_inputs
from nestling.delivery.formats import Graph, Port
from nestling.delivery.formats.extras import check_extra
from nestling.delivery.formats.onnx import converted, finished
from nestling.delivery.graphs import plain_graph
from nestling.delivery.open_program import open_program, refused_by_exporter
from nestling.delivery.source import as_known, source_of
from nestling.delivery.width_table import ROW, WidthTable
from nestling.errors import ArgumentError
from nestling.prediction import Calibration, CutLike
from nestling.running import Nested, OpenWidths, in_mode

GraphOf = Callable[[nn.Module, Callable[[], Tensor]], Graph]
"""The graph to write, from a plain network and from what gives the temperature of its probabilities in a call."""


def all_widths_model(
    nested: Nested,
    cuts: Mapping[str, CutLike] | Sequence[CutLike],
    graph_of: GraphOf | None = None,
    *,
    quality: Mapping[str, float] | None = None,
    each_group: bool = False,
    calibrations: Sequence[Calibration] = (),
) -> Any:  # noqa: ANN401  (onnx's model, which is a protocol buffer)
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
        calibrations: The calibrations of some of the cuts. A row of the table has the temperature and the thresholds of
            its cut; the temperature is in the graph, as far as ``graph_of`` has probabilities.

    Returns:
        The model. Under the key "nestling" of its metadata is the record, as JSON; its entry "widths" has the table.

    Raises:
        ArgumentError: The cuts are less than two, or differ in more than units and norms: in bits or whole layers.
        NestlingError: The network can't be written with open sizes; the message names the layer or line.

    Examples:
        >>> model = nl.delivery.all_widths_model(nested, [0.5, 1.0])
        >>> [output.name for output in model.graph.output]
        ['probs', 'logits']
    """
    check_extra("onnx", "onnx", "onnxscript")
    from nestling.delivery.open_onnx import edited  # needs onnx, which may be missing

    table = WidthTable(nested, cuts, each_group=each_group, calibrations=calibrations)
    with in_mode(nested, training=False), torch.no_grad():
        network = table.network()
        temperature = partial(network.in_row, table.temperatures)
        graph = _with_dimensions((graph_of or _plain(nested))(network, temperature), network, table, quality)
        program = open_program(graph, table.dimensions)
        try:
            proto = converted(graph, program)
        except ArgumentError as fault:
            raise refused_by_exporter(program, fault) from fault
    return finished(edited(proto, [table.sizes(row) for row in range(len(table.cuts))]), graph)


def _plain(nested: Nested) -> GraphOf:
    """Makes the graph of one pass with the mean weights."""
    source = source_of(nested, None, None, as_known(nested, Known(), None), "nchw", None)
    return lambda network, temperature: plain_graph(replace(source, network=network), temperature=temperature)


def _with_dimensions(
    graph: Graph, network: OpenWidths, table: WidthTable, quality: Mapping[str, float] | None
) -> Graph:
    """A graph with an input of bytes for each dimension, which calls the network at the sizes of these inputs."""
    ports = [
        Port(name, torch.zeros(most - 1 if name != ROW else 2, dtype=torch.uint8), {0: name})
        for name, most in table.dimensions.items()
    ]
    inputs = [port | {"fill": "zeros"} for port in described_inputs(ports)]
    about = dict(graph.about) | {"widths": table.about(quality)}
    about["inputs"] = [*about.get("inputs", ()), *inputs]
    return Graph(_Chosen(graph, network, table), (*graph.inputs, *ports), graph.outputs, about)


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
