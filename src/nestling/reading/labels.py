"""Labels for the elements of tensor axes, united wherever an operation needs them kept or cut together."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]


@dataclass
class Labels:
    """Hands out label ids and remembers which are united, which are frozen and why, and how they are used.

    Unions are only written down; ``components`` solves them all at once.
    """

    count: int = 0
    edges: list[tuple[Ids, Ids]] = field(default_factory=list)
    stream_edges: list[tuple[Ids, Ids]] = field(default_factory=list)
    reasons: dict[int, str] = field(default_factory=dict)
    marks: dict[str, list[Ids]] = field(default_factory=dict)
    grids: list[Ids] = field(default_factory=list)

    def new(self, size: int) -> Ids:
        """Fresh ids for an axis of ``size`` elements."""
        ids = np.arange(self.count, self.count + size, dtype=np.int64)
        self.count += size
        return ids

    def unite(self, left: Ids, right: Ids, *, stream: bool = False) -> None:
        """Keep or cut the elements of two arrays of one shape together; ``stream`` if a residual add asks for it."""
        if left is right:
            return
        (self.stream_edges if stream else self.edges).append((left.ravel(), right.ravel()))

    def freeze(self, ids: Ids, reason: str) -> None:
        """Never cut these ids, and remember why."""
        anchor = self.new(1)
        self.reasons[int(anchor[0])] = reason
        self.unite(np.broadcast_to(anchor, ids.shape), ids)

    def mark(self, ids: Ids, name: str) -> None:
        """Remember how these ids are used: a name such as ``read`` (by a contraction), ``head`` or ``inexact``."""
        self.marks.setdefault(name, []).append(ids.ravel())

    def marked(self, name: str) -> NDArray[np.bool_]:
        """For every id, whether it has the mark ``name``."""
        marked = np.zeros(self.count, dtype=bool)
        for ids in self.marks.get(name, ()):
            marked[ids] = True
        return marked

    def keep_rectangular(self, grid: Ids) -> None:
        """Remember a grid of ids, made by a reshape, that must stay rectangular: along some axis whole rows are cut."""
        self.grids.append(grid)

    def components(self) -> Ids:
        """For every id, the smallest id it is united with, once every grid has an axis along which it can be cut."""
        root = _solve(self.count, self.edges + self.stream_edges)
        while True:
            torn = [grid for grid in self.grids if not _cuttable(root[grid])]
            if not torn:
                return root
            for grid in torn:
                rows = np.moveaxis(grid, int(np.argmax(grid.shape)), 0).reshape(max(grid.shape), -1)
                self.unite(np.broadcast_to(rows[:, :1], rows.shape), rows)
            root = _solve(self.count, self.edges + self.stream_edges)

    def residual_ids(self) -> Ids:
        """Ids that only a residual add ties to other ids."""
        inner = _solve(self.count, self.edges)
        tied = [_differing(inner, left, right) for left, right in self.stream_edges]
        return np.concatenate([np.zeros(0, np.int64), *tied])


def _differing(root: Ids, left: Ids, right: Ids) -> Ids:
    apart = root[left] != root[right]
    return np.concatenate([left[apart], right[apart]])


def _cuttable(grid: Ids) -> bool:
    """Whether a grid has an axis with a single label at each position, over all other axes."""
    if (grid == grid.flat[0]).all():
        return True
    rows = (np.moveaxis(grid, axis, 0).reshape(size, -1) for axis, size in enumerate(grid.shape))
    return any((row == row[:, :1]).all() for row in rows)


def _solve(count: int, edges: list[tuple[Ids, Ids]]) -> Ids:
    """Connected components by repeated hooking of roots and halving of paths, all edges at once."""
    root = np.arange(count, dtype=np.int64)
    if not edges:
        return root
    left = np.concatenate([a for a, _ in edges])
    right = np.concatenate([b for _, b in edges])
    while True:
        low, high = np.minimum(root[left], root[right]), np.maximum(root[left], root[right])
        apart = low != high
        if not apart.any():
            return root
        left, right = left[apart], right[apart]
        np.minimum.at(root, high[apart], low[apart])
        while True:
            shorter = root[root]
            if (shorter == root).all():
                break
            root = shorter
