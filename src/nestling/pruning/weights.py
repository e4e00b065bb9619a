"""Single weights: noise that is added to each, the threshold on log alpha, and units that no weight is left of."""

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from nestling.distributions.weights import AdditiveGaussian
from nestling.errors import ArgumentError, NestlingError
from nestling.pruning.gated import without_widths
from nestling.pruning.sites import Reader, Site, weight_of
from nestling.reading import full_cut
from nestling.running import Nested, called_with
from nestling.running.layers import VariationalLayer, layer_type, make_variational


def with_noise(module: nn.Module, example: Any, exclude: Sequence[str] = ()) -> Nested:  # noqa: ANN401
    """A copy of a module whose linear and convolution layers have additive Gaussian noise on each weight."""
    copy = nn.ModuleList([deepcopy(module)])  # so that a module that is one layer can be replaced too
    paths = make_variational(copy, [f"0.{path}" for path in exclude], "local", AdditiveGaussian)
    if not paths:
        kinds = ", ".join(sorted({type(part).__name__ for part in module.modules()}))
        needed = "one with linear or convolution layers, each with a weight of its own"
        raise ArgumentError("module", f"a network of {kinds}", needed, "Check exclude, and weights that are shared.")
    return without_widths(copy[0], example)


def kept_weights(nested: Nested, threshold: float) -> dict[str, Tensor]:
    """Which weights of each layer have log alpha below the threshold, by the layer's path."""
    with torch.no_grad():
        return {path: own < threshold for path, own in nested.log_alphas(full_cut(nested.groups)).items()}


@torch.no_grad()
def without_weights(nested: Nested, kept: Mapping[str, Tensor]) -> Nested:
    """A copy whose dropped weights are zero, with no noise on them."""
    copy = deepcopy(nested)
    for path, layer in _layers(copy.module).items():
        assert isinstance(layer.posterior, AdditiveGaussian)
        layer.posterior.remove(~kept[path])
    return copy


def hold(nested: Nested, kept: Mapping[str, Tensor]) -> None:
    """Keep weights that are gone from being trained: they get no gradient."""
    for path, layer in _layers(nested.module).items():
        for parameter in layer.posterior.parameters():
            _hold_parameter(parameter, kept[path])


def hold_zeros(module: nn.Module, paths: Iterable[str]) -> None:
    """The same for the weights of plain layers that are zero."""
    for path in paths:
        weight = weight_of(module.get_submodule(path))
        _hold_parameter(weight, weight.detach() != 0)


def _hold_parameter(parameter: Tensor, kept: Tensor) -> None:
    if parameter.requires_grad:
        parameter.register_hook(partial(_where_kept, kept))  # type: ignore[no-untyped-call]


def _where_kept(kept: Tensor, gradient: Tensor) -> Tensor:
    return gradient.where(kept, 0.0)


def check_weights_left(kept: Mapping[str, Tensor]) -> None:
    """Refuse a network of which a whole layer is gone."""
    empty = [path or "the network" for path, own in kept.items() if not bool(own.any())]
    if empty:
        shares = ", ".join(f"{path}: {1 - float(own.float().mean()):.2%}" for path, own in kept.items())
        raise NestlingError(
            f"everything was pruned away in {', '.join(empty)} (gone: {shares}), and the network would give the same "
            "answer to any input. Train with a smaller kappa or for fewer epochs, or raise the threshold."
        )


@torch.no_grad()
def live_units(base: Nested, sites: Sequence[Site]) -> dict[str, Tensor]:
    """Which units of each site are needed: those that depend on the input and that something reads.

    ``base`` holds the sparse weights. Of a unit that nothing reads the incoming weights are set to zero; one that no
    weight comes into is a constant, which goes into the biases of its readers where that is exact. Both may make
    others of the same kind.
    """
    kept = {site.name: torch.ones(site.size, dtype=torch.bool) for site in sites}
    for _ in range(len(sites) + 1):
        before = {name: flags.clone() for name, flags in kept.items()}
        constants = _Constants(base, sites)
        for site in sites:
            assert site.group is not None
            read = torch.zeros(site.size, dtype=torch.bool)
            for reader in site.readers:
                weight = _reading_weight(base, reader)
                read |= (weight != 0).any(-1).any(0).cpu()[reader.rows].any(1)
            constant = constants.fold(site, read & kept[site.name] & ~_has_incoming(base, site))
            kept[site.name] &= read & ~constant
            _silence(base, site, ~kept[site.name])
        if all(bool((kept[name] == before[name]).all()) for name in kept):
            break
    for site in sites:
        if not bool(kept[site.name].any()):
            kept[site.name][0] = True  # an empty layer can't be run; one unit that gives nothing can
    return kept


