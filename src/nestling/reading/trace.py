"""Walks the graph once, node by node, and lets the rule of each operation say how labels move and unite."""

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import fx

from nestling.reading.graph import Graph, hint, shape_of
from nestling.reading.labels import Ids, Labels
from nestling.reading.traced_value import Factor, Value
from nestling.torch_parts import OpOverload, schema_of

Result = Value | tuple[Value, ...] | None
Rule = Callable[["Call"], Result]


@dataclass
class Trace:
    """The labels on a graph: those given to each axis of a parameter or buffer, and those that every node carries."""

    graph: Graph
    used: set[str]
    labels: Labels = field(default_factory=Labels)
    origins: dict[tuple[str, int], Ids] = field(default_factory=dict)
    values: dict[fx.Node, Result] = field(default_factory=dict)
    tensors: dict[str, Value] = field(default_factory=dict)
    sizes: list["SizeArgument"] = field(default_factory=list)


@dataclass(frozen=True)
class SizeArgument:
    """A number at ``place`` in a call's arguments that is the size of a labelled axis and shrinks with it.

    At a cut the number is multiplied by the share of ``ids`` that is kept.
    """

    node: fx.Node
    place: tuple[str | int, ...]
    ids: Ids


def trace(graph: Graph, rules: dict[str, Rule]) -> Trace:
    """Label every parameter and buffer axis of the graph and carry the labels through it."""
    traced = Trace(graph, used={name for node, name in graph.tensor_names.items() if node.users})
    for node in graph.nodes:
        traced.values[node] = _visit(traced, node, rules)
    return traced


def _visit(traced: Trace, node: fx.Node, rules: dict[str, Rule]) -> Result:
    if node.op == "placeholder":
        return _placeholder(traced, node)
    if node.op == "output":
        for value in _tensors(traced, node):
            _freeze_value(traced.labels, value, "returned to the caller")
        return None
    if node.target is operator.getitem:
        return _item(traced.values[node.args[0]], node.args[1])  # type: ignore[index]
    if not isinstance(node.target, OpOverload):
        for value in _tensors(traced, node):
            _freeze_value(
                traced.labels, value, f"{node.target} is an operation without a rule{traced.graph.where(node)}"
            )
        return _unlabelled(node)
    call = Call(traced, node)
    rule = rules.get(call.name) or rules.get(call.name.removesuffix("_"))
    if rule is None:
        return call.unknown()
    return rule(call)


def _placeholder(traced: Trace, node: fx.Node) -> Result:
    shape = shape_of(node)
    if shape is None:
        return None
    name = traced.graph.tensor_names.get(node)
    if name is None:
        return Value(shape, from_input=node not in traced.graph.constants)
    if name in traced.tensors:
        return traced.tensors[name]
    factors = []
    for axis, size in enumerate(shape):
        if size > 1:
            ids = traced.labels.new(size)
            traced.origins[name, axis] = ids
            factors.append(Factor((axis,), ids))
    value = Value(shape, tuple(factors), from_input=False)
    if name not in traced.used:
        _freeze_value(traced.labels, value, "not used on the way from the example to the output")
    traced.tensors[name] = value
    return value


def _item(value: Result, index: Any) -> Result:  # noqa: ANN401
    return value[index] if isinstance(value, tuple) and isinstance(index, int) else None


def _tensors(traced: Trace, node: fx.Node) -> list[Value]:
    values: list[Value] = []
    for source in node.all_input_nodes:
        value = traced.values[source]
        values.extend(value if isinstance(value, tuple) else [value] if value is not None else [])
    return values


def _freeze_value(labels: Labels, value: Value, reason: str) -> None:
    for factor in value.factors:
        labels.freeze(factor.ids, reason)


def _unlabelled(node: fx.Node) -> Result:
    """The outputs of a node, without labels."""
    output = node.meta.get("val")
    if isinstance(output, torch.Tensor):
        return Value(_example_shape(output))
    if isinstance(output, tuple | list):
        return tuple(Value(_example_shape(item)) if isinstance(item, torch.Tensor) else None for item in output)  # type: ignore[misc]
    return None


def _example_shape(tensor: torch.Tensor) -> tuple[int, ...]:
    """The shape of a tensor of the graph, with the example's sizes where they are open."""
    return tuple(int(hint(size)) for size in tensor.shape)


