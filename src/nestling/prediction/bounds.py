"""Intervals over the test set: where a score would lie, 95 times in 100, with other examples of the same kind."""

import math

from torch import Tensor

LEVEL = 0.95
Z = 1.959964
"""The standard normal quantile of (1 + LEVEL) / 2."""
_NO_VARIANCE = 1e-12
"""A variance that rounding alone can cause."""
Bounds = tuple[float, float]


def normal_bounds(value: float, error: float, lowest: float = -math.inf, highest: float = math.inf) -> Bounds:
    """Value and standard error to an interval, within the range of the score."""
    return max(lowest, value - Z * error), min(highest, value + Z * error)


def share_bounds(share: float, error: float, count: int) -> Bounds:
    """The interval of a score in [0, 1] by its standard error: Wilson's, for as many draws as have that error.

    Where the examples show no spread (a share of 0 or 1), ``count`` draws are assumed.
    """
    variance = share * (1 - share)
    trials = variance / error**2 if error > 0 and variance > _NO_VARIANCE else float(count)
    centre = (share + Z**2 / (2 * trials)) / (1 + Z**2 / trials)
    half = Z * math.sqrt(max(0.0, variance) / trials + (Z / (2 * trials)) ** 2) / (1 + Z**2 / trials)
    return max(0.0, centre - half), min(1.0, centre + half)


def standard_error(total: float, squares: float, count: int) -> float:
    """The standard error of the mean of ``count`` values, from their sum and the sum of their squares."""
    mean = total / count
    return math.sqrt(max(0.0, squares / count - mean**2) / max(1, count - 1))


def gap_error(gaps: Tensor, products: Tensor, count: int) -> float:
    """The standard error of sum |gap| from the sums (bins,) and (bins, bins) of the gaps of ``count`` examples.

    With the sign of each gap as it is found, the score is the mean of one number per example.
    """
    signs = gaps.sign()
    return standard_error(float(signs @ gaps), float(signs @ products @ signs), count)
