"""What runners need from the labels of a traced graph, once the groups are known: its plan, and sizes in code."""

from collections.abc import Mapping

import numpy as np

from nestling.reading.attribute_sizes import Attributes, attributes_behind
from nestling.reading.group import Groups
from nestling.reading.labels import Ids
from nestling.reading.plan import Axis, BakedSize, Branch, Plan, PlannedSize
from nestling.reading.trace import Trace
from nestling.torch_parts import pytree


def make_plan(traced: Trace, groups: Groups, branches: Mapping[str, Branch]) -> Plan:
    """The plan of a graph that is cut along these groups."""
    graph, owners, axes = traced.graph, _Owners(traced, groups), dict[tuple[tuple[int, ...], bytes], Axis]()

    def axis_of(ids: Ids) -> Axis:
        key = ids.shape, ids.tobytes()
        if key not in axes:
            axes[key] = owners.axis(ids)
        return axes[key]

    args, kwargs = pytree.tree_unflatten(list(range(graph.in_spec.num_leaves)), graph.in_spec)
    return Plan(
        graph=graph.graph,
        tensor_names=graph.tensor_names,
        constants=graph.constants,
        inputs=(args, kwargs),
        outputs=pytree.tree_unflatten(list(range(graph.out_spec.num_leaves)), graph.out_spec),
        sizes=[PlannedSize(size.node, size.place, axis_of(size.ids)) for size in traced.sizes],
        branches=branches,
    )


def attribute_sizes(traced: Trace, groups: Groups) -> list[BakedSize]:
    """The attributes from which the code of modules takes sizes that change when these groups are cut.

    Where a size is a product of attributes, such as heads times their size, it is the one that is never used alone for
    a size that stays. An attribute that would have to change and to stay is left out.
    """
    owners, found, staying = _Owners(traced, groups), dict[str, BakedSize](), set[str]()
    fewest = {group.name: group.units(group.num_always) for group in groups}
    axes = {(size.node, size.place): owners.axis(size.ids) for size in traced.sizes}
    axes = {place: axis for place, axis in axes.items() if axis.kept(fewest) < axis.size}
    products: list[tuple[Attributes, Axis]] = []
    for node in traced.graph.nodes:
        for place, attributes in attributes_behind(node).items():
            axis = axes.get((node, place))
            if axis is not None and len(attributes) > 1:
                products.append((attributes, axis))
            elif axis is not None:
                found.setdefault(attributes[0][0], BakedSize(*attributes[0], axis))
            elif len(attributes) == 1:
                staying.add(attributes[0][0])
    for attributes, axis in products:
        changing = {name: BakedSize(name, value, axis) for name, value in attributes if name not in staying}
        if len(changing) == 1 and not changing.keys() & found.keys():
            found |= changing
    return [size for name, size in found.items() if name not in staying]


class _Owners:
    """The group and the unit that each label belongs to, if a cut can remove the label."""

    def __init__(self, traced: Trace, groups: Groups) -> None:
        self.names = [group.name for group in groups]
        self.root = traced.labels.components()
        self.owner = np.full(len(self.root), -1)
        self.unit = np.zeros(len(self.root), dtype=np.int64)
        for number, group in enumerate(groups):
            for piece in group.slices if group.free else ():
                roots = self.root[traced.origins[piece.tensor, piece.axis][piece.rows.numpy()]]
                self.owner[roots] = number
                self.unit[roots] = np.arange(group.size)[:, None]

    def axis(self, ids: Ids) -> Axis:
        """The axis that has these labels, (positions,) or (positions, labels per position)."""
        roots = self.root[ids].reshape(len(ids), -1)
        parts: dict[tuple[int, ...], list[list[int]]] = {}
        for owners, units in zip(self.owner[roots], self.unit[roots], strict=True):
            numbers = sorted(set(owners.tolist()))
            parts.setdefault(tuple(numbers), []).append([int(units[owners == number].min()) for number in numbers])
        always = sum(len(rows) for numbers, rows in parts.items() if numbers[0] < 0)
        units_by_numbers = {numbers: np.array(sorted(rows)).T for numbers, rows in parts.items() if numbers[0] >= 0}
        units_by_name = (
            dict(zip((self.names[number] for number in numbers), units, strict=True))
            for numbers, units in units_by_numbers.items()
        )
        return Axis(len(ids), always, tuple(units_by_name))
