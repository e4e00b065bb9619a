"""The cuts of a file that holds every width: what they are called, and the sizes of dimensions that choose them."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nestling.delivery.about import described_calibration
from nestling.errors import ArgumentError
from nestling.prediction import Calibration, CutLike
from nestling.reading import Cut, Group, Holders, cut_names, make_cut
from nestling.running import Nested, OpenWidths, axes_of, cost, in_mode, kept_of, plain_name

ROW = "row"
"""The dimension whose size is the number of a row of the table, counted from 1, where rows have values of their own."""

FEWEST = 3
"""The fewest sizes of a dimension: torch takes a size of 0, 1 or all of an axis for fixed when it traces."""


@dataclass(frozen=True)
class Symbol:
    """A dimension of a file: of size n it keeps ``units`` times n units of each of its groups; ``most`` is all."""

    name: str
    units: Mapping[str, int]
    most: int

    def size_at(self, kept: Mapping[str, int]) -> int:
        """The size that keeps this many units of each group."""
        group, times = next(iter(self.units.items()))
        return kept[group] // times


class WidthTable:
    """Some cuts of a network, one a row, and the symbols of the groups whose widths differ among them.

    By default the groups that need no symbol of their own share one: those whose units stay in proportion. With
    ``each_group`` every group has a symbol, whose size is the number of its units. ``calibrations`` are those of some
    of the cuts.
    """

    def __init__(
        self,
        nested: Nested,
        cuts: Mapping[str, CutLike] | Sequence[CutLike],
        *,
        each_group: bool = False,
        calibrations: Sequence[Calibration] = (),
    ) -> None:
        self.nested = nested
        self.cuts = _named(nested, cuts)
        groups = [group for group in nested.groups.free if group.slices]
        self.kept = [{group.name: group.units(cut[group.name]) for group in groups} for cut in self.cuts.values()]
        self.base = _base(nested, list(self.cuts.values()))
        self.symbols = _symbols(groups, self.kept, each_group)
        open_groups = {name for symbol in self.symbols for name in symbol.units}
        self._fixed = {name: units for name, units in self.kept[0].items() if name not in open_groups}
        self.tables = _tables(nested, list(self.cuts.values()), self.base, self.kept)
        self.calibrations = _by_row(calibrations, list(self.cuts.values()))
        self.has_rows = bool(self.tables) or bool((self.temperatures != 1).any())

    @property
    def temperatures(self) -> Tensor:
        """The temperature of each row, and ones to fill up."""
        temperatures = torch.ones(max(len(self.cuts), FEWEST))
        for row, calibration in enumerate(self.calibrations):
            temperatures[row] = 1.0 if calibration is None else calibration.temperature
        return temperatures

    @property
    def dimensions(self) -> dict[str, int]:
        """The names of the dimensions, each with its largest size."""
        sizes = {symbol.name: symbol.most for symbol in self.symbols}
        return sizes | ({ROW: len(self.cuts)} if self.has_rows else {})

    def sizes(self, row: int) -> dict[str, int]:
        """The size of every dimension at a row, counted from 0."""
        sizes = {symbol.name: symbol.size_at(self.kept[row]) for symbol in self.symbols}
        return sizes | ({ROW: row + 1} if self.has_rows else {})

    def units(self, sizes: Mapping[str, Any]) -> dict[str, Any]:
        """The units that each group keeps, from the sizes of the dimensions, which may be symbolic."""
        open_units = {
            name: times * sizes[symbol.name] for symbol in self.symbols for name, times in symbol.units.items()
        }
        return self._fixed | open_units

    def network(self) -> OpenWidths:
        """The network whose widths these symbols choose."""
        return OpenWidths(self.nested, self.base, self.tables)

    def about(self, quality: Mapping[str, float] | None = None) -> dict[str, Any]:
        """The table as a record: for each row its cut, cost and quality, and the sizes that choose it."""
        return {
            "symbols": {symbol.name: {"units": dict(symbol.units), "most": symbol.most} for symbol in self.symbols},
            "row": ROW if self.has_rows else None,
            "table": [self._about(row, quality or {}) for row in range(len(self.cuts))],
        }

    def _about(self, row: int, quality: Mapping[str, float]) -> dict[str, Any]:
        name, cut = list(self.cuts.items())[row]
        price, whole = cost(self.nested, cut), make_cut(self.nested.groups, 1.0)
        scored = {"quality": quality[name]} if name in quality else {}
        return {
            "name": name,
            "cut": cut.as_dict(),
            "kept": round(cut.share_of(whole), 4),
            "params": price.params,
            "macs": price.macs,
            **scored,
            **described_calibration(self.calibrations[row]),
            "sizes": self.sizes(row),
        }


def _named(nested: Nested, cuts: Mapping[str, CutLike] | Sequence[CutLike]) -> dict[str, Cut]:
    if isinstance(cuts, Mapping):
        named = {name: make_cut(nested.groups, cut) for name, cut in cuts.items()}
    else:
        named = {}
        for cut, name in cut_names(nested.groups, cuts).items():
            alike = sum(other.partition(" (")[0] == name for other in named)
            named[f"{name} ({alike + 1})" if alike else name] = cut
    if len(set(named.values())) < 2:
        given = f"{len(set(named.values()))} different cut"
        raise ArgumentError("cuts", given, "at least two different cuts", "Export a single cut as a plain file.")
    return named


def _by_row(calibrations: Sequence[Calibration], cuts: Sequence[Cut]) -> list[Calibration | None]:
    """The calibration of each cut, or None."""
    by_cut = {calibration.cut: calibration for calibration in calibrations}
    if not by_cut.keys() <= set(cuts):
        given, advice = (
            "one for a cut that is not in the file",
            "Pass one per width: nl.calibrate(nested, ..., cut=...).",
        )
        raise ArgumentError("calibration", given, "one for each of the widths", advice)
    return [by_cut.get(cut) for cut in cuts]


def _base(nested: Nested, cuts: Sequence[Cut]) -> Cut:
    """The cut of the file's tensors: every unit; layers and bits as all cuts have them."""
    widths = {}
    for group in nested.groups.free:
        widths_of_group = sorted({cut[group.name] for cut in cuts})
        widths[group.name] = group.num_blocks if group.slices else widths_of_group[0]
        if not group.slices and len(widths_of_group) > 1:
            what = "bits" if group.quantises else "layers"
            given = f"cuts with other {what} of {group.name}"
            raise ArgumentError("cuts", given, f"cuts with the same {what} in one file", "Export each cut.")
    return Cut(tuple(widths.items()))


