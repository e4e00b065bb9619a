"""What ``evaluate`` gives: the scores of a network at one cut, over a whole data set."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from nestling.prediction.bounds import Bounds
from nestling.prediction.detection import Detection
from nestling.prediction.reliability import Reliability


@dataclass(frozen=True)
class SetScores:
    """The share of conformal sets that contain the true target, and the mean number of classes or interval length."""

    coverage: float
    size: float


@dataclass(frozen=True)
class Scores(ABC):
    """Over ``count`` examples: ``nll`` in nats per labelled element, and ``ece``, both of the averaged distribution.

    ``by`` says how well each uncertainty tells the data set from the out-of-distribution one, whose examples are the
    positive class. ``sets`` has the scores of a calibration's conformal sets, by the coverage they were made for.
    ``bounds`` has the 95 % interval over the test set of each score, by its name.
    """

    count: int
    nll: float
    ece: float
    by: Mapping[str, Detection] = field(default_factory=dict, kw_only=True)
    sets: Mapping[float, SetScores] = field(default_factory=dict, kw_only=True)
    bounds: Mapping[str, Bounds] = field(default_factory=dict, kw_only=True, repr=False)

    @property
    def auroc(self) -> float | None:
        """Area under the ROC curve by the first of the uncertainties; None without ``ood``."""
        return next((detection.auroc for detection in self.by.values()), None)

    @property
    def aupr(self) -> float | None:
        """Average precision by the first of the uncertainties; None without ``ood``."""
        return next((detection.aupr for detection in self.by.values()), None)

    @property
    def base_rate(self) -> float | None:
        """The average precision of a guess: the share of out-of-distribution examples; None without ``ood``."""
        return next((detection.base_rate for detection in self.by.values()), None)

    @property
    @abstractmethod
    def quality(self) -> float:
        """The quantity to maximise, the mean of ``Likelihood.score``."""

    @property
    def quality_error(self) -> float:
        """The standard error of ``quality``, or 0 if the scores do not determine it."""
        return 0.0

    @abstractmethod
    def to_dict(self) -> dict[str, object]:
        """Plain numbers, lists and dictionaries for JSON; scores that were not measured are left out."""

    def _shared(self) -> dict[str, object]:
        values: dict[str, object] = {"count": self.count, "nll": self.nll, "ece": self.ece}
        values["bounds"] = {name: list(bounds) for name, bounds in self.bounds.items()}
        if self.by:
            by = {name: asdict(d) for name, d in self.by.items()}
            values |= {"auroc": self.auroc, "aupr": self.aupr, "base_rate": self.base_rate, "by": by}
        if self.sets:
            values["sets"] = {str(coverage): asdict(scores) for coverage, scores in self.sets.items()}
        return values


@dataclass(frozen=True)
class ClassScores(Scores):
    """Scores of labels; ``brier`` sums over the classes, so it runs from 0 to 2.

    For images, each pixel of each rater counts as one label. ``iou`` and ``dice`` are of the most probable masks, and
    ``ged`` is the squared energy distance between sampled masks and the raters'; all three are None without pixels.
    """

    accuracy: float
    brier: float
    reliability: Reliability = field(repr=False)
    iou: float | None = None
    dice: float | None = None
    ged: float | None = None

    @property
    def quality(self) -> float:
        """Accuracy; for pixels, most of which are background, the log-likelihood."""
        return self.accuracy if self.iou is None else -self.nll

    @property
    def quality_error(self) -> float:
        """The standard error of an accuracy."""
        return math.sqrt(self.accuracy * (1 - self.accuracy) / self.count) if self.iou is None else 0.0

    def to_dict(self) -> dict[str, object]:
        """Plain numbers, lists and dictionaries for JSON; scores that were not measured are left out."""
        masks = {"iou": self.iou, "dice": self.dice, "ged": self.ged} if self.iou is not None else {}
        curve = {name: list(values) for name, values in asdict(self.reliability).items()}
        return self._shared() | {"accuracy": self.accuracy, "brier": self.brier, **masks, "reliability": curve}


@dataclass(frozen=True)
class RegressionScores(Scores):
    """Scores of numbers; ``intervals`` is the share of targets in the central interval of each nominal probability.

    Intervals are those of the Gaussian with the predicted mean and standard deviation, and ``ece`` is the mean
    distance between nominal and measured share (Kuleshov, Fenner and Ermon 2018, with absolute differences).
    """

    rmse: float
    intervals: Mapping[float, float] = field(repr=False)

    @property
    def quality(self) -> float:
        """The log-likelihood."""
        return -self.nll

    def to_dict(self) -> dict[str, object]:
        """Plain numbers, lists and dictionaries for JSON; scores that were not measured are left out."""
        intervals = {str(nominal): share for nominal, share in self.intervals.items()}
        return self._shared() | {"rmse": self.rmse, "intervals": intervals}
