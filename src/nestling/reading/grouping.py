"""From the labels on a graph to groups: units that occur in the same places form one group."""

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
import torch

from nestling.reading.group import Group, Slice
from nestling.reading.labels import Ids
from nestling.reading.options import Kind
from nestling.reading.plan import Branch
from nestling.reading.trace import Trace

Place = tuple[str, int]


def find_groups(found: Trace) -> list[Group]:
    """The groups of a traced network, free and frozen, in the order their first tensor is used."""
    solved = _Solved.of(found)
    return [*_free_groups(found, solved), *_frozen_groups(found, solved)]


def layer_groups(lists: list[list[Branch]]) -> list[Group]:
    """A group of residual branches for each list of them, the first of which are kept longest."""
    several = len(lists) > 1
    return [
        Group(
            name=f"layers.{number}" if several else "layers",
            kind="layer",
            size=len(branches),
            slices=(),
            drops=tuple(branch.add.name for branch in branches),
        )
        for number, branches in enumerate(lists)
    ]


@dataclass(frozen=True)
class _Solved:
    """The solved unions: the root of every id, and what is known of each root."""

    root: Ids
    reason: dict[int, str]
    marked: dict[str, set[int]]

    @classmethod
    def of(cls, found: Trace) -> "_Solved":
        root = found.labels.components()
        reason: dict[int, str] = {}
        for anchor, text in found.labels.reasons.items():
            reason.setdefault(int(root[anchor]), text)
        names = ("head", "path", "channel", "inexact", "read")
        marked = {name: set(root[: found.labels.count][found.labels.marked(name)].tolist()) for name in names}
        marked["stream"] = set(root[found.labels.residual_ids()].tolist())
        return cls(root, reason, marked)


def _free_groups(found: Trace, solved: _Solved) -> list[Group]:
    """Units with the same number of rows in the same places, in the order of their rows."""
    rows: dict[int, dict[Place, list[int]]] = defaultdict(dict)
    for place, ids in found.origins.items():
        for row, root in enumerate(solved.root[ids].tolist()):
            rows[root].setdefault(place, []).append(row)
    alike: dict[tuple[tuple[Place, int], ...], list[int]] = defaultdict(list)
    for root, places in rows.items():
        if root not in solved.reason:
            alike[tuple((place, len(owned)) for place, owned in places.items())].append(root)
    reads = found.labels.marked("read")
    groups = []
    for signature, roots in alike.items():
        slices = tuple(
            Slice(
                tensor=place[0],
                axis=place[1],
                rows=torch.tensor([rows[root][place] for root in roots]),
                reads=bool(reads[found.origins[place]].any()),
            )
            for place, _ in signature
        )
        if len(roots) > 1:
            groups.append(_group(solved, roots, slices))
    return groups


def _group(solved: _Solved, roots: list[int], slices: tuple[Slice, ...]) -> Group:
    def marked(name: str) -> bool:
        return not solved.marked[name].isdisjoint(roots)

    written = next((s for s in slices if not s.reads), slices[0])
    kinds: tuple[Kind, ...] = ("path", "head", "channel")
    return Group(
        name=_module_path(written.tensor),
        kind=next((kind for kind in kinds if marked(kind)), "neuron"),
        size=len(roots),
        slices=slices,
        exact=not marked("inexact"),
        inner=not marked("stream"),
    )


def _frozen_groups(found: Trace, solved: _Solved) -> list[Group]:
    """What can't be cut and why. Axes that only read the network's input, and kernels, are not worth a word."""
    silent = found.labels.marked("read") | found.labels.marked("kernel")
    alike: dict[tuple[int, ...], list[Place]] = defaultdict(list)
    for place, ids in found.origins.items():
        roots = solved.root[ids]
        stuck = any(r in solved.reason for r in roots.tolist()) or len(np.unique(roots)) == 1
        if stuck and not silent[ids].all():
            alike[len(ids), *np.unique(roots).tolist()].append(place)
    return [_frozen(found, solved, roots, places) for (_, *roots), places in alike.items()]


def _frozen(found: Trace, solved: _Solved, roots: list[int], places: list[Place]) -> Group:
    reasons = sorted({solved.reason[root] for root in roots if root in solved.reason})
    rows = torch.arange(len(found.origins[places[0]])).unsqueeze(1)
    kinds: tuple[Kind, ...] = ("path", "head", "channel")
    return Group(
        name=_module_path(places[0][0]),
        kind=next((kind for kind in kinds if not solved.marked[kind].isdisjoint(roots)), "neuron"),
        size=len(rows),
        slices=tuple(Slice(name, axis, rows) for name, axis in places),
        frozen_because="; ".join(reasons) or "its units all depend on each other",
    )


def _module_path(tensor: str) -> str:
    return tensor.rpartition(".")[0] or tensor
