"""Fully connected networks: their layers written out, and images flattened to features."""

import torch
from torch import nn

from nestling.models import MLP


def test_output_is_the_layers_written_out():
    torch.manual_seed(0)
    network, features = MLP((6, 5, 4), in_features=7, num_classes=3), torch.randn(2, 7)
    hidden, (*weights, last) = features, [m for m in network.modules() if isinstance(m, nn.Linear)]
    for linear in weights:
        hidden = (hidden @ linear.weight.T + linear.bias).clamp(min=0)
    torch.testing.assert_close(network(features), hidden @ last.weight.T + last.bias)
    assert [linear.out_features for linear in (*weights, last)] == [6, 5, 4, 3]


def test_an_image_is_flattened():
    torch.manual_seed(0)
    network, images = MLP(width=0.1), torch.randn(2, 1, 28, 28)
    torch.testing.assert_close(network(images), network(images.reshape(2, 784)))


def test_without_hidden_layers_it_is_linear():
    torch.manual_seed(0)
    network, a, b = MLP((), in_features=4), torch.randn(2, 4), torch.randn(2, 4)
    torch.testing.assert_close(network(a) + network(b), network(a + b) + network(torch.zeros(2, 4)))
