"""Swaps the layers of a module between plain and variational, keeping weights, options, ties and devices."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from nestling.distributions.weights import MultiplicativeGaussian, NaturalGaussian, WeightPosterior
from nestling.network.layers import convolution
from nestling.network.layers.layer import VariationalLayer
from nestling.network.layers.linear import VariationalLinear
from nestling.network.options import PosteriorName, Sampling

START_LOG_ALPHA = -3.0
"""log alpha that every weight starts from: noise of a fifth of its size."""

START_SHARE = 0.1
"""Standard deviation that natural gradients start from, relative to the root mean square of a layer's weights."""

PRIOR_SHARE = 10.0
"""Standard deviation of the prior of such weights, relative to the same."""


def _by_log_alpha(weight: nn.Parameter) -> WeightPosterior:
    log_alpha = torch.full_like(weight, START_LOG_ALPHA)
    return MultiplicativeGaussian(weight, nn.Parameter(log_alpha, requires_grad=weight.requires_grad))


def _by_log_sigma2(weight: nn.Parameter) -> WeightPosterior:
    size = weight.detach().square().mean().clamp_min(torch.finfo(weight.dtype).tiny).sqrt()
    log_sigma2 = torch.zeros_like(weight) + 2 * (START_SHARE * size).log()
    return NaturalGaussian(weight, nn.Parameter(log_sigma2, requires_grad=weight.requires_grad), PRIOR_SHARE * size)


POSTERIORS: dict[PosteriorName, Callable[[nn.Parameter], WeightPosterior]] = {
    "gaussian": _by_log_alpha,
    "ivon": _by_log_sigma2,
}
"""How a posterior starts from the weight of a plain layer."""

_VARIATIONAL: dict[type[nn.Module], Callable[[Any, WeightPosterior, Sampling], VariationalLayer]] = {
    nn.Linear: VariationalLinear.from_plain,
    nn.Conv1d: convolution.VariationalConv1d.from_plain,
    nn.Conv2d: convolution.VariationalConv2d.from_plain,
    nn.Conv3d: convolution.VariationalConv3d.from_plain,
    nn.ConvTranspose1d: convolution.VariationalConvTranspose1d.from_plain,
    nn.ConvTranspose2d: convolution.VariationalConvTranspose2d.from_plain,
    nn.ConvTranspose3d: convolution.VariationalConvTranspose3d.from_plain,
}


def default_posterior(module: nn.Module) -> PosteriorName:
    """What weights="auto" means: ivon with convolutions, else gaussian (docs/decisions/0012)."""
    convolutions = _VARIATIONAL.keys() - {nn.Linear}
    return "ivon" if any(type(part) in convolutions for part in module.modules()) else "gaussian"


_HOOKS = """
    _forward_hooks _forward_hooks_with_kwargs _forward_hooks_always_called _forward_pre_hooks
    _forward_pre_hooks_with_kwargs _backward_hooks _backward_pre_hooks _is_full_backward_hook
""".split()


def make_variational(
    module: nn.Module, exclude: Collection[str], sampling: Sampling, posterior: PosteriorName = "gaussian"
) -> list[str]:
    """Replace linear and convolution layers in place; return the paths of those replaced.

    Layers whose weight another module holds too are left as they are, since a mean is not a tie; so are layers that
    compute their weight (pruned, normalised), that hold more than weight and bias, or whose ``forward`` was replaced.
    """
    shared = shared_weights(module)
    excluded = {part for path, part in module.named_modules(remove_duplicate=False) if _weight_within(path, exclude)}

    def can_be(layer: nn.Module) -> bool:
        ordinary = type(layer) in _VARIATIONAL and layer not in excluded and _is_ordinary(layer)
        return ordinary and isinstance(layer.weight, nn.Parameter) and id(layer.weight) not in shared

    paths = [path for path, layer in module.named_modules() if path and can_be(layer)]
    convert_layers(module, dict.fromkeys(paths, (posterior, sampling)))
    return paths


def convert_layers(module: nn.Module, layers: Mapping[str, tuple[PosteriorName, Sampling]]) -> None:
    """Replace layers in place, by path, each with its posterior and sampling; one that is variational already stays."""

    def variational(path: str, layer: Any) -> nn.Module | None:  # noqa: ANN401
        if path not in layers or isinstance(layer, VariationalLayer):
            return None
        posterior, sampling = layers[path]
        return _VARIATIONAL[type(layer)](layer, POSTERIORS[posterior](layer.weight), sampling).train(layer.training)

    _swap(module, variational)
    _fit_fast_paths(module)


def converted_layers(module: nn.Module) -> dict[str, tuple[PosteriorName, Sampling]]:
    """The variational layers of a module, by path, with what ``convert_layers`` is to be given to make them."""
    names: dict[type, PosteriorName] = {MultiplicativeGaussian: "gaussian", NaturalGaussian: "ivon"}
    layers = {path: part for path, part in module.named_modules() if isinstance(part, VariationalLayer)}
    return {
        path: (names[type(own.posterior)], own.sampling) for path, own in layers.items() if type(own.posterior) in names
    }


def make_plain(module: nn.Module) -> nn.Module:
    """Replace every variational layer in place by the plain one with its mean as the weight."""
    if isinstance(module, VariationalLayer):
        return module.to_plain().train(module.training)

    def plain(path: str, layer: nn.Module) -> nn.Module | None:
        return layer.to_plain().train(layer.training) if isinstance(layer, VariationalLayer) else None

    _swap(module, plain)
    _fit_fast_paths(module)
    return module


def _fit_fast_paths(module: nn.Module) -> None:
    """Keep torch's one kernel for an encoder layer from reading weights past the layers that would draw them."""
    for part in module.modules():
        if isinstance(part, nn.TransformerEncoderLayer):
            drawn = any(isinstance(own, VariationalLayer) for own in part.modules())
            known = (F.relu, nn.ReLU, 1), (F.gelu, nn.GELU, 2)
            kinds = [kind for f, of, kind in known if part.activation is f or isinstance(part.activation, of)]
            part.activation_relu_or_gelu = kinds[0] if kinds and not drawn else 0


def _swap(module: nn.Module, change: Callable[[str, nn.Module], nn.Module | None]) -> None:
    """Replace submodules, with their hooks, wherever they occur; one that occurs in several places stays one."""
    changed: dict[nn.Module, nn.Module] = {}
    for path, layer in list(module.named_modules()):
        new = change(path, layer) if path else None
        if new is not None:
            changed[layer] = new
            for name in _HOOKS:
                setattr(new, name, getattr(layer, name))
    for parent in list(module.modules()):
        for name, child in parent._modules.items():  # not named_children, which passes over a child's second name
            if child in changed:
                parent._modules[name] = changed[child]


def _weight_within(path: str, names: Collection[str]) -> bool:
    """Whether the weight of the module at a path is one of the names, or lies within a module of that name."""
    return any(f"{path}.weight.".startswith(f"{name}.") for name in names)


def _is_ordinary(layer: nn.Module) -> bool:
    """Whether a layer holds what its class gives it and nothing else."""
    own = layer._parameters.keys() <= {"weight", "bias"} and not layer._buffers and not layer._modules
    return own and "forward" not in vars(layer)


def shared_weights(module: nn.Module) -> set[int]:
    """The identities of parameters that several modules hold."""
    seen: set[int] = set()
    shared: set[int] = set()
    for part in module.modules():
        for parameter in part.parameters(recurse=False):
            (shared if id(parameter) in seen else seen).add(id(parameter))
    return shared
