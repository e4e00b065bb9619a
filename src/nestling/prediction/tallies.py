"""Running sums over the batches of a data set, from which its scores are made at the end."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from nestling.prediction.bounds import Bounds, gap_error, normal_bounds, share_bounds, standard_error
from nestling.prediction.detection import Detection, detection
from nestling.prediction.masks import dice, generalised_energy_distance, iou
from nestling.prediction.predictions import ClassPrediction, Prediction, RegressionPrediction
from nestling.prediction.reliability import bin_gaps, bin_sums, reliability
from nestling.prediction.scores import ClassScores, RegressionScores, Scores, SetScores

if TYPE_CHECKING:
    from nestling.processes import Processes  # imports torch.distributed, which one process alone does not need


class Tally(ABC):
    """Adds up batches of outputs (S, B, ...): ``add`` those with targets, ``add_foreign`` out-of-distribution ones.

    ``_sums`` has totals over all batches, ``_rows`` one entry per example.
    """

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._rows: dict[str, list[Tensor]] = {}

    @abstractmethod
    def add(self, outputs: Tensor, target: Tensor) -> None:
        """Count a batch of the data set."""

    @abstractmethod
    def add_foreign(self, outputs: Tensor) -> None:
        """Count a batch of out-of-distribution data."""

    @abstractmethod
    def scores(self) -> Scores:
        """The scores of everything that was added."""

    def join(self, processes: "Processes") -> None:
        """Add the counts of the other processes."""
        rows = {f"rows {name}": torch.cat(batches) for name, batches in self._rows.items()}
        gathered = processes.gather_tensors({f"sums {name}": total for name, total in self._sums.items()} | rows)
        self._sums, self._rows = {}, {}
        for name, tensor in ((name, tensor) for tensors in gathered for name, tensor in tensors.items()):
            kind, _, name = name.partition(" ")
            if kind == "sums":
                self._count(name, tensor)
            else:
                self._rows.setdefault(name, []).append(tensor)

    def _count(self, name: str, value: Tensor | float) -> None:
        value = torch.as_tensor(value, dtype=torch.float64)
        self._sums[name] = self._sums[name] + value if name in self._sums else value

    def _add_prediction(self, prediction: Prediction, target: Tensor) -> None:
        """Count what every kind of prediction has: likelihood, conformal sets, unfamiliarity per example."""
        self._count("examples", len(target))
        self._count("elements", target.numel())
        self._count("log prob", prediction.log_prob(target).double().sum())
        self._count_squares("nll", prediction.log_prob(target))
        for coverage in prediction.thresholds:
            self._count(f"covered {coverage!r}", prediction.covers(target, coverage).sum())
            self._count(f"size {coverage!r}", prediction.set_size(coverage).double().mean() * len(target))
        self._add_unfamiliarity("familiar", prediction)

    def _count_squares(self, name: str, values: Tensor) -> None:
        """Count the mean of each example's values (B, ...), and its square, for a standard error over the examples."""
        means = values.double().flatten(1).mean(1)
        self._count(f"of {name}", means.sum())
        self._count(f"squares of {name}", means.square().sum())

    def _count_gaps(self, gaps: Tensor) -> None:
        """Count the gaps (B, bins) of each example, whose sums make up a calibration error."""
        self._count("gaps", gaps.sum(0))
        self._count("products of gaps", gaps.T @ gaps)

    def _error(self, name: str) -> float:
        """The standard error of a mean over the examples."""
        return standard_error(self._total(f"of {name}"), self._total(f"squares of {name}"), self._num_examples)

    def _shared_bounds(self, ece: float, by: Mapping[str, Detection]) -> dict[str, Bounds]:
        """The intervals of the scores that all likelihoods have."""
        ece_error = gap_error(self._sums["gaps"], self._sums["products of gaps"], self._num_examples)
        nll = normal_bounds(self._nll, self._error("nll"))
        areas = next((detection.bounds for detection in by.values()), {})
        return {"nll": nll, "ece": normal_bounds(ece, ece_error, 0.0, 1.0), **areas}

    def _add_unfamiliarity(self, of: str, prediction: Prediction) -> None:
        for name, values in prediction.unfamiliarity().items():
            self._rows.setdefault(f"{of} {name}", []).append(values)

    def _total(self, name: str) -> float:
        return float(self._sums[name])

    @property
    def _num_examples(self) -> int:
        return int(self._total("examples"))

    @property
    def _num_elements(self) -> int:
        return int(self._total("elements"))

    @property
    def _nll(self) -> float:
        return -self._total("log prob") / self._num_elements

    def _sets(self) -> dict[float, SetScores]:
        coverages = [name.removeprefix("covered ") for name in self._sums if name.startswith("covered ")]
        return {
            float(coverage): SetScores(
                self._total(f"covered {coverage}") / self._num_elements,
                self._total(f"size {coverage}") / self._num_examples,
            )
            for coverage in coverages
        }

    def _detections(self) -> dict[str, Detection]:
        rows = {name: torch.cat(batches) for name, batches in self._rows.items()}
        return {
            name.removeprefix("familiar "): detection(scores, rows[name.replace("familiar", "foreign", 1)])
            for name, scores in rows.items()
            if name.startswith("familiar ") and name.replace("familiar", "foreign", 1) in rows
        }


