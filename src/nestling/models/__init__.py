"""The networks of the papers, each a plain ``nn.Module`` that is built by its name."""

import inspect
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from torch import nn

from nestling.errors import ArgumentError
from nestling.models.lenet import LeNet5Caffe
from nestling.models.mlp import MLP, LeNet300, LeNet500
from nestling.models.mobilenet import MobileNetV2
from nestling.models.resnet import ResNet
from nestling.models.resnext import ResNeXtCifar
from nestling.models.unet import UNet
from nestling.models.vgg import VGG11, VGG16Like

__all__ = [
    "MLP",
    "VGG11",
    "LeNet5Caffe",
    "LeNet300",
    "LeNet500",
    "MobileNetV2",
    "ResNeXtCifar",
    "ResNet",
    "UNet",
    "VGG16Like",
    "build",
    "example_shape",
    "names",
]


def names() -> tuple[str, ...]:
    """The names that ``build`` knows."""
    return tuple(_NETWORKS)


def build(name: str, **options: object) -> nn.Module:
    """Build the network called ``name``; its constructor's options are, for example, ``width`` and ``num_classes``."""
    constructor = _network(name).constructor
    known = inspect.signature(constructor).parameters
    for option in options:
        if option not in known:
            raise ArgumentError(f"option of {name}", option, f"one of {', '.join(known)}", "Check its spelling.")
    return constructor(**options)


def example_shape(name: str) -> tuple[int, ...]:
    """The shape, without the batch axis, of an input of the network called ``name`` when built without options."""
    return _network(name).example_shape


class _Network(NamedTuple):
    constructor: Callable[..., nn.Module]
    example_shape: tuple[int, ...]


_MNIST = (1, 28, 28)
_CIFAR = (3, 32, 32)
_LIDC = (1, 128, 128)

_NETWORKS = {
    "mlp": _Network(MLP, _MNIST),
    "lenet_300_100": _Network(LeNet300, _MNIST),
    "lenet_500_300": _Network(LeNet500, _MNIST),
    "lenet_5_caffe": _Network(LeNet5Caffe, _MNIST),
    "vgg11": _Network(VGG11, _CIFAR),
    "vgg16_like": _Network(VGG16Like, _CIFAR),
    "mobilenet_v2": _Network(MobileNetV2, _CIFAR),
    "resnext_cifar": _Network(ResNeXtCifar, _CIFAR),
    "resnet14": _Network(partial(ResNet, 14), _CIFAR),
    "unet": _Network(UNet, _LIDC),
}


def _network(name: str) -> _Network:
    if name not in _NETWORKS:
        raise ArgumentError("name", repr(name), f"one of {', '.join(_NETWORKS)}", "Pass one of these names.")
    return _NETWORKS[name]
