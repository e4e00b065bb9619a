"""How far a network is below the best one, and whether the test examples are enough to tell."""

import math
from dataclasses import dataclass

from torch import Tensor

from nestling.report.page.metrics import Metric

ALLOWED_SHARE, ALLOWED_OTHER = 0.01, 0.02
"""A network counts as good enough one percentage point below the best, or at 2 % of another score."""


@dataclass(frozen=True)
class Shortfall:
    """How much worse a network is than the best one: ``value`` is at least 0, in the units of ``metric``.

    ``error`` is the standard error of that difference, None if it is not known; ``count`` the number of test examples.
    """

    metric: Metric
    best: float
    value: float
    error: float | None = None
    count: int = 0

    @property
    def may_be_chance(self) -> bool:
        """Whether the difference is within its standard error."""
        return self.error is not None and self.value <= self.error

    @property
    def is_small(self) -> bool:
        """Whether the network is good enough: the loss is small, or these examples can't tell it from none."""
        value = round(self.value, 3) if self.metric.is_share else self.value  # as it is written, in tenths of a point
        allowed = ALLOWED_SHARE if self.metric.is_share else ALLOWED_OTHER * abs(self.best)
        return value <= allowed or self.may_be_chance

    @property
    def words(self) -> str:
        """The difference, such as 0.6 ± 0.9 points, with its standard error where that is known."""
        if not self.metric.is_share:
            return f"{self.value / (abs(self.best) or 1.0):.1%}"
        error = "" if self.error is None else f" ± {100 * self.error:.1f}"
        return f"{100 * self.value:.1f}{error} points"


def paired_error(best: Tensor, other: Tensor) -> float:
    """The standard error of the difference of two networks' shares of right answers, on the same examples (N,).

    It comes from the examples on which only one of them is right, so it is smaller than the errors of both shares.
    """
    return float((best.double() - other.double()).std(unbiased=False)) / math.sqrt(len(best))


def rule(metric: Metric) -> str:
    """What the smallest network that is good enough means."""
    most = "one percentage point" if metric.is_share else f"{ALLOWED_OTHER:.0%}"
    error = ", or no more than the standard error of their difference on these examples" if metric.is_share else ""
    return f"The page opens with the smallest network that is at most {most} worse than the best one{error}."
