"""How far confidence and accuracy lie apart: the reliability curve, and the expected calibration error."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Reliability:
    """Confidence and accuracy per bin of confidence; the bins have equal width and cover 0 to 1.

    Attributes:
        confidence: The mean confidence of each bin, zero where a bin is empty.
        accuracy: The share of right answers in each bin, zero where a bin is empty.
        count: The number of answers in each bin.

    Examples:
        >>> curve = nl.evaluate(nested, loader, num_bins=5).reliability
        >>> len(curve.count), sum(curve.count), 0 <= curve.ece <= 1
        (5, 144, True)
    """

    confidence: tuple[float, ...]
    accuracy: tuple[float, ...]
    count: tuple[int, ...]

    @property
    def ece(self) -> float:
        """Expected calibration error: the mean distance between confidence and accuracy, weighted by the counts."""
        bins = zip(self.confidence, self.accuracy, self.count, strict=True)
        return sum(count * abs(confidence - accuracy) for confidence, accuracy, count in bins) / sum(self.count)


def bin_sums(confidence: Tensor, correct: Tensor, num_bins: int) -> Tensor:
    """Per bin (a, b] of confidence: the number of predictions, the sum of confidences, and the number correct.

    The result (3, num_bins) for a data set is the sum over its batches; calibration errors of batches, in contrast,
    must not be averaged. As in Guo et al. 2017 a confidence of one belongs to the last bin; torchmetrics gives it a
    separate bin.
    """
    values = confidence.double().flatten()
    index = _bins(values, num_bins)
    weights = (torch.ones_like(values), values, correct.double().flatten())
    return torch.stack([torch.bincount(index, weight, minlength=num_bins) for weight in weights])


def bin_gaps(confidence: Tensor, correct: Tensor, num_bins: int) -> Tensor:
    """Per example of (B, ...) and bin: the sum of confidence less correctness, over the number of its predictions."""
    values = confidence.double().flatten(1)
    gaps = (values - correct.double().flatten(1)) / values.shape[1]
    return gaps.new_zeros(len(gaps), num_bins).scatter_add(1, _bins(values, num_bins), gaps)


def _bins(values: Tensor, num_bins: int) -> Tensor:
    """The bin (a, b] that each value lies in."""
    inner_edges = torch.linspace(0, 1, num_bins + 1, dtype=torch.float64)[1:-1]
    return torch.bucketize(values, inner_edges.to(values.device))


def reliability(sums: Tensor) -> Reliability:
    """The curve from the sums (3, num_bins) of ``bin_sums``."""
    count, confidence, correct = sums
    divisor = count.clamp_min(1)
    means, accuracies = (confidence / divisor).tolist(), (correct / divisor).tolist()
    return Reliability(tuple(means), tuple(accuracies), tuple(int(n) for n in count.tolist()))
