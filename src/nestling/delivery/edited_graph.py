"""An ONNX model that is edited: nodes are added in any order and written back in an order in which they can run."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator


class EditedGraph:
    """The graph of a model, with its nodes as a list and the node that makes each value; ``write`` puts it back."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = model
        self.nodes: list[onnx.NodeProto] = list(model.graph.node)
        self.initial = {tensor.name: tensor for tensor in model.graph.initializer}
        self._count = 0

    def makers(self) -> dict[str, onnx.NodeProto]:
        """The node that makes each value."""
        return {name: node for node in self.nodes for name in node.output}

    def users(self, name: str) -> list[onnx.NodeProto]:
        """The nodes that read a value."""
        return [node for node in self.nodes if name in inputs_of(node)]

    def new_name(self) -> str:
        """A name that no value has."""
        self._count += 1
        return f"open_{self._count}"

    def add(self, kind: str, inputs: Sequence[str], **attributes: Any) -> str:  # noqa: ANN401
        """Add a node with one output, and give its name."""

        name = self.new_name()
        self.nodes.append(helper.make_node(kind, inputs, [name], **attributes))
        return name

    def constant(self, value: Any, dtype: Any = np.int64) -> str:  # noqa: ANN401
        """Add a constant, and give its name."""

        name = self.new_name()
        self.initial[name] = numpy_helper.from_array(np.asarray(value, dtype), name)
        return name

    def remove(self, node: onnx.NodeProto) -> None:
        """Take a node out."""
        self.nodes = [other for other in self.nodes if other is not node]

    def branch(self, node: onnx.NodeProto) -> onnx.GraphProto:
        """A branch of an ``If`` with one node, whose inputs are values outside of it."""

        output = helper.make_tensor_value_info(node.output[0], TensorProto.FLOAT, None)
        return helper.make_graph([node], self.new_name(), [], [output])

    def sizes_at(self, names: Sequence[str], rows: Sequence[Mapping[str, int]]) -> dict[str, list[int]]:
        """The first size of some values, which follow from sizes of dimensions alone, at each row of those."""

        order = self._before(names)
        read = {name for node in order for name in inputs_of(node)}
        inputs = [value for value in self.model.graph.input if value.name in read]
        outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names]
        constants = [tensor for name, tensor in self.initial.items() if name in read]
        graph = helper.make_graph(order, "sizes", inputs, outputs, constants)
        model = helper.make_model(graph, opset_imports=[opset for opset in self.model.opset_import if not opset.domain])
        evaluator = ReferenceEvaluator(model)
        given = [{value.name: np.zeros(row[value.name], np.uint8) for value in inputs} for row in rows]
        results: list[Any] = [evaluator.run(None, sizes) for sizes in given]
        return {name: [len(values[number]) for values in results] for number, name in enumerate(names)}

    def write(self) -> None:
        """Put nodes and constants that are used back into the model."""
        order = self._before([value.name for value in self.model.graph.output])
        del self.model.graph.node[:], self.model.graph.initializer[:], self.model.graph.value_info[:]
        self.model.graph.node.extend(order)
        read = {name for node in order for name in inputs_of(node)} | {value.name for value in self.model.graph.output}
        self.model.graph.initializer.extend(tensor for name, tensor in self.initial.items() if name in read)

    def _before(self, names: Iterable[str]) -> list[onnx.NodeProto]:
        """The nodes that some values need, each after those that it needs itself."""
        makers, done, order = self.makers(), set[int](), list[onnx.NodeProto]()
        waiting = [(makers[name], False) for name in reversed(list(names)) if name in makers]
        while waiting:
            node, is_ready = waiting.pop()
            if is_ready:
                order.append(node)
            elif id(node) not in done:
                done.add(id(node))
                waiting.append((node, True))
                waiting += [(makers[name], False) for name in reversed(inputs_of(node)) if name in makers]
        return order


def inputs_of(node: onnx.NodeProto) -> list[str]:
    """The values that a node reads, those that its branches read among them."""
    inside = [inner for attribute in node.attribute if attribute.HasField("g") for inner in attribute.g.node]
    return [*node.input, *(name for inner in inside for name in inputs_of(inner))]
