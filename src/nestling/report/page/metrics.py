"""The figures that a page shows of a network: what they are called, how they are written, and which way is better."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

from nestling.report.page.axes import count, milliseconds, num_bytes, percents, plain
from nestling.running import Cost


@dataclass(frozen=True)
class Metric:
    """A score: ``key`` in the dictionary of scores, and how it is named, explained and written."""

    key: str
    name: str
    about: str
    is_share: bool
    higher_is_better: bool

    def of(self, scores: Mapping[str, Any]) -> float | None:
        """The score, if it was measured."""
        value = scores.get(self.key)
        return float(value) if is_number(value) else None

    def bounds_of(self, scores: Mapping[str, Any]) -> tuple[float, float] | None:
        """The score's interval over the test set, if it was measured; of both areas, that of the first detection."""
        bounds = scores.get("bounds")
        if self.key in ("auroc", "aupr"):
            by = scores.get("by")
            first = next(iter(by.values()), None) if isinstance(by, Mapping) else None
            bounds = first.get("bounds") if isinstance(first, Mapping) else None
        limits = bounds.get(self.key) if isinstance(bounds, Mapping) else None
        if isinstance(limits, list | tuple) and len(limits) == 2 and all(map(is_number, limits)):
            return float(limits[0]), float(limits[1])
        return None

    def between(self, scores: Mapping[str, Any]) -> str:
        """The score's interval as text; nothing if it was not measured."""
        limits = self.bounds_of(scores)
        return "" if limits is None else f"{self.written(limits[0])} to {self.written(limits[1])}"

    def written(self, value: float | None) -> str:
        """The score as text."""
        if value is None:
            return "-"
        return f"{100 * value:.1f}%" if self.is_share else f"{value:.3g}"

    def on_axis(self, value: float) -> str:
        """The score as a label of an axis."""
        return percents(value) if self.is_share else plain(value)


QUALITIES = (
    Metric("dice", "Dice", "overlap of the likeliest mask with the true one", True, True),
    Metric("accuracy", "accuracy", "share of right answers", True, True),
    Metric("rmse", "RMSE", "root of the mean squared error, in the units of the targets", False, False),
    Metric("nll", "NLL", "negative log-likelihood, in nats", False, False),
)
"""The first of these that was measured is the quality of a network."""
ECE = Metric("ece", "calibration error", "how far confidence and share of right answers lie apart (ECE)", True, False)
AUROC = Metric(
    "auroc",
    "OOD AUROC",
    "how well the uncertainty tells out-of-distribution data from test data; a guess has 50%",
    True,
    True,
)
AUPR = Metric("aupr", "OOD AUPR", "average precision of detecting out-of-distribution data", True, True)
NLL = QUALITIES[-1]


@dataclass(frozen=True)
class Size:
    """A cost: its field in ``Cost``, the name of its budget, and how it is named and written."""

    key: str
    name: str
    unit: str
    write: Callable[[float], str]

    def of(self, cost: Cost) -> float | None:
        """The cost, if it was measured."""
        value = getattr(cost, self.key)
        return None if value is None else float(value)

    def written(self, value: float | None) -> str:
        """The cost as text, with its unit."""
        return "-" if value is None else f"{self.write(value)} {self.unit}".strip()


SIZES = (
    Size("macs", "multiply-adds", "", count),
    Size("params", "parameters", "", count),
    Size("bytes", "bytes", "", num_bytes),
    Size("latency_ms", "latency", "ms", milliseconds),
)


def quality_of(scores: Mapping[str, Any]) -> Metric:
    """The metric that says how good a network is."""
    return next((metric for metric in QUALITIES if metric.of(scores) is not None), NLL)


def is_number(value: object) -> TypeGuard[float]:
    """Whether a value that a file may hold is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
