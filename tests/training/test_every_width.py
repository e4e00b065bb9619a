"""The promise of the library in small: every width about as good as a network trained alone for it."""

import pytest
import torch
from photographs import SIZE, patches
from torch import nn
from torch.utils.data import DataLoader

import nestling as nl
from nestling.training import Recipe, train

WIDTHS, SEEDS = (0.25, 0.5, 1.0), (0, 1)


def network(width=1.0):
    a, b = round(16 * width), round(32 * width)
    return nn.Sequential(
        *(nn.Conv2d(3, a, 3, padding=1), nn.BatchNorm2d(a), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(b, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(b, 10)),
    )


@pytest.fixture(scope="module")
def data():
    return patches(3000), patches(500, seed=1), DataLoader(patches(1500, test=True), 500)


def accuracies(data, width, seed, cuts, **changes):
    """Percent of the test patches that a network of a width is right about at each cut, after eight epochs."""
    training, validation, test = data
    torch.manual_seed(seed)
    nested = nl.nest(network(width), torch.zeros(2, 3, SIZE, SIZE), weights=None, num_blocks=8, num_always=1)
    train(nested, (training, validation), Recipe(epochs=8, batch_size=64, cuts=cuts, seed=seed, **changes), quiet=True)
    return [100 * scores.accuracy for scores in nl.evaluate(nested, test, cut=cuts, samples=0)]


def test_one_nested_network_is_as_good_as_networks_trained_alone(data):
    """On average over widths and seeds; with widths drawn apart, one per part of the batch, it is 4.5 points below."""
    nested = [value for seed in SEEDS for value in accuracies(data, 1.0, seed, WIDTHS)]
    alone = [value for seed in SEEDS for width in WIDTHS for value in accuracies(data, width, seed, (1.0,))]
    assert sum(nested) / len(nested) >= sum(alone) / len(alone) - 2.0
    assert sum(nested) / len(nested) > 35.0  # a tenth would be chance
