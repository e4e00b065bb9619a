"""Convolutions whose number of groups is open, which ONNX has as a fixed attribute: one branch per number."""

from collections.abc import Mapping, Sequence

import onnx
from onnx import helper

from nestling.delivery.edited_graph import EditedGraph
from nestling.delivery.open_program import DOMAIN, OPEN_CONVOLUTION, PER_GROUP


def write_branches(graph: EditedGraph, rows: Sequence[Mapping[str, int]]) -> None:
    """Write every open convolution as one branch for each number of groups that the rows of a table have.

    ``rows`` has the sizes of the dimensions at each row. When these are fixed, one branch is left.
    """
    open_nodes = [node for node in graph.nodes if node.op_type == OPEN_CONVOLUTION]
    if not open_nodes:
        return
    channels = graph.sizes_at([node.input[1] for node in open_nodes], rows)
    for node in open_nodes:
        attributes = {a.name: a for a in node.attribute}
        per_group = attributes.pop(PER_GROUP).i
        numbers = sorted({size // per_group for size in channels[node.input[1]]})
        num_channels = graph.add("Shape", [node.input[1]], start=0, end=1)
        graph.remove(node)
        graph.nodes.append(_branched(graph, node, list(attributes.values()), num_channels, per_group, numbers))
    graph.model.opset_import.remove(next(opset for opset in graph.model.opset_import if opset.domain == DOMAIN))


def _branched(
    graph: EditedGraph,
    node: onnx.NodeProto,
    attributes: Sequence[onnx.AttributeProto],
    num_channels: str,
    per_group: int,
    numbers: Sequence[int],
) -> onnx.NodeProto:
    """A convolution with the first of some numbers of groups if the channels fit it, else with one of the others."""

    number, *others = numbers
    convolution = helper.make_node("Conv", node.input, [graph.new_name()], group=number)
    convolution.attribute.extend(attributes)
    if not others:
        del convolution.output[:]
        convolution.output.extend(node.output)
        return convolution
    fits = graph.add("Equal", [num_channels, graph.constant([number * per_group])])
    otherwise = helper.make_node("Identity", [], [graph.new_name()])
    otherwise.CopyFrom(_branched(graph, node, attributes, num_channels, per_group, others))
    del otherwise.output[:]
    otherwise.output.append(graph.new_name())
    branches = {"then_branch": graph.branch(convolution), "else_branch": graph.branch(otherwise)}
    return helper.make_node("If", [graph.add("Squeeze", [fits])], node.output, **branches)
