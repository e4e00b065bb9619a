"""Makes groups from the labels on a graph: units that occur in the same places form one group."""

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


def find_groups(traced: Trace) -> list[Group]:
    """The groups of a traced network, free and frozen, in the order their first tensor is used."""
    solved = _Solved.of(traced)
    return [*_free_groups(traced, solved), *_frozen_groups(traced, solved)]


def layer_groups(lists: list[list[Branch]]) -> list[Group]:
    """One group per list of residual branches; the first branches of a list are kept longest."""
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
    """The solved unions: the root of every id, why a root is frozen, and how it is used."""

    root: Ids
    reason: dict[int, str]
    marked: dict[str, set[int]]

    @classmethod
    def of(cls, traced: Trace) -> "_Solved":
        root = traced.labels.components()
        reason: dict[int, str] = {}
        for anchor, text in traced.labels.reasons.items():
            reason.setdefault(int(root[anchor]), text)
        names = ("head", "path", "channel", "inexact", "read")
        marked = {name: set(root[: traced.labels.count][traced.labels.marked(name)].tolist()) for name in names}
        marked["stream"] = set(root[traced.labels.residual_ids()].tolist())
        return cls(root, reason, marked)


def _free_groups(traced: Trace, solved: _Solved) -> list[Group]:
    """Units with the same number of rows in the same places, in the order of their rows."""
    rows: dict[int, dict[Place, list[int]]] = defaultdict(dict)
    for place, ids in traced.origins.items():
        for row, root in enumerate(solved.root[ids].tolist()):
            rows[root].setdefault(place, []).append(row)
    roots_by_signature: dict[tuple[tuple[Place, int], ...], list[int]] = defaultdict(list)
    for root, by_place in rows.items():
        if root not in solved.reason:
            roots_by_signature[tuple((place, len(place_rows)) for place, place_rows in by_place.items())].append(root)
    reads = traced.labels.marked("read")
    groups = []
    for signature, roots in roots_by_signature.items():
        slices = tuple(
            Slice(
                tensor=place[0],
                axis=place[1],
                rows=torch.tensor([rows[root][place] for root in roots]),
                reads=bool(reads[traced.origins[place]].any()),
            )
            for place, _ in signature
        )
        if len(roots) > 1:
            groups.append(_group(solved, roots, slices))
    return groups


def _group(solved: _Solved, roots: list[int], slices: tuple[Slice, ...]) -> Group:
    def marked(name: str) -> bool:
        return not solved.marked[name].isdisjoint(roots)

    written = next((piece for piece in slices if not piece.reads), slices[0])
    kinds: tuple[Kind, ...] = ("path", "head", "channel")
    return Group(
        name=_module_path(written.tensor),
        kind=next((kind for kind in kinds if marked(kind)), "neuron"),
        size=len(roots),
        slices=slices,
        exact=not marked("inexact"),
        inner=not marked("stream"),
    )


def _frozen_groups(traced: Trace, solved: _Solved) -> list[Group]:
    """Groups that can't be cut, and why. Axes that only read the network's input, and kernels, are left out."""
    silent = traced.labels.marked("read") | traced.labels.marked("kernel")
    places_by_roots: dict[tuple[int, ...], list[Place]] = defaultdict(list)
    for place, ids in traced.origins.items():
        roots = solved.root[ids]
        frozen = any(root in solved.reason for root in roots.tolist()) or len(np.unique(roots)) == 1
        if frozen and not silent[ids].all():
            places_by_roots[len(ids), *np.unique(roots).tolist()].append(place)
    return [_frozen(traced, solved, roots, places) for (_, *roots), places in places_by_roots.items()]


def _frozen(traced: Trace, solved: _Solved, roots: list[int], places: list[Place]) -> Group:
    reasons = sorted({solved.reason[root] for root in roots if root in solved.reason})
    rows = torch.arange(len(traced.origins[places[0]])).unsqueeze(1)
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
