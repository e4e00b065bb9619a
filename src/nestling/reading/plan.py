"""A plan: how a graph runs at any cut, with the tensors behind its nodes; and how sizes in code follow the widths."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor, fx

from nestling.errors import ArgumentError
from nestling.reading.labels import Ids


@dataclass(frozen=True)
class Plan:
    """A graph to run: its placeholders are tensors of the module (by name), constants, and the caller's inputs.

    ``inputs`` are the arguments of a call, positional and by name, and ``outputs`` its result, each with numbers in
    place of the leaves. ``branches`` are the residual layers that can be dropped, by the name of their addition.
    """

    graph: fx.Graph
    tensor_names: Mapping[fx.Node, str]
    constants: Mapping[fx.Node, Tensor]
    inputs: tuple[tuple[Any, ...], dict[str, Any]]
    outputs: Any
    sizes: Sequence["PlannedSize"]
    branches: Mapping[str, "Branch"]


@dataclass(frozen=True)
class Branch:
    """The residual branch that ``add`` adds to ``skip``: the nodes and tensors that nothing else needs."""

    add: fx.Node
    skip: fx.Node
    nodes: frozenset[fx.Node]
    tensors: tuple[str, ...]


@dataclass(frozen=True)
class Axis:
    """The positions of an axis. No cut removes ``always`` of them; every other position is in one of the parts.

    A part has, for each of its groups, the unit each position belongs to. A position stays while one of its units does.
    """

    size: int
    always: int
    parts: tuple[Mapping[str, Ids], ...]

    def kept(self, units: Mapping[str, int]) -> int:
        """How many positions are kept when each group keeps this many units."""
        return self.always + sum(_kept(part, units) for part in self.parts)

    def open_kept(self, units: Mapping[str, Any], whole: Mapping[str, int]) -> Any:  # noqa: ANN401
        """The same for numbers of units that may be symbolic; ``whole`` has the sizes of the groups.

        None where the number of positions is not in proportion to the units of a group.
        """
        kept: Any = self.always
        for part in self.parts:
            (name, position_units), *others = part.items()
            times = np.bincount(position_units, minlength=whole[name])
            if not others and (times == times[0]).all():
                kept = kept + int(times[0]) * units[name]
            elif not position_units.any():  # each of them goes with the first unit, which is always kept
                kept = kept + len(position_units)
            else:
                return None
        return kept


@dataclass(frozen=True)
class BakedSize:
    """An attribute, its name with dots, that stands for a size in code: ``full`` times the kept share of an axis."""

    attribute: str
    full: int
    axis: Axis

    def at(self, units: Mapping[str, int]) -> int:
        """The size, given the number of units of each group."""
        return self.full * self.axis.kept(units) // self.axis.size

    def open_at(self, units: Mapping[str, Any], whole: Mapping[str, int]) -> Any:  # noqa: ANN401
        """The size for numbers of units that may be symbolic; ``whole`` has the sizes of the groups."""
        kept = self.axis.open_kept(units, whole)
        if kept is None:
            given = f"cuts of {', '.join(dict.fromkeys(name for part in self.axis.parts for name in part))}"
            needed = "of groups to whose units every size in the network's code is in proportion"
            raise ArgumentError("cuts", given, needed, "Export each cut.")
        return self.full * kept // self.axis.size


@dataclass(frozen=True)
class PlannedSize:
    """A number at ``place`` in a call's arguments that shrinks by the same share as an axis."""

    node: fx.Node
    place: tuple[str | int, ...]
    axis: Axis


def _kept(part: Mapping[str, Ids], units: Mapping[str, int]) -> int:
    first, *others = [position_units < units[name] for name, position_units in part.items()]
    for other in others:
        first = first | other
    return int(first.sum())
