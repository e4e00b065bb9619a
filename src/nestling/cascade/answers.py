"""What a cascade gives: a prediction that says which stage answered, and its scores over a data set."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from torch import Tensor

from nestling.prediction import Bounds, ClassPrediction, ClassScores


@dataclass(frozen=True, eq=False)
class CascadePrediction(ClassPrediction):
    """The predictive distribution of a batch, of each example (B,) by the stage at which it ended.

    ``stages`` are the numbers of these stages. ``answered`` is false where the last stage is too unsure. ``macs`` are
    the multiply-adds of all stages that an example went through, for one pass each.
    """

    stages: Tensor = field(kw_only=True)
    answered: Tensor = field(kw_only=True)
    macs: Tensor = field(kw_only=True)

    @property
    def mean_macs(self) -> float:
        """The average cost of an example."""
        return float(self.macs.mean())


@dataclass(frozen=True)
class StageScores:
    """Of a stage: the shares of all examples that ``reached`` it and were ``answered`` by it, and its ``accuracy``.

    The accuracy is that of its answers, None if it gave none. ``latency_ms`` is the time of one pass for one example.
    """

    name: str
    threshold: float | None
    reached: float
    answered: float
    accuracy: float | None
    macs: int
    latency_ms: float | None = None


@dataclass(frozen=True)
class CascadeScores:
    """Of a cascade, over ``count`` examples: ``scores`` of its answers, None if it gave none, and figures per stage.

    ``mean_macs`` is the average number of multiply-adds, and ``macs_bounds`` its 95 % interval. ``whole_macs`` is what
    the widest cut alone takes. The shares are of the widest cut's cost, in multiply-adds and in measured milliseconds.
    """

    count: int
    scores: ClassScores | None
    stages: tuple[StageScores, ...]
    mean_macs: float
    macs_bounds: Bounds
    whole_macs: int

    @property
    def unanswered(self) -> float:
        """The share of examples without an answer."""
        return 1 - sum(stage.answered for stage in self.stages)

    @property
    def macs_share(self) -> float:
        """The average multiply-adds, as a share of those of the widest cut."""
        return self.mean_macs / self.whole_macs

    @property
    def mean_ms(self) -> float | None:
        """The average milliseconds of an example by itself: of each stage, times the share that reaches it."""
        times = [(stage.reached, stage.latency_ms) for stage in self.stages]
        return None if any(ms is None for _, ms in times) else sum(reached * (ms or 0.0) for reached, ms in times)

    @property
    def ms_share(self) -> float | None:
        """The average milliseconds, as a share of those of the widest cut."""
        whole = self.stages[-1].latency_ms
        return None if self.mean_ms is None or not whole else self.mean_ms / whole

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        costs: Mapping[str, Any] = {"count": self.count, "mean_macs": self.mean_macs, "whole_macs": self.whole_macs}
        shares = {"macs_share": self.macs_share, "mean_ms": self.mean_ms, "ms_share": self.ms_share}
        scores = None if self.scores is None else self.scores.to_dict()
        rows = {"stages": [asdict(stage) for stage in self.stages], "scores": scores}
        return {**costs, "macs_bounds": list(self.macs_bounds), "unanswered": self.unanswered, **shares, **rows}
