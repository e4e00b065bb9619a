"""Running sums over the batches of a data set, from which its scores are made at the end."""

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor

from nestling.prediction.detection import Detection, detection
from nestling.prediction.masks import dice, generalised_energy_distance, iou
from nestling.prediction.predictions import ClassPrediction, Prediction, RegressionPrediction
from nestling.prediction.reliability import bin_sums, reliability
from nestling.prediction.scores import ClassScores, RegressionScores, Scores, SetScores


class Tally(ABC):
    """Adds up batches of outputs (S, B, ...); ``add`` those with targets, ``add_foreign`` those out of distribution."""

    @abstractmethod
    def add(self, outputs: Tensor, target: Tensor) -> None:
        """Count a batch of the data set."""

    @abstractmethod
    def add_foreign(self, outputs: Tensor) -> None:
        """Count a batch of the other data set."""

    @abstractmethod
    def scores(self) -> Scores:
        """The scores of everything that was added."""


class ClassTally(Tally):
    """Sums for labels, of examples or of positions."""

    def __init__(self, predictive: Callable[[Tensor], ClassPrediction], num_bins: int) -> None:
        self._predictive = predictive
        self._num_bins = num_bins
        self._shared = _Shared()
        self._bins = torch.zeros(3, num_bins, dtype=torch.float64)
        self._brier = 0.0
        self._masks = torch.zeros(3, dtype=torch.float64)
        self._has_masks = False

    def add(self, outputs: Tensor, target: Tensor) -> None:
        """Count a batch of labels (B, ...), or of those of each rater (B, R, ...)."""
        prediction = self._predictive(outputs)
        rated = target if target.ndim == prediction.log_probs.ndim else target.unsqueeze(1)
        self._shared.add(prediction, rated)
        probs = prediction.probs
        sharpness = probs.square().sum(1, keepdim=True) + 1
        self._brier += float((sharpness - 2 * prediction.log_prob(rated).exp()).sum())
        confidence = prediction.confidence.unsqueeze(1).expand(rated.shape)
        self._bins += bin_sums(confidence, prediction.labels.unsqueeze(1) == rated, self._num_bins)
        if rated.ndim > 2:
            self._add_masks(prediction, rated.flatten(2))

    def add_foreign(self, outputs: Tensor) -> None:
        """Count a batch of the other data set."""
        self._shared.add_foreign(self._predictive(outputs))

    def scores(self) -> ClassScores:
        """The scores of everything that was added."""
        shared = self._shared
        curve = reliability(self._bins)
        overlap, dices, ged = (self._masks / shared.count).tolist() if self._has_masks else (None, None, None)
        return ClassScores(
            count=shared.count,
            nll=shared.nll,
            ece=curve.ece,
            accuracy=float(self._bins[2].sum()) / shared.num_elements,
            brier=self._brier / shared.num_elements,
            reliability=curve,
            iou=overlap,
            dice=dices,
            ged=ged,
            by=shared.by(),
            sets=shared.sets(),
        )

    def _add_masks(self, prediction: ClassPrediction, raters: Tensor) -> None:
        num_classes = prediction.log_probs.shape[1]
        best = prediction.labels.flatten(1).unsqueeze(1)
        drawn = best if prediction.samples is None else prediction.samples.argmax(2).flatten(2).transpose(0, 1)
        found = (
            iou(best, raters, num_classes).mean((1, 2)),
            dice(best, raters, num_classes).mean((1, 2)),
            generalised_energy_distance(drawn, raters, num_classes),
        )
        self._masks += torch.stack(found).sum(1)
        self._has_masks = True


class RegressionTally(Tally):
    """Sums for numbers; ``num_bins`` is how finely nominal probabilities are compared with found ones."""

    def __init__(self, predictive: Callable[[Tensor], RegressionPrediction], num_bins: int) -> None:
        self._predictive = predictive
        self._shared = _Shared()
        self._nominal = torch.arange(1, num_bins, dtype=torch.float64) / num_bins
        self._inside = torch.zeros_like(self._nominal)
        self._squared = 0.0

    def add(self, outputs: Tensor, target: Tensor) -> None:
        """Count a batch of numbers."""
        prediction = self._predictive(outputs)
        self._shared.add(prediction, target)
        self._squared += float((target - prediction.mean).double().square().sum())
        central = torch.erf(prediction.nonconformity(target).double().flatten() / 2**0.5)
        self._inside += (central[:, None] <= self._nominal).sum(0)

    def add_foreign(self, outputs: Tensor) -> None:
        """Count a batch of the other data set."""
        self._shared.add_foreign(self._predictive(outputs))

    def scores(self) -> RegressionScores:
        """The scores of everything that was added."""
        shared = self._shared
        found = self._inside / shared.num_elements
        return RegressionScores(
            count=shared.count,
            nll=shared.nll,
            ece=float((found - self._nominal).abs().mean()),
            rmse=(self._squared / shared.num_elements) ** 0.5,
            intervals=dict(zip(self._nominal.tolist(), found.tolist(), strict=True)),
            by=shared.by(),
            sets=shared.sets(),
        )


class _Shared:
    """The sums that every kind of prediction has: likelihood, conformal sets, unfamiliarity of each example."""

    def __init__(self) -> None:
        self.count = 0
        self.num_elements = 0
        self._log_prob = 0.0
        self._covered: dict[float, float] = {}
        self._sizes: dict[float, float] = {}
        self._familiar: list[dict[str, Tensor]] = []
        self._foreign: list[dict[str, Tensor]] = []

    def add(self, prediction: Prediction, target: Tensor) -> None:
        self.count += len(target)
        self.num_elements += target.numel()
        self._log_prob += float(prediction.log_prob(target).double().sum())
        for coverage in prediction.thresholds:
            covered = float(prediction.covers(target, coverage).sum())
            size = float(prediction.set_size(coverage).double().mean()) * len(target)
            self._covered[coverage] = self._covered.get(coverage, 0.0) + covered
            self._sizes[coverage] = self._sizes.get(coverage, 0.0) + size
        self._familiar.append(prediction.unfamiliarity())

    def add_foreign(self, prediction: Prediction) -> None:
        self._foreign.append(prediction.unfamiliarity())

    @property
    def nll(self) -> float:
        return -self._log_prob / self.num_elements

    def sets(self) -> dict[float, SetScores]:
        return {
            coverage: SetScores(covered / self.num_elements, self._sizes[coverage] / self.count)
            for coverage, covered in self._covered.items()
        }

    def by(self) -> dict[str, Detection]:
        if not self._foreign:
            return {}
        familiar, foreign = _joined(self._familiar), _joined(self._foreign)
        return {name: detection(familiar[name], foreign[name]) for name in familiar}


def _joined(batches: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.cat([batch[name] for batch in batches]) for name in batches[0]}
