"""The VGG networks: their plans, the wide VGG11 of BN3, and images larger than 32x32."""

import pytest
import torch
from torch import nn

from nestling.models import VGG11, VGG16Like


def conv_channels(network: nn.Module) -> list[int]:
    return [module.out_channels for module in network.modules() if isinstance(module, nn.Conv2d)]


def linear_sizes(network: nn.Module) -> list[tuple[int, int]]:
    return [(m.in_features, m.out_features) for m in network.modules() if isinstance(m, nn.Linear)]


def test_bn3_trains_the_wide_vgg11():
    with torch.device("meta"):
        network = VGG11(width=1.5)
    assert conv_channels(network) == [96, 192, 384, 384, 768, 768, 768, 768]
    assert linear_sizes(network) == [(768, 256), (256, 10)]


def test_vgg16_like_has_13_convolutions_and_2_dense_layers():
    with torch.device("meta"):
        network = VGG16Like()
    assert conv_channels(network) == [64, 64, 128, 128, 256, 256, 256, *[512] * 6]
    assert linear_sizes(network) == [(512, 512), (512, 10)]


@pytest.mark.parametrize("network", [VGG11, VGG16Like])
def test_a_norm_follows_everything_but_the_classifier(network):
    with torch.device("meta"):
        layers = [m for m in network().modules() if isinstance(m, nn.Conv2d | nn.Linear)]
        norms = [m for m in network().modules() if isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d)]
    assert [norm.num_features for norm in norms] == [layer.weight.shape[0] for layer in layers[:-1]]
    assert [layer.bias is not None for layer in layers] == [False] * (len(layers) - 1) + [True]


def test_five_halvings():
    torch.manual_seed(0)
    network = VGG11(width=0.05).eval()
    before_pooling = network.features[:-2]
    assert before_pooling(torch.randn(2, 3, 32, 32)).shape[2:] == (1, 1)
    assert before_pooling(torch.randn(2, 3, 64, 64)).shape[2:] == (2, 2)
    assert network(torch.randn(2, 3, 64, 64)).shape == (2, 10)
