"""How well a score tells out-of-distribution examples from in-distribution ones."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from nestling.prediction.bounds import Bounds, share_bounds


@dataclass(frozen=True)
class Detection:
    """How well one uncertainty tells out-of-distribution examples, the positive class, from those of the data set.

    Attributes:
        auroc: Area under the ROC curve; 0.5 is a guess.
        aupr: Average precision; ``base_rate`` is a guess.
        base_rate: The share of out-of-distribution examples among all.
        bounds: The 95 % interval of both areas over the examples, by name.

    Examples:
        >>> noise = [(torch.randn(50, 1, 8, 8), None)]
        >>> scores = nl.evaluate(nested, loader, ood=noise)
        >>> sorted(scores.by), round(scores.by["entropy"].base_rate, 3)
        (['entropy', 'max_probability', 'mutual_information'], 0.258)
    """

    auroc: float
    aupr: float
    base_rate: float = 0.5
    bounds: Mapping[str, Bounds] = field(default_factory=dict)


def detection(familiar: Tensor, foreign: Tensor) -> Detection:
    """Both areas from scores (n,) that should be low and scores (m,) that should be high; ties count half.

    The standard errors are those of the infinitesimal jackknife, from how much each example moves an area: that of the
    AUROC is DeLong's (1988), with n and m in place of n - 1 and m - 1.
    """
    n, m = len(familiar), len(foreign)
    values, ranks = torch.unique(torch.cat((familiar, foreign)).double(), return_inverse=True)
    negatives, positives = (torch.bincount(part, minlength=len(values)).double() for part in ranks.split((n, m)))
    auroc, auroc_error = _auroc(negatives, positives)
    aupr, aupr_error = _average_precision(negatives, positives)
    fewer = min(n, m)
    bounds = {"auroc": share_bounds(auroc, auroc_error, fewer), "aupr": share_bounds(aupr, aupr_error, fewer)}
    return Detection(auroc, aupr, m / (n + m), bounds)


def _auroc(negatives: Tensor, positives: Tensor) -> tuple[float, float]:
    """The area and its standard error, from how many examples of each class have each value, in ascending order."""
    n, m = negatives.sum(), positives.sum()
    below = (negatives.cumsum(0) - negatives / 2) / n
    above = (m - positives.cumsum(0) + positives / 2) / m
    area = (positives * below).sum() / m
    variance = (positives * (below - area).square()).sum() / m**2 + (negatives * (above - area).square()).sum() / n**2
    return float(area), float(variance.sqrt())


def _average_precision(negatives: Tensor, positives: Tensor) -> tuple[float, float]:
    """The mean precision at the positives, and its standard error; ``negatives`` and ``positives`` as in ``_auroc``."""
    m = positives.sum()
    true, false = (counts.flip(0).cumsum(0).flip(0) for counts in (positives, negatives))
    retrieved = true + false
    precision = true / retrieved
    area = (positives * precision).sum() / m
    by_positives = precision - area + (positives * false / retrieved.square()).cumsum(0)
    by_negatives = (positives * true / retrieved.square()).cumsum(0)
    variance = (positives * by_positives.square() + negatives * by_negatives.square()).sum() / m**2
    return float(area), float(variance.sqrt())
