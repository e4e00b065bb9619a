"""Swaps the layers of a module between plain and variational, keeping weights, options, ties and devices."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

from torch import Tensor, nn

from nestling.distributions.weights import POSTERIORS, MultiplicativeGaussian, PosteriorName, Sampling, WeightPosterior
from nestling.running.layers.layer import VariationalLayer, variational_layers
from nestling.running.layers.types import exact_type
from nestling.torch_parts import allow_fast_path, child_store, hand_over_hooks, tensor_stores


def default_posterior(module: nn.Module) -> PosteriorName:
    """The posterior for weights="auto": ivon with convolutions, else gaussian (docs/decisions/0012)."""
    weights = [layer.weight for layer in module.modules() if exact_type(layer).variational is not None]
    return "ivon" if any(isinstance(weight, Tensor) and weight.ndim > 2 for weight in weights) else "gaussian"


def make_variational(
    module: nn.Module,
    exclude: Collection[str],
    sampling: Sampling,
    posterior: type[WeightPosterior] = MultiplicativeGaussian,
) -> list[str]:
    """Replace the layers that have a variational form in place; return the paths of those replaced.

    Three kinds of layers are not replaced: those whose weight another module holds too, since the tie would be lost;
    those that compute their weight (pruned, normalised) or hold more than a weight and a bias; and those whose
    ``forward`` was replaced.
    """
    shared = shared_weights(module)
    excluded = {
        submodule for path, submodule in module.named_modules(remove_duplicate=False) if _weight_within(path, exclude)
    }

    def can_be(layer: nn.Module) -> bool:
        if exact_type(layer).variational is None or layer in excluded or not _is_ordinary(layer):
            return False
        return isinstance(layer.weight, nn.Parameter) and id(layer.weight) not in shared

    paths = [path for path, layer in module.named_modules() if path and can_be(layer)]
    convert_layers(module, dict.fromkeys(paths, (posterior, sampling)))
    return paths


def convert_layers(module: nn.Module, layers: Mapping[str, tuple[type[WeightPosterior], Sampling]]) -> None:
    """Replace layers in place, by path, each with its posterior and sampling; variational layers are not replaced."""

    def variational(path: str, layer: Any) -> nn.Module | None:  # noqa: ANN401
        make = exact_type(layer).variational
        if path not in layers or isinstance(layer, VariationalLayer) or make is None:
            return None
        posterior, sampling = layers[path]
        return make(layer, posterior.from_weight(layer.weight), sampling).train(layer.training)

    _swap(module, variational)
    _set_fast_paths(module)


def converted_layers(module: nn.Module) -> dict[str, tuple[str, Sampling]]:
    """The variational layers of a module, by path: the name of the posterior, and how it is drawn."""
    names = {posterior: name for name, posterior in POSTERIORS.items()}
    return {
        path: (names[type(layer.posterior)], layer.sampling)
        for path, layer in variational_layers(module).items()
        if type(layer.posterior) in names
    }


def make_plain(module: nn.Module) -> nn.Module:
    """Replace every variational layer in place by the plain one with its mean as the weight."""
    if isinstance(module, VariationalLayer):
        return module.to_plain().train(module.training)

    def plain(path: str, layer: nn.Module) -> nn.Module | None:
        return layer.to_plain().train(layer.training) if isinstance(layer, VariationalLayer) else None

    _swap(module, plain)
    _set_fast_paths(module)
    return module


def _set_fast_paths(module: nn.Module) -> None:
    """Switch off torch's fused kernel for encoder layers that draw weights: it reads weights without calling layers."""
    for encoder in module.modules():
        if isinstance(encoder, nn.TransformerEncoderLayer):
            allow_fast_path(encoder, not variational_layers(encoder))


def _swap(module: nn.Module, change: Callable[[str, nn.Module], nn.Module | None]) -> None:
    """Replace submodules and keep their hooks; a submodule in several places is replaced by one new submodule."""
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
    """Whether a layer holds only what its class gives it."""
    parameters, buffers = tensor_stores(layer)
    is_plain = parameters.keys() <= {"weight", "bias"} and not buffers and not child_store(layer)
    return is_plain and "forward" not in vars(layer)


def shared_weights(module: nn.Module) -> set[int]:
    """The identities of parameters that several modules hold."""
    held: set[int] = set()
    shared: set[int] = set()
    for submodule in module.modules():
        for parameter in submodule.parameters(recurse=False):
            (shared if id(parameter) in held else held).add(id(parameter))
    return shared
