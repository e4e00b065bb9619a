"""What holds for every network of the registry: its shapes, its export in both modes, its gradients and its manners."""

import pytest
import torch
from torch import Tensor, nn

from nestling import models

NARROW = 0.125
SMALL_SIDES = {"mobilenet_v2": 8, "resnext_cifar": 8, "resnet14": 8, "unet": 16}


def small_images(name: str, batch: int = 2) -> Tensor:
    """Random images, smaller than the usual ones where the network allows it."""
    channels, side, _ = models.example_shape(name)
    side = SMALL_SIDES.get(name, side)
    return torch.randn(batch, channels, side, side, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def narrow(name: str) -> nn.Module:
    """The network at an eighth of its width, with random norms whose statistics are those of a batch."""
    torch.manual_seed(0)
    network = models.build(name, width=NARROW).double()
    for module in network.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            module.momentum = 1.0
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.uniform_(module.bias, -0.5, 0.5)
    network(small_images(name, batch=4))
    return network


@pytest.mark.parametrize("name", ["mlp", "lenet_5_caffe", "vgg11", "unet"])
def test_output_shape_at_full_width(name):
    outputs = models.build(name)(torch.zeros(2, *models.example_shape(name)))
    assert outputs.shape == ((2, 1, 128, 128) if name == "unet" else (2, 10))


@pytest.mark.parametrize("name", models.names())
def test_output_shape_at_the_smallest_width(name):
    images = small_images(name)
    outputs = models.build(name, width=1e-6).double()(images)
    assert outputs.shape == (images.shape if name == "unet" else (2, 10))


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("name", models.names())
def test_the_exported_network_gives_the_same_output(name, training):
    network, images = narrow(name).train(training), small_images(name)
    exported = torch.export.export(network, (images,)).module()
    torch.testing.assert_close(exported(images), network(images))


@pytest.mark.parametrize("name", models.names())
def test_a_gradient_reaches_every_parameter(name):
    # In eval mode: in train mode a norm subtracts what a norm without a ReLU before it has added (MobileNetV2).
    network, images = narrow(name).eval(), small_images(name, batch=4)
    outputs = network(images)
    (outputs * torch.randn(outputs.shape, generator=torch.Generator().manual_seed(2))).sum().backward()
    largest = {key: parameter.grad.abs().max().item() for key, parameter in network.named_parameters()}
    assert {key: value for key, value in largest.items() if not value > 1e-8} == {}


@pytest.mark.parametrize("name", models.names())
def test_an_image_in_eval_mode_neither_sees_its_neighbours_nor_is_changed(name):
    network, images = narrow(name).eval(), small_images(name)
    torch.testing.assert_close(network(images[:1]), network(images)[:1])
    assert torch.equal(images, small_images(name))