class ClassTally(Tally):
    """Sums for labels, of examples or of positions."""

    def __init__(self, predictive: Callable[[Tensor], ClassPrediction], num_bins: int) -> None:
        super().__init__()
        self._predictive = predictive
        self._num_bins = num_bins

    def add(self, outputs: Tensor, target: Tensor) -> None:
        """Count a batch of labels (B, ...), or of those of each rater (B, R, ...)."""
        prediction = self._predictive(outputs)
        rated = target if target.ndim == prediction.log_probs.ndim else target.unsqueeze(1)
        self._add_prediction(prediction, rated)
        probs = prediction.probs
        brier = probs.square().sum(1, keepdim=True) + 1 - 2 * prediction.log_prob(rated).exp()
        confidence = prediction.confidence.unsqueeze(1).expand(rated.shape)
        correct = prediction.labels.unsqueeze(1) == rated
        self._count("brier", brier.sum())
        self._count("bins", bin_sums(confidence, correct, self._num_bins))
        self._count_gaps(bin_gaps(confidence, correct, self._num_bins))
        self._count_squares("brier", brier)
        self._count_squares("accuracy", correct)
        if rated.ndim > 3:  # images, and not texts
            self._add_masks(prediction, rated.flatten(2))

    def add_foreign(self, outputs: Tensor) -> None:
        """Count a batch of out-of-distribution data."""
        self._add_unfamiliarity("foreign", self._predictive(outputs))

    def scores(self) -> ClassScores:
        """The scores of everything that was added."""
        bins = self._sums["bins"]
        curve = reliability(bins)
        masks = self._sums.get("masks")
        overlap, dices, ged = (None, None, None) if masks is None else (masks / self._num_examples).tolist()
        accuracy, brier = float(bins[2].sum()) / self._num_elements, self._total("brier") / self._num_elements
        by = self._detections()
        bounds = self._shared_bounds(curve.ece, by) | {
            "accuracy": share_bounds(accuracy, self._error("accuracy"), self._num_examples),
            "brier": normal_bounds(brier, self._error("brier"), 0.0, 2.0),
        }
        for name, value in (("iou", overlap), ("dice", dices), ("ged", ged)):
            if value is not None:
                bounds[name] = normal_bounds(value, self._error(name), 0.0, 2.0 if name == "ged" else 1.0)
        return ClassScores(
            count=self._num_examples,
            nll=self._nll,
            ece=curve.ece,
            accuracy=accuracy,
            brier=brier,
            bounds=bounds,
            reliability=curve,
            iou=overlap,
            dice=dices,
            ged=ged,
            by=by,
            sets=self._sets(),
        )

    def _add_masks(self, prediction: ClassPrediction, raters: Tensor) -> None:
        num_classes = prediction.log_probs.shape[1]
        best = prediction.labels.flatten(1).unsqueeze(1)
        sampled = best if prediction.samples is None else prediction.samples.argmax(2).flatten(2).transpose(0, 1)
        scores = (
            iou(best, raters, num_classes).mean((1, 2)),
            dice(best, raters, num_classes).mean((1, 2)),
            generalised_energy_distance(sampled, raters, num_classes),
        )
        self._count("masks", torch.stack(scores).sum(1))
        for name, values in zip(("iou", "dice", "ged"), scores, strict=True):
            self._count_squares(name, values.unsqueeze(1))


class RegressionTally(Tally):
    """Sums for numbers; nominal and measured probabilities are compared at ``num_bins`` - 1 points."""

    def __init__(self, predictive: Callable[[Tensor], RegressionPrediction], num_bins: int) -> None:
        super().__init__()
        self._predictive = predictive
        self._nominal = torch.arange(1, num_bins, dtype=torch.float64) / num_bins

    def add(self, outputs: Tensor, target: Tensor) -> None:
        """Count a batch of numbers."""
        prediction = self._predictive(outputs)
        self._add_prediction(prediction, target)
        squared = (target - prediction.mean).double().square()
        self._count("squared", squared.sum())
        self._count_squares("squared", squared)
        central = torch.erf(prediction.nonconformity(target).double().flatten(1) / 2**0.5)
        inside = central.unsqueeze(-1) <= self._nominal
        self._count("inside", inside.sum((0, 1)))
        self._count_gaps((inside.double().mean(1) - self._nominal) / len(self._nominal))

    def add_foreign(self, outputs: Tensor) -> None:
        """Count a batch of out-of-distribution data."""
        self._add_unfamiliarity("foreign", self._predictive(outputs))

    def scores(self) -> RegressionScores:
        """The scores of everything that was added."""
        shares = self._sums["inside"] / self._num_elements
        ece, mse = float((shares - self._nominal).abs().mean()), self._total("squared") / self._num_elements
        by = self._detections()
        low, high = normal_bounds(mse, self._error("squared"), 0.0)
        return RegressionScores(
            count=self._num_examples,
            nll=self._nll,
            ece=ece,
            rmse=mse**0.5,
            bounds=self._shared_bounds(ece, by) | {"rmse": (low**0.5, high**0.5)},
            intervals=dict(zip(self._nominal.tolist(), shares.tolist(), strict=True)),
            by=by,
            sets=self._sets(),
        )
