"""The networks of the papers and a small GPT, each a plain ``nn.Module`` that is built by its name."""

import inspect
import math
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from functools import partial
from typing import Any, NamedTuple

from torch import nn

from nestling.errors import ArgumentError
from nestling.models.gpt import GPT, KeyValueCache
from nestling.models.lenet import LeNet5Caffe
from nestling.models.mlp import MLP, LeNet300, LeNet500
from nestling.models.mobilenet import MobileNetV2
from nestling.models.resnet import ResNet
from nestling.models.resnext import ResNeXtCifar
from nestling.models.source import Source, call, function_at, remember, source_of
from nestling.models.unet import UNet
from nestling.models.vgg import VGG11, VGG16Like

__all__ = [
    "GPT",
    "MLP",
    "VGG11",
    "KeyValueCache",
    "LeNet5Caffe",
    "LeNet300",
    "LeNet500",
    "MobileNetV2",
    "ResNeXtCifar",
    "ResNet",
    "Source",
    "UNet",
    "VGG16Like",
    "build",
    "example_shape",
    "names",
    "options_for",
    "source_of",
]


def names() -> tuple[str, ...]:
    """The names of the networks for images and vectors that ``build`` can build; ``"gpt"`` is for texts.

    Returns:
        The names, those of fully connected networks first.

    Examples:
        >>> "vgg11" in nl.models.names()
        True
    """
    return tuple(_NETWORKS)


def build(name: str, **options: Any) -> nn.Module:  # noqa: ANN401
    """Build a network by its name.

    A run folder keeps the name and the options, to build the network again.

    Args:
        name: One of ``names()``, or ``"gpt"``, or ``package.module:function`` for a function of yours that gives an
            ``nn.Module``.
        options: What the constructor takes, such as ``width``, which multiplies the number of channels, and
            ``num_classes``.

    Returns:
        A new network with torch's usual initial weights.

    Raises:
        ArgumentError: If there is no such network, or it does not take one of the options.

    Examples:
        >>> net = nl.models.build("vgg11", width=0.125, num_classes=4)
        >>> tuple(net(torch.zeros(2, 3, 32, 32)).shape)
        (2, 4)
    """
    function = function_at(name) if ":" in name else _network(name).constructor
    return remember(call(name, function, options), Source(name, options))


def options_for(name: str, input_shape: Sequence[int], num_outputs: int) -> dict[str, int]:
    """The options that fit a network to data: the sizes of inputs and outputs that its constructor takes.

    Args:
        name: One of ``names()``, or ``package.module:function``.
        input_shape: The shape of one input, without the batch axis.
        num_outputs: The number of classes, or of numbers per target.

    Returns:
        Those of ``in_features``, ``in_channels``, ``num_classes``, ``out_channels``, ``vocabulary`` and ``context``
        that the constructor has.

    Raises:
        ArgumentError: If there is no such network.

    Examples:
        >>> nl.models.options_for("mlp", data.input_shape, data.num_outputs)
        {'in_features': 64, 'num_classes': 10}
    """
    function = function_at(name) if ":" in name else _network(name).constructor
    sizes = {
        "in_features": math.prod(input_shape),
        "in_channels": input_shape[0],
        "num_classes": num_outputs,
        "out_channels": num_outputs,
        "vocabulary": num_outputs,
        "context": input_shape[-1],
    }
    parameters = inspect.signature(function).parameters
    return {option: value for option, value in sizes.items() if option in parameters}


def example_shape(name: str) -> tuple[int, ...]:
    """The shape, without the batch axis, of an input of a network that is built without options.

    Args:
        name: One of ``names()``, or ``"gpt"``.

    Returns:
        (channels, height, width), or the number of tokens.

    Raises:
        ArgumentError: If there is no such network.

    Examples:
        >>> nl.models.example_shape("vgg11")
        (3, 32, 32)
    """
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


_FOR_TEXTS = {"gpt": _Network(GPT, (128,))}


def _network(name: str) -> _Network:
    known = _NETWORKS | _FOR_TEXTS
    if name not in known:
        matches = get_close_matches(name, known, 1)
        advice = f"Did you mean {matches[0]}?" if matches else "Or name a function of yours as package.module:function."
        raise ArgumentError("model", repr(name), f"one of {', '.join(known)}", advice)
    return known[name]
