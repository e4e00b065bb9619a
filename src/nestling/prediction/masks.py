"""Agreement of segmentation masks: intersection over union, Dice, and the generalised energy distance."""

import torch
from torch import Tensor


def iou(masks: Tensor, others: Tensor, num_classes: int) -> Tensor:
    """Intersection over union of every mask (B, M, P) with every mask (B, N, P): (B, M, N).

    The result is the mean over the foreground classes, 1 and above, that occur in either mask, and 1 if both are empty.
    """
    return _over_classes(_class_ious(masks, others, num_classes))


def dice(masks: Tensor, others: Tensor, num_classes: int) -> Tensor:
    """Dice score of every mask (B, M, P) with every mask (B, N, P), averaged as ``iou`` is."""
    ious = _class_ious(masks, others, num_classes)
    return _over_classes(2 * ious / (1 + ious))


def generalised_energy_distance(samples: Tensor, raters: Tensor, num_classes: int) -> Tensor:
    """Squared distance (B,) between the distributions of sampled masks (B, S, P) and of raters' masks (B, R, P).

    GED^2 = 2 E[d(S, Y)] - E[d(S, S')] - E[d(Y, Y')] with d = 1 - IoU; each mean is over all pairs, including each mask
    with itself (Kohl et al. 2018, equation 4).
    """

    def distance(masks: Tensor, others: Tensor) -> Tensor:
        return (1 - iou(masks, others, num_classes)).mean((1, 2))

    return 2 * distance(samples, raters) - distance(samples, samples) - distance(raters, raters)


def _class_ious(masks: Tensor, others: Tensor, num_classes: int) -> Tensor:
    """Intersection over union (foreground classes, B, M, N), NaN where a class is in neither mask."""
    ious = []
    for label in range(1, num_classes):
        a, b = (masks == label).double(), (others == label).double()
        both = a @ b.mT
        ious.append(both / (a.sum(2)[:, :, None] + b.sum(2)[:, None, :] - both))
    return torch.stack(ious)


def _over_classes(values: Tensor) -> Tensor:
    return values.nanmean(0).nan_to_num(nan=1.0)
