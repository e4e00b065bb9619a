"""Axes of the page's pictures: from values to places, round numbers along the way, and how numbers are written."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from nestling.tables import thousands

_ROUND = (1.0, 2.0, 2.5, 5.0, 10.0)
_MARGIN = 0.06
"""The share of its range that an axis goes on beyond its values."""
_LEAST_SPREAD = 1e-9


@dataclass(frozen=True)
class Axis:
    """An axis from ``low`` to ``high``, along a logarithm if ``is_log``; ``write`` gives the text of a number."""

    label: str
    low: float
    high: float
    write: Callable[[float], str]
    ticks: tuple[float, ...]
    is_log: bool = False

    def share(self, value: float) -> float:
        """Where a value lies between the ends, from 0 to 1."""
        low, high, at = (math.log(v) if self.is_log else v for v in (self.low, self.high, value))
        return (at - low) / (high - low)


def linear_axis(
    label: str,
    values: Iterable[float],
    write: Callable[[float], str],
    *,
    within: tuple[float, float] = (-math.inf, math.inf),
    tight: bool = False,
) -> Axis:
    """An axis over some values, with a margin unless it is ``tight``, and never beyond the bounds ``within``."""
    numbers = list(values) or [0.0, 1.0]
    low, high = min(numbers), max(numbers)
    extent = max(high - low, _LEAST_SPREAD, 1e-3 * abs(high))
    margin = 0.0 if tight else _MARGIN * extent
    low, high = max(within[0], low - margin), min(within[1], high + margin)
    if high - low < extent / 2:
        low, high = low - extent, high + extent
    ticks = tuple(_round_numbers(low, high))
    is_clear = all(write(one) != write(other) for one, other in pairwise(ticks))
    return Axis(label, low, high, write if is_clear else _in_full, ticks)


def log_axis(label: str, values: Iterable[float], write: Callable[[float], str]) -> Axis:
    """An axis of powers over some values, all above zero, with a margin."""
    numbers = list(values)
    low, high = min(numbers), max(numbers)
    factor = max((high / low) ** _MARGIN, 1.05)
    low, high = low / factor, high * factor
    ticks = [
        digit * 10.0**power
        for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        for digit in (1, 2, 5)
        if low <= digit * 10.0**power <= high
    ]
    if len(ticks) > 6:
        ticks = [tick for tick in ticks if abs(math.log10(tick) - round(math.log10(tick))) < _LEAST_SPREAD]
    return Axis(label, low, high, write, tuple(ticks if len(ticks) > 1 else _round_numbers(low, high)), is_log=True)


def _round_numbers(low: float, high: float, most: int = 6) -> list[float]:
    """At most ``most`` + 1 round numbers between two ends."""
    step = (high - low) / most
    power = 10.0 ** math.floor(math.log10(step))
    step = next(digit * power for digit in _ROUND if digit * power >= step * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-6), math.floor(high / step + 1e-6)
    return [number * step for number in range(first, last + 1)]


def percents(share: float) -> str:
    """A share as a label of an axis: 85%."""
    return f"{plain(100 * share)}%"


def plain(value: float) -> str:
    """A number as a label of an axis, without needless digits."""
    return f"{0.0 if abs(value) < 1e-12 else value:.6g}"


def _in_full(value: float) -> str:
    """A number as a label of an axis on which fewer digits would make neighbours the same: 331,500."""
    return f"{value:,.7g}"


def count(value: float) -> str:
    """A count as a label: 1.3M."""
    return thousands(round(value))


def num_bytes(value: float) -> str:
    """A number of bytes as a label: 475 kB."""
    written = thousands(round(value))
    digits = written.rstrip("kMG")
    return f"{digits} {written[len(digits) :]}B"


def milliseconds(value: float) -> str:
    """A time as a label, without its unit."""
    return f"{value:.3g}"


def finite(values: Sequence[float | None]) -> list[float]:
    """The values that are numbers."""
    return [value for value in values if value is not None and math.isfinite(value)]
