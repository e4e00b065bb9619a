"""The residual networks for CIFAR: depth counts layers, and a block whose residual is silent passes its input on."""

import pytest
import torch
from torch import nn

from nestling.errors import ArgumentError
from nestling.models import ResNet


@pytest.mark.parametrize("depth", [8, 14, 20])
def test_depth_counts_the_layers_with_weights_outside_the_shortcuts(depth):
    with torch.device("meta"):
        layers = dict(ResNet(depth).named_modules())
    counted = [key for key, m in layers.items() if isinstance(m, nn.Conv2d | nn.Linear) and "shortcut" not in key]
    assert len(counted) == depth


@pytest.mark.parametrize("depth", [0, 2, 13, 18, -4])
def test_another_depth_is_refused(depth):
    with pytest.raises(ArgumentError, match=r"depth: got .* 6n \+ 2"):
        ResNet(depth)


def test_two_halvings_leave_eight_by_eight():
    network = ResNet(14)
    assert network.blocks(network.stem(torch.zeros(2, 3, 32, 32))).shape == (2, 64, 8, 8)


def test_a_block_whose_residual_is_silent_returns_its_input():
    torch.manual_seed(0)
    block = ResNet(14).blocks[0]
    nn.init.zeros_(block.second[1].weight)
    features = torch.rand(2, 16, 4, 4)
    assert torch.equal(block(features), features)
