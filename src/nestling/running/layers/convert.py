"""Swaps the layers of a module between plain and variational, keeping weights, options, ties and devices."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

from torch import Tensor, nn

from nestling.distributions.weights import POSTERIORS, MultiplicativeGaussian, PosteriorName, Sampling, WeightPosterior
from nestling.running.layers.layer import VariationalLayer
from nestling.running.layers.types import exact_type
from nestling.torch_parts import allow_fast_path, child_store, hand_over_hooks, tensor_stores


def default_posterior(module: nn.Module) -> PosteriorName:
    """What weights="auto" means: ivon with convolutions, else gaussian (docs/decisions/0012)."""
    weights = [part.weight for part in module.modules() if exact_type(part).variational is not None]
    return "ivon" if any(isinstance(own, Tensor) and own.ndim > 2 for own in weights) else "gaussian"


def make_variational(
    module: nn.Module,
    exclude: Collection[str],
    sampling: Sampling,
    posterior: type[WeightPosterior] = MultiplicativeGaussian,
) -> list[str]:
    """Replace the layers that have a variational form in place; return the paths of those replaced.

    Layers whose weight another module holds too are left as they are, since a mean is not a tie; so are layers that
    compute their weight (pruned, normalised), that hold more than weight and bias, or whose ``forward`` was replaced.
    """
    shared = shared_weights(module)
    excluded = {part for path, part in module.named_modules(remove_duplicate=False) if _weight_within(path, exclude)}

    def can_be(layer: nn.Module) -> bool:
        if exact_type(layer).variational is None or layer in excluded or not _is_ordinary(layer):
            return False
        return isinstance(layer.weight, nn.Parameter) and id(layer.weight) not in shared

    paths = [path for path, layer in module.named_modules() if path and can_be(layer)]
    convert_layers(module, dict.fromkeys(paths, (posterior, sampling)))
    return paths


def convert_layers(module: nn.Module, layers: Mapping[str, tuple[type[WeightPosterior], Sampling]]) -> None:
    """Replace layers in place, by path, each with its posterior and sampling; one that is variational already stays."""

    def variational(path: str, layer: Any) -> nn.Module | None:  # noqa: ANN401
        make = exact_type(layer).variational
        if path not in layers or isinstance(layer, VariationalLayer) or make is None:
            return None
        posterior, sampling = layers[path]
        return make(layer, posterior.from_weight(layer.weight), sampling).train(layer.training)

    _swap(module, variational)
    _fit_fast_paths(module)


def converted_layers(module: nn.Module) -> dict[str, tuple[str, Sampling]]:
    """The variational layers of a module, by path: the name of the posterior, and how it is drawn."""
    names = {own: name for name, own in POSTERIORS.items()}
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
            allow_fast_path(part, not drawn)


def _swap(module: nn.Module, change: Callable[[str, nn.Module], nn.Module | None]) -> None:
    """Replace submodules, with their hooks, wherever they occur; one that occurs in several places stays one."""
    changed: dict[nn.Module, nn.Module] = {}
    for path, layer in list(module.named_modules()):
        new = change(path, layer) if path else None
        if new is not None:
            changed[layer] = new
            hand_over_hooks(layer, new)
    for parent in list(module.modules()):
        children = child_store(parent)
        children.update({name: changed[child] for name, child in children.items() if child in changed})


def _weight_within(path: str, names: Collection[str]) -> bool:
    """Whether the weight of the module at a path is one of the names, or lies within a module of that name."""
    return any(f"{path}.weight.".startswith(f"{name}.") for name in names)


def _is_ordinary(layer: nn.Module) -> bool:
    """Whether a layer holds what its class gives it and nothing else."""
    parameters, buffers = tensor_stores(layer)
    own = parameters.keys() <= {"weight", "bias"} and not buffers and not child_store(layer)
    return own and "forward" not in vars(layer)


def shared_weights(module: nn.Module) -> set[int]:
    """The identities of parameters that several modules hold."""
    seen: set[int] = set()
    shared: set[int] = set()
    for part in module.modules():
        for parameter in part.parameters(recurse=False):
            (shared if id(parameter) in seen else seen).add(id(parameter))
    return shared
