"""Extracts the kept units of a network: moves them to the front of their groups and makes an ordinary cut."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from nestling.errors import NestlingError
from nestling.network import permute
from nestling.pruning.gated import FoldedGates, Gates, gated
from nestling.pruning.sites import Reader, Site
from nestling.reading import Holders
from nestling.running import Nested, extract
from nestling.running.layers import exact_type


class KeptInputs(nn.Module):
    """Picks the features that a pruned linear layer still reads."""

    index: Tensor

    def __init__(self, index: Tensor) -> None:
        super().__init__()
        self.register_buffer("index", index)

    def forward(self, x: Tensor) -> Tensor:
        """The kept features, along the last axis."""
        return x.index_select(-1, self.index)

    def extra_repr(self) -> str:
        """The text that ``print`` shows for the layer."""
        return f"num_kept={len(self.index)}"


@dataclass(frozen=True)
class CutOut:
    """A smaller ``network`` with its ``sites``, and for each site the numbers of its ``units`` in their new order."""

    network: nn.Module
    units: dict[str, Tensor]
    sites: list[Site]


@torch.no_grad()
def cut_out(base: Nested, sites: Sequence[Site], kept: Mapping[str, Tensor], means: Mapping[str, Tensor]) -> CutOut:
    """The network with only the kept units of each site, their means folded into the weights that read them.

    ``base`` is nested with one unit per block and has the trained weights, which are changed: units are reordered and
    weights are scaled. ``kept`` (bool) and ``means`` have one entry (size,) per site.
    """
    kept = {name: flags.cpu() for name, flags in joined(sites, kept).items()}
    check_not_empty(kept)
    for site in sites:
        for reader in site.readers:
            _fold(base.module.get_submodule(reader.path), reader, means[site.name].cpu() * kept[site.name])
    grouped = [site for site in sites if site.group is not None]
    orders = {site.name: torch.argsort(~kept[site.name], stable=True) for site in grouped}
    widths = {site.name: int(kept[site.name].sum()) for site in grouped}
    tensors = base.tensors()
    for site in grouped:
        assert site.group is not None
        permute(tensors, site.group, orders[site.name])
    small = extract(base, widths)
    units = {name: order[: widths[name]] for name, order in orders.items()}
    sites_left = []
    for site in sites:
        if site.group is None:
            path = site.readers[0].path
            columns = _columns(grouped, path, orders, site.size)[_columns_left(grouped, path, widths, site.size)]
            index = kept[site.name][columns].nonzero().squeeze(1)
            units[site.name] = columns[index]
            rows = torch.arange(len(index)).unsqueeze(1)
            readers = [replace(site.readers[0], path=_pick(small, path, index), rows=rows, num_features=len(index))]
        else:
            readers = [_reader_after(grouped, reader, widths[site.name], widths) for reader in site.readers]
        sites_left.append(Site(site.name, len(units[site.name]), tuple(readers)))
    return CutOut(small, units, sites_left)


def with_folded(gates: Gates, smaller: CutOut, example: Any) -> Nested:  # noqa: ANN401
    """A smaller network with the noise of the gates of the network that it was extracted from."""
    kept_gates = [gates.by_name[site.name].part(smaller.units[site.name]) for site in smaller.sites]
    return gated(smaller.network, example, FoldedGates(smaller.sites, kept_gates, gates.threshold))


def joined(sites: Sequence[Site], kept: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The kept units where gates meet: a unit needs a feature that is read, and a feature a unit that is kept."""
    result = {name: flags.clone() for name, flags in kept.items()}
    features = {site.readers[0].path: site.name for site in sites if site.group is None}
    for site in sites:
        if site.group is None:
            continue
        read = torch.zeros_like(result[site.name])
        for reader in site.readers:
            feature_site = features.get(reader.path)
            read |= (
                torch.ones_like(read)
                if feature_site is None
                else result[feature_site][reader.rows.to(read.device)].any(1)
            )
        result[site.name] &= read
        for reader in site.readers:
            if reader.path in features:
                dropped = reader.rows[~result[site.name].cpu()].reshape(-1)
                result[features[reader.path]][dropped.to(read.device)] = False
    return result


def check_not_empty(kept: Mapping[str, Tensor]) -> None:
    """Raise if nothing is kept of a whole layer."""
    empty = [name for name, flags in kept.items() if not bool(flags.any())]
    if empty:
        raise NestlingError(
            f"everything was pruned away in {', '.join(empty)}: no network is left to extract. Train with a smaller "
            "kappa or for fewer epochs, start from a pretrained network, or choose a threshold that keeps more."
        )


def _fold(layer: nn.Module, reader: Reader, factors: Tensor) -> None:
    """Multiply the part of a weight that reads each unit by the unit's factor."""
    weight = layer.weight
    assert isinstance(weight, Tensor)
    axis, rows = reader.weight_axis, reader.rows.to(weight.device)
    whole = weight.new_ones(weight.shape[axis])
    whole[rows] = factors.to(weight).unsqueeze(1).expand(rows.shape)
    weight.mul_(whole.view(-1, *[1] * (weight.ndim - axis - 1)))


def _columns(sites: Sequence[Site], path: str, orders: Mapping[str, Tensor], size: int) -> Tensor:
    """The feature that each column of a layer's weight reads after the units of groups were reordered."""
    columns = torch.arange(size)
    for site in sites:
        for reader in site.readers:
            if reader.path == path:
                columns[reader.rows.reshape(-1)] = columns[reader.rows[orders[site.name]].reshape(-1)]
    return columns


def _columns_left(sites: Sequence[Site], path: str, widths: Mapping[str, int], size: int) -> Tensor:
    """Which columns of a layer's weight a cut keeps."""
    kept = torch.ones(size, dtype=torch.bool)
    for site in sites:
        for reader in site.readers:
            if reader.path == path:
                kept[reader.rows[widths[site.name] :].reshape(-1)] = False
    return kept


def _reader_after(sites: Sequence[Site], reader: Reader, width: int, widths: Mapping[str, int]) -> Reader:
    """A reader of the first ``width`` units of its site, with the rows that these units have after a cut."""
    kept = _columns_left(sites, reader.path, widths, reader.num_features)
    return replace(reader, rows=(kept.cumsum(0) - 1)[reader.rows[:width]], num_features=int(kept.sum()))


def _pick(network: nn.Module, path: str, index: Tensor) -> str:
    """Replace a linear layer by one that reads only the features of an index; return the path of the new layer."""
    full = network.get_submodule(path)
    layer_info = exact_type(full)
    weight_axis, axis = layer_info.reads or (0, 0)
    if axis != -1:
        given = f"{path} of the smaller network is a {type(full).__name__}"
        raise NestlingError(f"{given}, so that its single features can't be cut. Prune without inputs=True.")
    weight = full.get_parameter("weight")
    if len(index) == weight.shape[weight_axis]:
        return path
    index, small = index.to(weight.device), deepcopy(full)
    Holders(small).put({"weight": weight.index_select(weight_axis, index)})
    for name, value in layer_info.sizes(small, dict(small.named_parameters())).items():
        setattr(small, name, value)
    network.set_submodule(path, nn.Sequential(KeptInputs(index), small).eval())
    return f"{path}.1"
