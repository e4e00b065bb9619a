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
    """How well conformal sets of one nominal coverage did.

    Attributes:
        coverage: The share of sets that contain the true target.
        size: The mean number of classes in a set, or the mean length of an interval.

    Examples:
        >>> scores = nl.evaluate(nested, loader, calibration=run.calibration(1.0))
        >>> 0 <= scores.sets[0.9].coverage <= 1, scores.sets[0.9].size <= 10
        (True, True)
    """

    coverage: float
    size: float


@dataclass(frozen=True)
class Scores(ABC):
    """The scores of a network at one cut over a data set, with 95 % intervals.

    Attributes:
        count: The number of examples.
        nll: Negative log-likelihood in nats per labelled element, of the averaged distribution.
        ece: Expected calibration error: the mean distance between confidence and accuracy; 0.02 is two points.
        by: How well each uncertainty tells the data set from the out-of-distribution one; empty without ``ood``.
        sets: How well the conformal sets of a calibration did, by the coverage that they were made for.
        bounds: The 95 % interval of each score over the test set, by its name.

    Examples:
        >>> scores = nl.evaluate(nested, loader, cut=0.5)
        >>> low, high = scores.bounds["accuracy"]
        >>> low <= scores.accuracy <= high, scores.auroc is None
        (True, True)
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
    """Scores of labels; for images, each pixel of each rater counts as one label.

    Attributes:
        accuracy: The share of labels that are the most probable class.
        brier: The squared distance between probabilities and labels, summed over the classes: from 0 to 2.
        reliability: Confidence and accuracy per bin.
        iou: Intersection over union of the most probable masks; None without pixels.
        dice: Dice coefficient of the most probable masks; None without pixels.
        ged: Squared energy distance between sampled masks and those of the raters; None without pixels.

    Examples:
        >>> scores = nl.evaluate(nested, loader)
        >>> scores.count, 0 <= scores.accuracy <= 1, scores.iou is None
        (144, True, True)
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
    """Scores of numbers, in the units of the targets.

    Its ``ece`` is the mean distance between nominal and measured shares of ``intervals`` (Kuleshov, Fenner and Ermon
    2018, with absolute differences).

    Attributes:
        rmse: The root of the mean squared error.
        intervals: For each nominal probability, the share of targets in the central interval of the Gaussian with the
            predicted mean and standard deviation.

    Examples:
        >>> linear, pairs = torch.nn.Linear(3, 1), [(torch.randn(20, 3), torch.randn(20, 1))]
        >>> scores = nl.evaluate(linear, pairs, likelihood=nl.prediction.Gaussian(std=1.0))
        >>> scores.count, scores.rmse > 0, len(scores.intervals)
        (20, True, 14)
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
