"""What ``evaluate`` gives: the scores of a network at one cut, over a whole data set."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from nestling.prediction.detection import Detection
from nestling.prediction.reliability import Reliability


@dataclass(frozen=True)
class SetScores:
    """Of conformal sets: the share that holds the truth, and the mean number of classes or length of an interval."""

    coverage: float
    size: float


@dataclass(frozen=True)
class Scores(ABC):
    """Over ``count`` examples: ``nll`` in nats per labelled element, and ``ece``, both of the averaged distribution.

    ``by`` says how well each uncertainty tells the data set from the one given as ``ood``, whose examples are the
    positive class; ``sets`` how the conformal sets of a calibration did, by the coverage they were made for.
    """

    count: int
    nll: float
    ece: float
    by: Mapping[str, Detection] = field(default_factory=dict, kw_only=True)
    sets: Mapping[float, SetScores] = field(default_factory=dict, kw_only=True)

    @property
    def auroc(self) -> float | None:
        """Area under the ROC curve by the first of the uncertainties; None without ``ood``."""
        return next((found.auroc for found in self.by.values()), None)

    @property
    def aupr(self) -> float | None:
        """Average precision by the first of the uncertainties; None without ``ood``."""
        return next((found.aupr for found in self.by.values()), None)

    @property
    @abstractmethod
    def quality(self) -> float:
        """What is to be as large as possible, the mean of ``Likelihood.score``."""

    @property
    def quality_error(self) -> float:
        """The standard error of ``quality``, where the scores tell it: else 0."""
        return 0.0

    @abstractmethod
    def to_dict(self) -> dict[str, object]:
        """Plain numbers, lists and dictionaries, as JSON holds them; what was not measured is left out."""

    def _shared(self) -> dict[str, object]:
        found: dict[str, object] = {"count": self.count, "nll": self.nll, "ece": self.ece}
        if self.by:
            found |= {"auroc": self.auroc, "aupr": self.aupr, "by": {name: asdict(d) for name, d in self.by.items()}}
        if self.sets:
            found["sets"] = {str(coverage): asdict(scores) for coverage, scores in self.sets.items()}
        return found


@dataclass(frozen=True)
class ClassScores(Scores):
    """Scores of labels; ``brier`` sums over the classes, so it runs from 0 to 2.

    Per pixel, each pixel of each rater counts. ``iou`` and ``dice`` are those of the most probable masks, and ``ged``
    is the squared energy distance of drawn masks to the raters'; these three are None unless there are pixels.
    """

    accuracy: float
    brier: float
    reliability: Reliability = field(repr=False)
    iou: float | None = None
    dice: float | None = None
    ged: float | None = None

    @property
    def quality(self) -> float:
        """Accuracy; of pixels, most of which are background, the log-likelihood."""
        return self.accuracy if self.iou is None else -self.nll

    @property
    def quality_error(self) -> float:
        """The standard error of an accuracy."""
        return math.sqrt(self.accuracy * (1 - self.accuracy) / self.count) if self.iou is None else 0.0

    def to_dict(self) -> dict[str, object]:
        """Plain numbers, lists and dictionaries, as JSON holds them; what was not measured is left out."""
        masks = {"iou": self.iou, "dice": self.dice, "ged": self.ged} if self.iou is not None else {}
        curve = {name: list(values) for name, values in asdict(self.reliability).items()}
        own = {"accuracy": self.accuracy, "brier": self.brier, **masks, "reliability": curve}
        return self._shared() | own


@dataclass(frozen=True)
class RegressionScores(Scores):
    """Scores of numbers; ``intervals`` is the share of targets in the central interval of each nominal probability.

    Intervals are those of the Gaussian with the predicted mean and standard deviation, and ``ece`` is the mean
    distance between nominal and found (Kuleshov, Fenner and Ermon 2018, with absolute differences).
    """

    rmse: float
    intervals: Mapping[float, float] = field(repr=False)

    @property
    def quality(self) -> float:
        """The log-likelihood."""
        return -self.nll

    def to_dict(self) -> dict[str, object]:
        """Plain numbers, lists and dictionaries, as JSON holds them; what was not measured is left out."""
        intervals = {str(nominal): found for nominal, found in self.intervals.items()}
        return self._shared() | {"rmse": self.rmse, "intervals": intervals}
