"""Swaps the layers of a module between plain and variational, keeping weights, options, ties and devices."""

from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import nn

from nestling.distributions.weights import MultiplicativeGaussian
from nestling.network.layers import convolution
from nestling.network.layers.layer import Sampling, VariationalLayer
from nestling.network.layers.linear import VariationalLinear

START_LOG_ALPHA = -3.0
"""log alpha that every weight starts from: noise of a fifth of its size."""

_VARIATIONAL: dict[type[nn.Module], Callable[[Any, MultiplicativeGaussian, Sampling], VariationalLayer]] = {
    nn.Linear: VariationalLinear.from_plain,
    nn.Conv1d: convolution.VariationalConv1d.from_plain,
    nn.Conv2d: convolution.VariationalConv2d.from_plain,
    nn.Conv3d: convolution.VariationalConv3d.from_plain,
    nn.ConvTranspose1d: convolution.VariationalConvTranspose1d.from_plain,
    nn.ConvTranspose2d: convolution.VariationalConvTranspose2d.from_plain,
    nn.ConvTranspose3d: convolution.VariationalConvTranspose3d.from_plain,
}


def make_variational(module: nn.Module, exclude: Collection[str], sampling: Sampling) -> list[str]:
    """Replace linear and convolution layers in place; return the paths of those replaced.

    Layers whose weight another module holds too are left as they are, since a mean is not a tie.
    """
    shared = _shared_weights(module)
    replaced = []

    def variational(path: str, layer: nn.Module) -> nn.Module | None:
        make = _VARIATIONAL.get(type(layer))
        if make is None or id(layer.weight) in shared or any(path == e or path.startswith(f"{e}.") for e in exclude):
            return None
        weight = layer.weight
        assert isinstance(weight, nn.Parameter)
        log_alpha = nn.Parameter(torch.full_like(weight, START_LOG_ALPHA))
        replaced.append(path)
        return make(layer, MultiplicativeGaussian(weight, log_alpha), sampling).train(layer.training)

    _swap(module, variational)
    return replaced


def make_plain(module: nn.Module) -> nn.Module:
    """Replace every variational layer in place by the plain one with its mean as the weight."""
    if isinstance(module, VariationalLayer):
        return module.to_plain().train(module.training)

    def plain(path: str, layer: nn.Module) -> nn.Module | None:
        return layer.to_plain().train(layer.training) if isinstance(layer, VariationalLayer) else None

    _swap(module, plain)
    return module


def _swap(module: nn.Module, change: Callable[[str, nn.Module], nn.Module | None]) -> None:
    """Replace submodules wherever they occur; one that occurs in several places stays one."""
    changed: dict[int, nn.Module | None] = {}
    for path, layer in list(module.named_modules()):
        if path:
            changed[id(layer)] = change(path, layer)
    for parent in list(module.modules()):
        for name, child in parent.named_children():
            new = changed.get(id(child))
            if new is not None:
                setattr(parent, name, new)


def _shared_weights(module: nn.Module) -> set[int]:
    seen: set[int] = set()
    shared: set[int] = set()
    for part in module.modules():
        for parameter in part.parameters(recurse=False):
            (shared if id(parameter) in seen else seen).add(id(parameter))
    return shared
