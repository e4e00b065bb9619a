"""The registry of networks: its names, what it builds, and what it says of a name or an option it does not know."""

import pytest
import torch

from nestling import models
from nestling.errors import ArgumentError

NAMES = (
    "mlp",
    "lenet_300_100",
    "lenet_500_300",
    "lenet_5_caffe",
    "vgg11",
    "vgg16_like",
    "mobilenet_v2",
    "resnext_cifar",
    "resnet14",
    "unet",
)


def test_names():
    assert models.names() == NAMES


@pytest.mark.parametrize("ask", [models.build, models.example_shape])
@pytest.mark.parametrize("name", ["vgg", "", "VGG11"])
def test_an_unknown_name_is_answered_with_the_known_ones(ask, name):
    with pytest.raises(ArgumentError) as caught:
        ask(name)
    assert all(known in str(caught.value) for known in NAMES)
    assert repr(name) in str(caught.value)


def test_an_unknown_option_is_answered_with_the_known_ones():
    with pytest.raises(ArgumentError, match=r"option of vgg11: got widht, .* num_classes, in_channels, width"):
        models.build("vgg11", widht=0.5)


def test_the_depth_in_a_name_is_no_option():
    with pytest.raises(ArgumentError, match="got depth"):
        models.build("resnet14", depth=20)


@pytest.mark.parametrize("name", ["mlp", "lenet_300_100", "lenet_500_300"])
def test_options_of_a_fully_connected_network(name):
    network = models.build(name, in_features=64, num_classes=7)
    assert network(torch.zeros(2, 1, 8, 8)).shape == (2, 7)


@pytest.mark.parametrize("name", ["lenet_5_caffe", "vgg11", "vgg16_like", "mobilenet_v2", "resnext_cifar", "resnet14"])
def test_options_of_a_convolutional_network(name):
    _, *sides = models.example_shape(name)
    network = models.build(name, in_channels=5, num_classes=7, width=0.05)
    assert network(torch.zeros(2, 5, *sides)).shape == (2, 7)


def test_building_twice_shares_nothing():
    first, second = models.build("mlp"), models.build("mlp")
    assert not {id(p) for p in first.parameters()} & {id(p) for p in second.parameters()}
