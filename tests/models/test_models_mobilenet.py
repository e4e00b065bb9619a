"""MobileNetV2 for CIFAR: 17 blocks of 7136 hidden channels, the size of the maps, and where the input is added."""

import pytest
import torch
from torch import nn

from nestling.models import MobileNetV2


def depthwise(network: nn.Module) -> list[nn.Conv2d]:
    return [m for m in network.modules() if isinstance(m, nn.Conv2d) and m.groups > 1 and m.kernel_size == (3, 3)]


def test_17_blocks_of_7136_hidden_channels():
    with torch.device("meta"):
        layers = depthwise(MobileNetV2())
    assert len(layers) == 17
    assert sum(layer.out_channels for layer in layers) == 7136
    assert all(layer.groups == layer.in_channels == layer.out_channels for layer in layers)


@pytest.mark.parametrize("width", [0.5, 1.5, 2.0])
def test_hidden_channels_follow_the_width(width):
    with torch.device("meta"):
        assert sum(layer.out_channels for layer in depthwise(MobileNetV2(width=width))) == 7136 * width


def test_three_halvings_leave_four_by_four():
    network = MobileNetV2(width=0.1)
    features = network.stem(torch.zeros(2, 3, 32, 32))
    sides = [features.shape[-1]]
    for block in network.blocks:
        features = block(features)
        sides.append(features.shape[-1])
    assert sides == [32] * 4 + [16] * 3 + [8] * 7 + [4] * 4
    assert network.last(features).shape == (2, 128, 4, 4)


@pytest.mark.parametrize("width", [0.01, 0.1, 1.0])
def test_the_blocks_that_add_their_input_do_not_depend_on_the_width(width):
    with torch.device("meta"):
        adding = [index for index, block in enumerate(MobileNetV2(width=width).blocks) if block.adds_input]
    assert adding == [2, 4, 5, 7, 8, 9, 11, 12, 14, 15]


def test_a_block_whose_projection_is_silent_returns_its_input():
    torch.manual_seed(0)
    block = MobileNetV2(width=0.25).blocks[2]
    nn.init.zeros_(block.project[1].weight)
    features = torch.randn(2, 6, 4, 4)
    assert torch.equal(block(features), features)
