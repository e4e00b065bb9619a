"""How well a score tells out-of-distribution examples from in-distribution ones."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Detection:
    """Area under the ROC curve, and average precision; the out-of-distribution examples are the positive class."""

    auroc: float
    aupr: float


def detection(familiar: Tensor, foreign: Tensor) -> Detection:
    """Both areas from scores (n,) that should be low and scores (m,) that should be high; ties count half."""
    from torchmetrics.functional.classification import binary_auroc, binary_average_precision

    ranks = _ranks(torch.cat((familiar, foreign)))
    positive = torch.cat((torch.zeros(len(familiar)), torch.ones(len(foreign)))).long()
    auroc = binary_auroc(ranks, positive, validate_args=False)
    aupr = binary_average_precision(ranks, positive, validate_args=False)
    return Detection(float(auroc), float(aupr))


def _ranks(scores: Tensor) -> Tensor:
    """Ranks within [0, 1], equal for equal scores: torchmetrics squashes scores outside [0, 1], which makes ties."""
    values, ranks = torch.unique(scores, return_inverse=True)
    scaled: Tensor = ranks.double() / max(len(values) - 1, 1)
    return scaled
