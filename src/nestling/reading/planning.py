"""Makes the plan of a traced graph: what the runner needs from the labels, once the groups are known."""

from collections.abc import Mapping

import numpy as np

from nestling.reading.group import Groups
from nestling.reading.labels import Ids
from nestling.reading.plan import Axis, Branch, Plan, PlannedSize
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
