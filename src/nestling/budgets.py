"""Budgets: the most that a network may cost, as a number or as a share of the whole network's cost."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from nestling.arguments import positive_number
from nestling.errors import ArgumentError, RangeError

BUDGETS = ("params", "macs", "bytes", "latency_ms")
"""The costs that every network has."""
COUNTS = ("params", "macs", "bytes")
"""Those that are whole numbers."""
Budgets = str | Iterable[str] | Mapping[str, float | str]


@dataclass(frozen=True)
class Limit:
    """At most ``value``, or at most ``value`` times the cost of the whole network."""

    value: float
    is_share: bool = False

    def most(self, whole: float) -> float:
        """The limit as a number, for a whole network of that cost."""
        return self.value * whole if self.is_share else self.value

    def __str__(self) -> str:
        return f"{self.value:.15g}x" if self.is_share else f"{self.value:.15g}"


def read_budgets(given: Budgets) -> dict[str, Limit]:
    """The limits by name from ``{"macs": "0.5x", "bytes": 200_000}``, or from words such as ``"macs=0.5x"``."""
    if isinstance(given, Mapping):
        return {name: read_limit(name, value) for name, value in given.items()}
    pairs = (word.partition("=") for word in ([given] if isinstance(given, str) else given))
    return {name: read_limit(name, value) for name, _, value in pairs}


def read_limit(name: str, given: float | str) -> Limit:
    """The limit from a number, or from text: ``0.5x`` is half of the whole network's cost."""
    is_share = isinstance(given, str) and given.endswith("x")
    try:
        value = float(given.removesuffix("x")) if isinstance(given, str) else given
    except ValueError:
        needed = "a budget such as macs=0.5x (half of the whole network's), latency_ms=4 or bytes=200000"
        raise ArgumentError("under", repr(f"{name}={given}"), needed, "Write the number without its unit.") from None
    limit = Limit(positive_number(name, value), is_share)
    if name in COUNTS and not is_share and limit.value < 1:
        raise RangeError(name, given, "at least 1, or a share of the whole network's", f'Write "{limit}x" for a share.')
    return limit
