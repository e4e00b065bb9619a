"""The width multiplier: how it rounds, what it refuses, and that it leaves inputs and outputs of a network alone."""

import math

import pytest
import torch
from torch import nn

from nestling import models
from nestling.errors import ArgumentError
from nestling.models.multiplier import multiplied


@pytest.mark.parametrize(
    ("size", "width", "expected"),
    [(64, 1.0, 64), (64, 1.5, 96), (64, 2 / 3, 43), (20, 0.33, 7), (500, 1e-9, 1), (1, 0.5, 1), (16, 2, 32)],
)
def test_rounding(size, width, expected):
    assert multiplied(size, width) == expected


@pytest.mark.parametrize("width", [0, 0.0, -1.0, math.nan, math.inf, True, "1"])
@pytest.mark.parametrize("name", models.names())
def test_a_width_that_is_no_positive_number_is_refused(name, width):
    with pytest.raises(ArgumentError, match="width"):
        models.build(name, width=width)


def sizes(network: nn.Module) -> list[tuple[int, int]]:
    """(inputs, outputs) of every convolution and linear layer, in the order of the code."""
    found = []
    for module in network.modules():
        if isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
            found.append((module.in_channels, module.out_channels))
        if isinstance(module, nn.Linear):
            found.append((module.in_features, module.out_features))
    return found


@pytest.mark.parametrize("name", ["mlp", "lenet_300_100", "lenet_500_300", "lenet_5_caffe", "vgg16_like", "resnet14"])
def test_every_hidden_size_is_multiplied_and_no_other(name):
    with torch.device("meta"):
        (image, first), *full, (last, classes) = sizes(models.build(name))
        double = sizes(models.build(name, width=2))
    expected = [(image, 2 * first), *((2 * inputs, 2 * outputs) for inputs, outputs in full), (2 * last, classes)]
    assert double == expected