class Call:
    """One operation of the graph as a rule sees it: its arguments by name, its output shape, and what a rule may do."""

    def __init__(self, traced: Trace, node: fx.Node) -> None:
        self.traced = traced
        self.labels = traced.labels
        self.node = node
        self.schema = schema_of(node.target)
        self.name = self.schema.name.removeprefix("aten::")
        parameters = self.schema.arguments
        self.arguments = {
            parameter.name: parameter.default_value for parameter in parameters if parameter.has_default_value()
        }
        positional = {parameter.name: argument for parameter, argument in zip(parameters, node.args, strict=False)}
        self.arguments |= positional | dict(node.kwargs)

    def value(self, name: str) -> Value:
        """The tensor argument of that name."""
        value = self.optional(name)
        assert value is not None
        return value

    def optional(self, name: str) -> Value | None:
        """The tensor argument of that name, or None if the argument was left out or is a number."""
        argument = self.arguments.get(name)
        value = self.traced.values[argument] if isinstance(argument, fx.Node) else None
        return value if isinstance(value, Value) else None

    def tensors(self, name: str) -> list[Value]:
        """The tensors in the list argument of that name."""
        values = (self.traced.values[argument] for argument in self.arguments[name])
        return [value for value in values if isinstance(value, Value)]

    def all_tensors(self) -> list[Value]:
        """Every input tensor of the operation."""
        return _tensors(self.traced, self.node)

    def number(self, name: str) -> int:
        """The integer argument of that name."""
        return int(hint(self.arguments[name]))

    def numbers(self, name: str) -> list[int]:
        """The list of integers of that name; a single integer counts as a list."""
        argument = self.arguments[name]
        return [int(hint(number)) for number in (argument if isinstance(argument, Sequence) else [argument])]

    def axis(self, name: str, ndim: int) -> int:
        """The axis argument of that name, counted from the front."""
        return self.number(name) % ndim if ndim else 0

    def axes(self, name: str, ndim: int) -> list[int]:
        """The axes that an argument names; all axes if it names none."""
        if self.arguments.get(name) in (None, []):
            return list(range(ndim))
        return [axis % ndim for axis in self.numbers(name)]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the (first) output."""
        shape = shape_of(self.node)
        assert shape is not None
        return shape

    def shapes(self) -> list[tuple[int, ...]]:
        """Shapes of all outputs."""
        return [_example_shape(output) for output in self.node.meta["val"]]

    def output(self, factors: Sequence[Factor | None], shape: tuple[int, ...] | None = None) -> Value:
        """An output tensor with these factors; it depends on the user's input if any argument does."""
        from_input = any(value.from_input for value in self.all_tensors()) or not self.all_tensors()
        return Value(shape or self.shape, tuple(factor for factor in factors if factor is not None), from_input)

    def passed(self, value: Value) -> Value:
        """An output with the shape and labels of ``value``."""
        return self.output(value.factors, value.shape)

    def along(self, value: Value, axis: int) -> Ids | None:
        """Labels along one axis; where it was split off jointly with others, its positions are cut whole."""
        factor = value.factor(axis)
        if factor is None:
            return None
        if len(factor.axes) == 1:
            return factor.ids
        rows = rows_along(factor, axis)
        self.labels.unite(np.broadcast_to(rows[:, :1], rows.shape), rows)
        return rows[:, 0]

    def single(self, value: Value, axis: int) -> Factor | None:
        """The labels that ``along`` gives, as a factor of this axis alone."""
        ids = self.along(value, axis)
        return None if ids is None else Factor((axis,), ids)

    def settle(self, value: Value, axis: int, reason: str) -> Value:
        """Keep the size of an axis: one split off jointly leaves cutting to the other axes, any other is frozen."""
        factor = value.factor(axis)
        if factor is None:
            return value
        other_axes = tuple(other for other in factor.axes if other != axis)
        if not other_axes:
            self.labels.freeze(factor.ids, self.because(reason))
            return value.without(factor)
        position = factor.axes.index(axis)
        first: Ids = np.take(factor.ids, 0, axis=position)
        self.labels.unite(np.broadcast_to(np.expand_dims(first, position), factor.ids.shape), factor.ids)
        return replace(value.without(factor), factors=(*value.without(factor).factors, Factor(other_axes, first)))

    def unite_along(self, left: Value, left_axis: int, right: Value, right_axis: int) -> Ids | None:
        """Unite two axes that are paired element by element; an axis of fixed size freezes the other."""
        lines = self.along(left, left_axis), self.along(right, right_axis)
        return self.unite_lines(*lines, "is paired with an axis of fixed size")

    def unite_lines(self, left: Ids | None, right: Ids | None, reason: str) -> Ids | None:
        """Unite the labels along two axes; if only one axis has labels, they are frozen for ``reason``."""
        if left is not None and right is not None:
            self.labels.unite(left, right)
            return left
        for ids in (left, right):
            if ids is not None:
                self.freeze(ids, reason)
        return None

    def freeze(self, ids: Ids, reason: str) -> None:
        """Never cut these labels, because of this operation."""
        self.labels.freeze(ids, self.because(reason))

    def freeze_all(self, reason: str) -> None:
        """Freeze the labels of every input."""
        for value in self.all_tensors():
            for factor in value.factors:
                self.freeze(factor.ids, reason)

    def unknown(self) -> Result:
        """What an operation without a rule does: it freezes its inputs, and its outputs carry no label."""
        self.freeze_all("is an operation without a rule")
        return _unlabelled(self.node)

    def because(self, reason: str) -> str:
        """The reason with the operation and the line of the user's code it came from."""
        return f"{self.name} {reason}{self.traced.graph.where(self.node)}"

    def sizes(self, name: str, factor: Factor, first: int = 0) -> None:
        """Remember that a list of sizes, which starts with axis ``first``, contains those of a factor's axes."""
        for axis in factor.axes:
            self.size((name, axis - first), rows_along(factor, axis))

    def size(self, place: tuple[str | int, ...], ids: Ids | None) -> None:
        """Remember that the number at ``place`` is the size of an axis with these labels."""
        if ids is not None and place[0] in self.arguments:
            self.traced.sizes.append(SizeArgument(self.node, place, ids))


def rows_along(factor: Factor, axis: int) -> Ids:
    """The labels at each position of an axis: one, or a row of them if other axes were split off with this one."""
    if len(factor.axes) == 1:
        return factor.ids
    position = factor.axes.index(axis)
    return np.moveaxis(factor.ids, position, 0).reshape(factor.ids.shape[position], -1)
