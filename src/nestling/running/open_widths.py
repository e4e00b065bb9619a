"""A network with open widths: each call runs at numbers of units that were set before it and may be symbolic."""

import itertools
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from nestling.errors import ArgumentError
from nestling.reading import Cut, Group, Holders
from nestling.running.layers import plain_name
from nestling.running.nested import Nested
from nestling.running.runner import set_for_a_while


class OpenWidths(nn.Module):
    """The plain network at ``base``, of which each call keeps as many units of each group as ``at`` says, or all.

    ``tables`` has, by the plain name of a tensor, its values (rows, *shape) in networks whose values are not a part of
    the values at ``base``, such as the statistics of norms; each call takes one row.
    """

    def __init__(self, nested: Nested, base: Cut, tables: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.network = nested.extracted(base)
        self._sizes = nested.open_sizes(self.network, base)
        self._holders = Holders(self.network)
        self._table_names = dict(zip(tables, (f"table_{number}" for number in range(len(tables))), strict=True))
        for name, buffer in self._table_names.items():
            self.register_buffer(buffer, tables[name])
        self._parts = axes_of(nested, self._holders.canonical)
        self._units: Mapping[str, Any] = {group.name: group.size for group in nested.groups.free if group.slices}
        self._row: Any = 1

    @contextmanager
    def at(self, units: Mapping[str, Any], row: Any = 1) -> Iterator[None]:  # noqa: ANN401
        """Keep these numbers of units, by group, and take this row of the tables, counted from 1, inside the block."""
        before = self._units, self._row
        self._units, self._row = units, row
        try:
            yield
        finally:
            self._units, self._row = before

    def in_row(self, table: Tensor) -> Tensor:
        """The row that this call takes of a table."""
        return table.select(0, self._row - 1)

    def forward(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        """Run the network on the parts of its tensors."""
        smaller = self.tensors()
        with set_for_a_while(self._sizes(self._units, smaller)), self._holders.replaced(smaller):
            return self.network(*args, **kwargs)

    def tensors(self) -> dict[str, Tensor]:
        """The tensors that differ from those at ``base``, by their plain names."""
        held = self._holders.tensors()
        smaller = {name: self.in_row(getattr(self, buffer)) for name, buffer in self._table_names.items()}
        for (name, axis), parts in self._parts.items():
            smaller[name] = kept_of(smaller.get(name, held[name]), axis, parts, self._units)
        return smaller


@dataclass(frozen=True)
class Part:
    """Consecutive positions of an axis: ``outer`` times the ``units`` of a group, each with ``inner`` positions.

    Without a group, all of the positions stay.
    """

    start: int
    length: int
    group: str | None = None
    outer: int = 1
    units: int = 0
    inner: int = 1


def kept_of(tensor: Tensor, axis: int, parts: Sequence[Part], units: Mapping[str, Any]) -> Tensor:
    """The positions of an axis that stay when each group keeps this many units."""
    pieces = []
    for part in parts:
        if part.group is None:
            pieces.append(tensor.narrow(axis, part.start, part.length))
        elif part.outer == 1:
            pieces.append(tensor.narrow(axis, part.start, units[part.group] * part.inner))
        else:
            shape = (*tensor.shape[:axis], part.outer, part.units, part.inner, *tensor.shape[axis + 1 :])
            whole = tensor.narrow(axis, part.start, part.length).reshape(shape)
            pieces.append(whole.narrow(axis + 1, 0, units[part.group]).flatten(axis, axis + 2))
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces, axis)


def axes_of(nested: Nested, names: Collection[str]) -> dict[tuple[str, int], list[Part]]:
    """The parts of every axis that a group cuts, by the plain name of its tensor, of the tensors with these names."""
    owners: dict[tuple[str, int], list[tuple[Group, Tensor]]] = defaultdict(list)
    for group in nested.groups.free:
        for piece in group.slices:
            name = plain_name(piece.tensor)
            if name in names:
                owners[name, piece.axis].append((group, piece.rows))
    shapes = {plain_name(name): tensor.shape for name, tensor in nested.tensors().items()}
    return {(name, axis): _parts(name, shapes[name][axis], pieces) for (name, axis), pieces in owners.items()}


def _parts(name: str, size: int, owners: Sequence[tuple[Group, Tensor]]) -> list[Part]:
    owner, unit = torch.full((size,), -1), torch.full((size,), -1)
    for number, (group, rows) in enumerate(owners):
        if bool((owner[rows.reshape(-1)] >= 0).any()):
            raise _not_in_one_file(name, "two groups cut the same rows")
        owner[rows.reshape(-1)] = number
        unit[rows.reshape(-1)] = torch.arange(group.size).repeat_interleave(rows.shape[1])
    starts = [0, *(1 + (owner[1:] != owner[:-1]).nonzero().flatten()).tolist(), size]
    parts = []
    for start, stop in itertools.pairwise(starts):
        number = int(owner[start])
        parts.append(_part(name, start, unit[start:stop], owners[number][0] if number >= 0 else None))
    return parts


def _part(name: str, start: int, unit: Tensor, group: Group | None) -> Part:
    if group is None:
        return Part(start, len(unit))
    changes = (unit != unit[0]).nonzero()
    inner = int(changes[0]) if len(changes) else len(unit)
    outer = len(unit) // (group.size * inner)
    if not torch.equal(torch.arange(group.size).repeat_interleave(inner).repeat(outer), unit):
        raise _not_in_one_file(name, f"the rows of group {group.name} are not in the order of its units")
    return Part(start, len(unit), group.name, outer, group.size, inner)


def _not_in_one_file(name: str, why: str) -> ArgumentError:
    return ArgumentError("cuts", f"cuts of {name}", f"of tensors that one file can slice: {why}", "Export each cut.")
