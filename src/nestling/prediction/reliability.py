"""How far confidence and accuracy lie apart: the reliability curve, and the expected calibration error."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Reliability:
    """In each of some equal bins of confidence: mean confidence, accuracy (both zero in an empty bin), and count."""

    confidence: tuple[float, ...]
    accuracy: tuple[float, ...]
    count: tuple[int, ...]

    @property
    def ece(self) -> float:
        """Expected calibration error: the mean distance of confidence and accuracy, weighted by the counts."""
        bins = zip(self.confidence, self.accuracy, self.count, strict=True)
        return sum(count * abs(confidence - accuracy) for confidence, accuracy, count in bins) / sum(self.count)


def bin_sums(confidence: Tensor, correct: Tensor, num_bins: int) -> Tensor:
    """For each bin (a, b] of confidence: how many there are, the sum of their confidence, and how many are correct.

    The result (3, num_bins) of a whole data set is the sum of those of its batches; calibration errors of batches, on
    the other hand, must not be averaged. As in Guo et al. 2017 a confidence of one belongs to the last bin, where
    torchmetrics opens a bin of its own.
    """
    values = confidence.double().flatten()
    inner_edges = torch.linspace(0, 1, num_bins + 1, dtype=torch.float64)[1:-1]
    index = torch.bucketize(values, inner_edges.to(values.device))
    weights = (torch.ones_like(values), values, correct.double().flatten())
    return torch.stack([torch.bincount(index, weight, minlength=num_bins) for weight in weights])


def reliability(sums: Tensor) -> Reliability:
    """The curve that sums (3, num_bins) stand for."""
    count, confidence, correct = sums
    some = count.clamp_min(1)
    return Reliability(
        tuple((confidence / some).tolist()), tuple((correct / some).tolist()), tuple(int(n) for n in count.tolist())
    )
