"""Batch norms folded into the weights before them, and slices of slices joined, in a graph whose widths are open."""

import numpy as np
import onnx
from onnx import numpy_helper

from nestling.delivery.edited_graph import EditedGraph
from nestling.delivery.open_program import OPEN_CONVOLUTION

_OUTPUT_AXIS = {"Conv": 0, OPEN_CONVOLUTION: 0, "ConvTranspose": 1, "Gemm": 0}
"""The axis of a weight that its outputs are on; a ``Gemm`` if its weight is transposed, as that of ``nn.Linear`` is."""


def fold_norms(graph: EditedGraph) -> None:
    """Fold each batch norm that follows a convolution or dense layer into its weight and bias.

    The steps are those of the exporter for weights that are constant, in the same order, so that a file whose widths
    are fixed has the same weights, to the last bit, as the exported smaller network.
    """
    makers = graph.makers()
    for norm in [node for node in graph.nodes if node.op_type == "BatchNormalization"]:
        layer = makers.get(norm.input[0])
        if layer is None or layer.op_type not in _OUTPUT_AXIS or len(graph.users(norm.input[0])) > 1:
            continue
        attributes = {attribute.name: attribute for attribute in layer.attribute}
        is_grouped = layer.op_type == "ConvTranspose" and "group" in attributes and attributes["group"].i > 1
        if is_grouped or (layer.op_type == "Gemm" and not attributes["transB"].i):
            continue
        _fold(graph, norm, layer)


def _fold(graph: EditedGraph, norm: onnx.NodeProto, layer: onnx.NodeProto) -> None:
    """W gamma / sqrt(var + eps), and (b - mean) gamma / sqrt(var + eps) + beta."""
    _, gamma, beta, mean, var = norm.input
    epsilon = next((attribute.f for attribute in norm.attribute if attribute.name == "epsilon"), 1e-5)
    deviation = graph.add("Sqrt", [graph.add("Add", [var, graph.constant(epsilon, np.float32)])])
    factor = graph.add("Div", [gamma, deviation])
    axis = _OUTPUT_AXIS[layer.op_type]
    num_axes = 2 if layer.op_type == "Gemm" else 2 + len(next(a.ints for a in layer.attribute if a.name == "dilations"))
    shape = graph.constant([-1 if other == axis else 1 for other in range(num_axes)])
    weight = graph.add("Mul", [layer.input[1], graph.add("Reshape", [factor, shape])])
    bias = _bias_of(graph, layer)
    centred = graph.add("Neg", [mean]) if bias is None else graph.add("Sub", [bias, mean])
    shift = graph.add("Add", [graph.add("Mul", [centred, factor]), beta])
    inputs = [layer.input[0], weight, shift]
    graph.remove(norm)
    del layer.input[:], layer.output[:]
    layer.input.extend(inputs)
    layer.output.append(norm.output[0])


def _bias_of(graph: EditedGraph, layer: onnx.NodeProto) -> str | None:
    """The bias of a layer; None if it has none, or the zeros that the exporter gives a convolution without one."""
    if len(layer.input) < 3 or not layer.input[2]:
        return None
    maker = graph.makers().get(layer.input[2])
    return None if maker is not None and maker.op_type == "Expand" else layer.input[2]


def join_slices(graph: EditedGraph) -> None:
    """Write a slice of a slice, along other axes, as one slice, which copies once."""
    for node in [node for node in graph.nodes if node.op_type == "Slice"]:
        inner = graph.makers().get(node.input[0])
        if inner is None or inner.op_type != "Slice" or len(graph.users(node.input[0])) > 1:
            continue
        axes = [_constants(graph, each.input[3]) for each in (inner, node)]
        if None in axes or set(axes[0] or ()) & set(axes[1] or ()):
            continue
        both = [graph.add("Concat", pair, axis=0) for pair in zip(inner.input[1:], node.input[1:], strict=True)]
        source = inner.input[0]
        graph.remove(inner)
        del node.input[:]
        node.input.extend([source, *both])


def _constants(graph: EditedGraph, name: str) -> tuple[int, ...] | None:
    return tuple(numpy_helper.to_array(graph.initial[name]).tolist()) if name in graph.initial else None