def _symbols(groups: Sequence[Group], kept: Sequence[Mapping[str, int]], each_group: bool) -> list[Symbol]:
    sets: dict[object, tuple[dict[str, int], int]] = {}
    for group in groups:
        units = [row[group.name] for row in kept]
        times = 1 if each_group else _step(group.size, math.gcd(group.size, *units))
        proportions = (*(number // times for number in units), group.size // times)
        if each_group or len(set(units)) > 1:
            if group.size < FEWEST:
                given, needed = (
                    f"cuts of {group.name}, which has {group.size} units",
                    f"of groups of at least {FEWEST} units",
                )
                raise ArgumentError("cuts", given, needed, "Keep it whole at every cut, or export each cut.")
            times_of_groups, _ = sets.setdefault(group.name if each_group else proportions, ({}, proportions[-1]))
            times_of_groups[group.name] = times
    names = ["width"] if len(sets) == 1 else _names([next(iter(units)) for units, _ in sets.values()])
    return [Symbol(name, units, most) for name, (units, most) in zip(names, sets.values(), strict=True)]


def _step(size: int, most: int) -> int:
    """The units that a dimension counts by: ``most``, or a part of it that fits at least ``FEWEST`` times into all."""
    parts = [step for step in range(1, most + 1) if most % step == 0 and size >= FEWEST * step]
    return max(parts, default=1)


def _names(groups: Sequence[str]) -> list[str]:
    """Names for dimensions, in letters and digits, after the first group of each."""
    names = dict[str, str]()
    for group in groups:
        name = "width_of_" + re.sub(r"\W", "_", group)
        names[name + "_" * (name in names)] = group
    return list(names)


def _tables(nested: Nested, cuts: Sequence[Cut], base: Cut, kept: Sequence[Mapping[str, int]]) -> dict[str, Tensor]:
    """The tensors whose values are no part of those at ``base``, by plain name: a row per cut, filled up with zeros."""
    with torch.no_grad(), in_mode(nested, training=False):
        whole = Holders(nested.extracted(base)).tensors()
        parts = axes_of(nested, whole)
        tables: dict[str, Tensor] = {}
        for cut, units in zip(cuts, kept, strict=True):
            expected = dict(whole)
            for (name, axis), parts_of_axis in parts.items():
                expected[name] = kept_of(expected[name], axis, parts_of_axis, units)
            for name, tensor in _plain(nested, cut, whole).items():
                if not torch.equal(tensor, expected[name]):
                    tables.setdefault(name, _empty_table(name, whole[name], len(cuts)))
        for row, cut in enumerate(cuts):
            values = _plain(nested, cut, whole)
            for name, table in tables.items():
                table[row, : len(values[name])] = values[name]
    return tables


def _plain(nested: Nested, cut: Cut, whole: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of the plain network at a cut."""
    tensors = {plain_name(name): tensor for name, tensor in (nested.tensors() | nested.tensors_at(cut)).items()}
    return {name: tensor for name, tensor in tensors.items() if name in whole}


def _empty_table(name: str, whole: Tensor, num_rows: int) -> Tensor:
    if whole.ndim != 1:
        given = f"cuts at which {name} has other values, not only fewer"
        raise ArgumentError(
            "cuts", given, "cuts that differ in the statistics and weights of norms", "Export each cut."
        )
    return torch.zeros(max(num_rows, FEWEST), len(whole), dtype=whole.dtype)
