"""The options of ``cascade``, in a file that imports no torch."""

from dataclasses import dataclass
from typing import Literal

ScoreName = Literal["auto", "entropy", "mutual_information", "max_probability"]
CostName = Literal["macs", "latency_ms"]
MeasuredIn = Literal["torch", "onnxruntime"]
"""Where the command measures the milliseconds of cuts."""


@dataclass(frozen=True)
class Cascading:
    """How ``nestling cascade`` chooses its thresholds; ``nl.cascade`` has the same arguments.

    Examples:
        >>> from nestling.cascade import Cascading
        >>> Cascading(goal="macs=0.5x").score
        'auto'
    """

    goal: str = "loss=0.002"
    """loss=0.002 (at most 0.2 points less accurate than the full width), macs=0.5x, macs=4e6 or latency_ms=2 (on
    average), or early_errors=0.02 (of what is answered before the last cut, at most 2 % is wrong: guaranteed, see
    delta)."""
    score: ScoreName = "auto"
    """The uncertainty that is compared with the thresholds; auto takes the one that does best on validation data."""
    samples: int = 6
    """Weight samples to average over; 0 for the mean weights."""
    delta: float = 0.1
    """For early_errors: the probability with which the guarantee may fail."""
    dont_know: float = 0.0
    """Share of the validation inputs to which the last cut says that it does not know."""
    coverage: float = 0.9
    """How often the set of classes that the cascade gives is to contain the right one."""
    seed: int = 0
    """Seed of the weight samples, and of the split of the validation data for early_errors."""
