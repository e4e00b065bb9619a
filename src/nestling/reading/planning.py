"""Makes the plan of a traced graph: what the runner needs of the labels, once the groups are known."""

from collections.abc import Mapping

import numpy as np

from nestling.reading.group import Groups
from nestling.reading.labels import Ids
from nestling.reading.plan import Axis, Branch, Plan, PlannedSize
from nestling.reading.trace import Trace
from nestling.torch_parts import pytree


def make_plan(found: Trace, groups: Groups, branches: Mapping[str, Branch]) -> Plan:
    """The plan of a graph that is cut along these groups."""
    source, owners, known = found.graph, _Owners(found, groups), dict[tuple[tuple[int, ...], bytes], Axis]()

    def axis_of(ids: Ids) -> Axis:
        key = ids.shape, ids.tobytes()
        if key not in known:
            known[key] = owners.axis(ids)
        return known[key]

    args, kwargs = pytree.tree_unflatten(list(range(source.in_spec.num_leaves)), source.in_spec)
    return Plan(
        graph=source.graph,
        tensor_names=source.tensor_names,
        constants=source.constants,
        inputs=(args, kwargs),
        outputs=pytree.tree_unflatten(list(range(source.out_spec.num_leaves)), source.out_spec),
        sizes=[PlannedSize(size.node, size.place, axis_of(size.ids)) for size in found.sizes],
        branches=branches,
    )


class _Owners:
    """The group and the unit that each label belongs to, if a cut can take it."""

    def __init__(self, found: Trace, groups: Groups) -> None:
        self.names = [group.name for group in groups]
        self.root = found.labels.components()
        self.owner = np.full(len(self.root), -1)
        self.unit = np.zeros(len(self.root), dtype=np.int64)
        for number, group in enumerate(groups):
            for piece in group.slices if group.free else ():
                roots = self.root[found.origins[piece.tensor, piece.axis][piece.rows.numpy()]]
                self.owner[roots] = number
                self.unit[roots] = np.arange(group.size)[:, None]

    def axis(self, ids: Ids) -> Axis:
        """An axis by its labels, (positions,) or (positions, labels of each)."""
        roots = self.root[ids].reshape(len(ids), -1)
        parts: dict[tuple[int, ...], list[list[int]]] = {}
        for owners, units in zip(self.owner[roots], self.unit[roots], strict=True):
            own = sorted(set(owners.tolist()))
            parts.setdefault(tuple(own), []).append([int(units[owners == number].min()) for number in own])
        always = sum(len(rows) for own, rows in parts.items() if own[0] < 0)
        free = {own: np.array(sorted(rows)).T for own, rows in parts.items() if own[0] >= 0}
        named = [dict(zip((self.names[number] for number in own), rows, strict=True)) for own, rows in free.items()]
        return Axis(len(ids), always, tuple(named))
