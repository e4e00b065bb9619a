"""Overlap of masks and the energy distance, against enumeration over pairs of sets."""

import itertools

import numpy as np
import pytest
import torch

from nestling.prediction.masks import dice, generalised_energy_distance, iou


def masks(*shape, classes=2, seed=0):
    return torch.randint(classes, shape, generator=torch.Generator().manual_seed(seed))


def set_iou(left, right, classes):
    """Mean over the foreground classes that are in either mask, as sets of pixels."""
    found = []
    for label in range(1, classes):
        a, b = ({i for i, value in enumerate(mask.tolist()) if value == label} for mask in (left, right))
        if a | b:
            found.append(len(a & b) / len(a | b))
    return np.mean(found) if found else 1.0


def set_dice(left, right):
    a, b = ({i for i, value in enumerate(mask.tolist()) if value} for mask in (left, right))
    return 2 * len(a & b) / (len(a) + len(b)) if a or b else 1.0


@pytest.mark.parametrize("classes", [2, 4])
def test_iou_of_all_pairs(classes):
    left, right = masks(3, 4, 5, classes=classes), masks(3, 2, 5, classes=classes, seed=1)
    left[0, 0], right[0, 1] = 0, 0
    found = iou(left, right, classes)
    for b, m, n in itertools.product(range(3), range(4), range(2)):
        assert found[b, m, n].item() == pytest.approx(set_iou(left[b, m], right[b, n], classes))


def test_dice_of_all_pairs():
    left, right = masks(2, 3, 6), masks(2, 3, 6, seed=1)
    left[0, 0], right[0, 0] = 0, 0
    found = dice(left, right, 2)
    assert found[0, 0, 0] == 1
    for b, m, n in itertools.product(range(2), range(3), range(3)):
        assert found[b, m, n].item() == pytest.approx(set_dice(left[b, m], right[b, n]))


@pytest.mark.parametrize("classes", [2, 3])
def test_energy_distance_is_that_of_enumeration(classes):
    samples, raters = masks(3, 5, 4, classes=classes), masks(3, 2, 4, classes=classes, seed=1)
    found = generalised_energy_distance(samples, raters, classes)
    for b in range(3):

        def mean(left, right):
            return np.mean([1 - set_iou(x, y, classes) for x, y in itertools.product(left, right)])

        s, y = list(samples[b]), list(raters[b])
        assert found[b].item() == pytest.approx(2 * mean(s, y) - mean(s, s) - mean(y, y))


def test_every_pair_of_small_masks():
    """All distributions of one mask against another over three pixels: GED is twice the distance."""
    every = torch.tensor(list(itertools.product((0, 1), repeat=3)))
    for left, right in itertools.product(every, every):
        found = generalised_energy_distance(left.view(1, 1, 3), right.view(1, 1, 3), 2)
        assert found.item() == pytest.approx(2 * (1 - set_iou(left, right, 2)))


def test_same_masks_are_at_no_distance_and_empty_ones_agree():
    raters = masks(2, 4, 9)
    torch.testing.assert_close(generalised_energy_distance(raters, raters, 2), torch.zeros(2, dtype=torch.float64))
    empty = torch.zeros(1, 2, 9)
    assert generalised_energy_distance(empty, empty, 2).item() == 0
    assert generalised_energy_distance(empty, empty + 1, 2).item() == 2