class _Constants:
    """Folds the values of units that no weight comes into, into the biases of the layers that read them."""

    def __init__(self, base: Nested, sites: Sequence[Site]) -> None:
        self._base = base
        layers = {r.path: base.module.get_submodule(r.path) for site in sites for r in site.readers}
        seen = called_with(layers, base.module, base.example)
        self._seen: dict[str, Tensor] = {path: args[0] for path, args in seen.items()}

    def fold(self, site: Site, candidates: Tensor) -> Tensor:
        """Which of the candidates could be folded, and were."""
        if not bool(candidates.any()) or not all(_is_foldable(self._layer(r.path)) for r in site.readers):
            return torch.zeros_like(candidates)
        columns = {r.path: self._seen[r.path].movedim(r.axis, 0).flatten(1).cpu()[r.rows] for r in site.readers}
        for seen in columns.values():
            candidates = candidates & (seen == seen[..., :1]).all(-1).all(-1)
        for reader in site.readers:
            layer = self._layer(reader.path)
            weight = _reading_weight(self._base, reader).sum(-1)
            rows = reader.rows[candidates].reshape(-1).to(weight.device)
            values = columns[reader.path][candidates][..., 0].reshape(-1).to(weight)
            layer.bias.add_(weight[:, rows] @ values)  # type: ignore[operator]
            weight_of(layer)[:, rows] = 0
        return candidates

    def _layer(self, path: str) -> nn.Module:
        return self._base.module.get_submodule(path)


def _is_foldable(layer: nn.Module) -> bool:
    """Whether a constant input is a constant output: of a convolution, if it does not look past edges."""
    padding = getattr(layer, "padding", 0)
    inside = padding == 0 or (isinstance(padding, tuple) and not any(padding))
    return layer_type(layer).is_folded and inside and layer.bias is not None


def _reading_weight(base: Nested, reader: Reader) -> Tensor:
    """The weight of a layer as (outputs, features, kernel)."""
    weight = weight_of(base.module.get_submodule(reader.path))
    turned = weight.movedim(reader.weight_axis, 1)
    return turned.flatten(2) if turned.ndim > 2 else turned.unsqueeze(-1)


def _has_incoming(base: Nested, site: Site) -> Tensor:
    """Whether a weight that is not zero comes into each unit: anything else that it has (biases, norms) is constant."""
    incoming = torch.zeros(site.size, dtype=torch.bool)
    tensors = base.tensors()
    assert site.group is not None
    for piece in site.group.slices:
        tensor = tensors[piece.tensor]
        if not piece.reads and tensor.ndim > 1:
            other = tensor.movedim(piece.axis, 0).flatten(1)
            incoming |= (other != 0).any(1).cpu()[piece.rows].any(1)
    return incoming


def _silence(base: Nested, site: Site, gone: Tensor) -> None:
    """Set the incoming weights of units to zero, so that what they read may be seen to be unread."""
    tensors = base.tensors()
    assert site.group is not None
    for piece in site.group.slices:
        tensor = tensors[piece.tensor]
        if not piece.reads and tensor.ndim > 1:
            rows = piece.rows[gone].reshape(-1).to(tensor.device)
            tensor.index_fill_(piece.axis, rows, 0.0)


def _layers(module: nn.Module) -> dict[str, VariationalLayer]:
    return {path: part for path, part in module.named_modules() if isinstance(part, VariationalLayer)}
