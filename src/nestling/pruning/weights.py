"""Single weights: noise added to each, the threshold on log alpha, and units without remaining weights."""

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
from nestling.running.layers import layer_type, make_variational, variational_layers


def with_noise(module: nn.Module, example: Any, exclude: Sequence[str] = ()) -> Nested:  # noqa: ANN401
    """A copy of a module whose linear and convolution layers have additive Gaussian noise on each weight."""
    copy = nn.ModuleList([deepcopy(module)])  # so that a module that is one layer can be replaced too
    paths = make_variational(copy, [f"0.{path}" for path in exclude], "local", AdditiveGaussian)
    if not paths:
        kinds = ", ".join(sorted({type(part).__name__ for part in module.modules()}))
        needed = "one with linear or convolution layers that share no weight"
        raise ArgumentError("module", f"a network of {kinds}", needed, "Check exclude, and weights that are shared.")
    return without_widths(copy[0], example)


def kept_weights(nested: Nested, threshold: float) -> dict[str, Tensor]:
    """Which weights of each layer have log alpha below the threshold, by the layer's path."""
    with torch.no_grad():
        return {path: log_alpha < threshold for path, log_alpha in nested.log_alphas(full_cut(nested.groups)).items()}


@torch.no_grad()
def without_weights(nested: Nested, kept: Mapping[str, Tensor]) -> Nested:
    """A copy whose dropped weights are zero, with no noise on them."""
    copy = deepcopy(nested)
    for path, layer in variational_layers(copy.module).items():
        assert isinstance(layer.posterior, AdditiveGaussian)
        layer.posterior.remove(~kept[path])
    return copy


def freeze_dropped(nested: Nested, kept: Mapping[str, Tensor]) -> None:
    """Exclude dropped weights from training: they get no gradient."""
    for path, layer in variational_layers(nested.module).items():
        for parameter in layer.posterior.parameters():
            _freeze_dropped_entries(parameter, kept[path])


def freeze_zeros(module: nn.Module, paths: Iterable[str]) -> None:
    """Exclude the zero weights of plain layers from training."""
    for path in paths:
        weight = weight_of(module.get_submodule(path))
        _freeze_dropped_entries(weight, weight.detach() != 0)


def _freeze_dropped_entries(parameter: Tensor, kept: Tensor) -> None:
    if parameter.requires_grad:
        parameter.register_hook(partial(_where_kept, kept))  # type: ignore[no-untyped-call]


def _where_kept(kept: Tensor, gradient: Tensor) -> Tensor:
    return gradient.where(kept, 0.0)


def check_weights_left(kept: Mapping[str, Tensor]) -> None:
    """Raise if no weight is kept of a whole layer."""
    empty = [path or "the network" for path, flags in kept.items() if not bool(flags.any())]
    if empty:
        shares = ", ".join(f"{path}: {1 - float(flags.float().mean()):.2%}" for path, flags in kept.items())
        raise NestlingError(
            f"everything was pruned away in {', '.join(empty)} (gone: {shares}), and the network would give the same "
            "answer to any input. Train with a smaller kappa or for fewer epochs, or raise the threshold."
        )


@torch.no_grad()
def live_units(base: Nested, sites: Sequence[Site]) -> dict[str, Tensor]:
    """Which units of each site are needed: those that depend on the input and that something reads.

    ``base`` has the sparse weights. The incoming weights of a unit that nothing reads are set to zero. A unit without
    incoming weights is a constant, which is folded into the biases of its readers where that is exact. Either may
    leave other units unread or constant, so that this is repeated.
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
            kept[site.name][0] = True  # an empty layer can't run; one dead unit can
    return kept


class _Constants:
    """Folds the values of units without incoming weights into the biases of the layers that read them."""

    def __init__(self, base: Nested, sites: Sequence[Site]) -> None:
        self._base = base
        layers = {r.path: base.module.get_submodule(r.path) for site in sites for r in site.readers}
        arguments = called_with(layers, base.module, base.example)
        self._inputs: dict[str, Tensor] = {path: args[0] for path, args in arguments.items()}

    def fold(self, site: Site, candidates: Tensor) -> Tensor:
        """Fold those candidates for which that is exact; return which they were."""
        if not bool(candidates.any()) or not all(_is_foldable(self._layer(r.path)) for r in site.readers):
            return torch.zeros_like(candidates)
        columns = {r.path: self._inputs[r.path].movedim(r.axis, 0).flatten(1).cpu()[r.rows] for r in site.readers}
        for values in columns.values():
            candidates = candidates & (values == values[..., :1]).all(-1).all(-1)
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
    """Whether a constant input gives a constant output; for a convolution, only without padding."""
    padding = getattr(layer, "padding", 0)
    inside = padding == 0 or (isinstance(padding, tuple) and not any(padding))
    return layer_type(layer).is_folded and inside and layer.bias is not None


def _reading_weight(base: Nested, reader: Reader) -> Tensor:
    """The weight of a layer as (outputs, features, kernel)."""
    weight = weight_of(base.module.get_submodule(reader.path))
    turned = weight.movedim(reader.weight_axis, 1)
    return turned.flatten(2) if turned.ndim > 2 else turned.unsqueeze(-1)


def _has_incoming(base: Nested, site: Site) -> Tensor:
    """Whether each unit has a nonzero incoming weight: its other parameters (biases, norms) add constants."""
    incoming = torch.zeros(site.size, dtype=torch.bool)
    tensors = base.tensors()
    assert site.group is not None
    for piece in site.group.slices:
        tensor = tensors[piece.tensor]
        if not piece.reads and tensor.ndim > 1:
            other = tensor.movedim(piece.axis, 0).flatten(1)
            incoming |= (other != 0).any(1).cpu()[piece.rows].any(1)
    return incoming


def _silence(base: Nested, site: Site, dropped: Tensor) -> None:
    """Set the incoming weights of units to zero, so that the units that only they read count as unread."""
    tensors = base.tensors()
    assert site.group is not None
    for piece in site.group.slices:
        tensor = tensors[piece.tensor]
        if not piece.reads and tensor.ndim > 1:
            rows = piece.rows[dropped].reshape(-1).to(tensor.device)
            tensor.index_fill_(piece.axis, rows, 0.0)
