"""What a cascade gives: a prediction that says which stage answered, and its scores over a data set."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from torch import Tensor

from nestling.prediction import Bounds, ClassPrediction, ClassScores, SetScores


@dataclass(frozen=True, eq=False)
class CascadePrediction(ClassPrediction):
    """The predictive distribution of a batch of B examples, each by the stage at which it ended.

    Everything that a ``ClassPrediction`` has is here too: probabilities (B, C), labels, entropy and its parts.

    Attributes:
        stages: The number of the stage at which each example ended, int64 (B,); 0 is the narrowest.
        answered: False (B,) where the last stage was too unsure, and the answer is "I don't know".
        macs: The multiply-adds (B,) of all stages that an example went through, for one pass each.

    Examples:
        >>> p = casc.predict(images)
        >>> tuple(p.probs.shape), tuple(p.stages.shape), bool(p.answered.all())
        ((100, 10), (100,), True)
        >>> [round(share, 2) for share in (p.stages.bincount(minlength=3) / len(p.stages)).tolist()]  # per stage
        [...]
    """

    stages: Tensor = field(kw_only=True)
    answered: Tensor = field(kw_only=True)
    macs: Tensor = field(kw_only=True)

    @property
    def mean_macs(self) -> float:
        """The average multiply-adds per example of this batch."""
        return float(self.macs.mean())


@dataclass(frozen=True)
class StageScores:
    """What one stage of a cascade did on a data set.

    Attributes:
        name: The fraction or the widths that the stage's cut was asked for by.
        threshold: The largest uncertainty with which it answers; None if it answers all, or does not run.
        reached: The share of all examples that came to this stage, from 0 to 1.
        answered: The share of all examples that it answered.
        accuracy: The share of its answers that are right; None if it gave none.
        macs: Multiply-adds of one pass for one example.
        latency_ms: Milliseconds of one pass for one example; None unless latency was measured.

    Examples:
        >>> first = casc.evaluate(loader).stages[0]
        >>> first.reached, first.latency_ms is None
        (1.0, True)
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
    """The figures of a cascade over a data set.

    Attributes:
        count: The number of examples.
        scores: Accuracy, NLL, ECE and so on of the answers that were given; None if there was none.
        stages: The figures of each stage, the narrowest first.
        mean_macs: Average multiply-adds per example.
        macs_bounds: The 95 % interval of ``mean_macs`` over the examples.
        whole_macs: What the widest cut takes by itself.
        sets: The scores of the conformal sets of all examples, by coverage.

    Examples:
        >>> scores = casc.evaluate(loader)
        >>> scores.count, scores.unanswered, 0 < scores.macs_share
        (144, 0.0, True)
    """

    count: int
    scores: ClassScores | None
    stages: tuple[StageScores, ...]
    mean_macs: float
    macs_bounds: Bounds
    whole_macs: int
    sets: Mapping[float, SetScores] = field(default_factory=dict)

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
        rows: dict[str, Any] = {"stages": [asdict(stage) for stage in self.stages], "scores": scores}
        rows["sets"] = {str(coverage): asdict(sets) for coverage, sets in self.sets.items()}
        return {**costs, "macs_bounds": list(self.macs_bounds), "unanswered": self.unanswered, **shares, **rows}
