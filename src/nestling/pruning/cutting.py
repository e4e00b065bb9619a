"""Takes the kept units out of a network: brings them to the front of their groups and makes an ordinary cut."""

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
        """What ``print`` shows of the layer."""
        return f"num_kept={len(self.index)}"


@dataclass(frozen=True)
class CutOut:
    """A smaller ``network`` with its own ``sites``, and for each the numbers of its ``units``, in their new order."""

    network: nn.Module
    units: dict[str, Tensor]
    sites: list[Site]


@torch.no_grad()
def cut_out(base: Nested, sites: Sequence[Site], kept: Mapping[str, Tensor], means: Mapping[str, Tensor]) -> CutOut:
    """The network with the kept units of each site alone, their means folded into the weights that read them.

    ``base`` is nested with one unit a block and holds the trained weights, which are changed: units are put in another
    order and weights are scaled. ``kept`` (bool) and ``means`` have an entry (size,) for each site.
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
    left = []
    for site in sites:
        if site.group is None:
            path = site.readers[0].path
            columns = _columns(grouped, path, orders, site.size)[_left(grouped, path, widths, site.size)]
            index = kept[site.name][columns].nonzero().squeeze(1)
            units[site.name] = columns[index]
            rows = torch.arange(len(index)).unsqueeze(1)
            readers = [replace(site.readers[0], path=_pick(small, path, index), rows=rows, num_features=len(index))]
        else:
            readers = [_reader_left(grouped, reader, widths[site.name], widths) for reader in site.readers]
        left.append(Site(site.name, len(units[site.name]), tuple(readers)))
    return CutOut(small, units, left)


def with_folded(held: Gates, taken: CutOut, example: Any) -> Nested:  # noqa: ANN401
    """A smaller network with the noise of the gates that it was taken out from."""
    parts = [held.by_name[site.name].part(taken.units[site.name]) for site in taken.sites]
    return gated(taken.network, example, FoldedGates(taken.sites, parts, held.threshold))


def joined(sites: Sequence[Site], kept: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What is kept when gates meet: a unit none of whose features are read is dropped, and with a unit its features."""
    result = {name: flags.clone() for name, flags in kept.items()}
    features = {site.readers[0].path: site.name for site in sites if site.group is None}
    for site in sites:
        if site.group is None:
            continue
        read = torch.zeros_like(result[site.name])
        for reader in site.readers:
            own = features.get(reader.path)
            read |= torch.ones_like(read) if own is None else result[own][reader.rows.to(read.device)].any(1)
        result[site.name] &= read
        for reader in site.readers:
            if reader.path in features:
                gone = reader.rows[~result[site.name].cpu()].reshape(-1)
                result[features[reader.path]][gone.to(read.device)] = False
    return result


def check_not_empty(kept: Mapping[str, Tensor]) -> None:
    """Refuse to take out a network of which a whole layer is gone."""
    empty = [name for name, flags in kept.items() if not bool(flags.any())]
    if empty:
        raise NestlingError(
            f"everything was pruned away in {', '.join(empty)}: no network is left to take out. Train with a smaller "
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
    """The feature that each column of a layer's weight reads after the units of groups have moved."""
    columns = torch.arange(size)
    for site in sites:
        for reader in site.readers:
            if reader.path == path:
                columns[reader.rows.reshape(-1)] = columns[reader.rows[orders[site.name]].reshape(-1)]
    return columns


def _left(sites: Sequence[Site], path: str, widths: Mapping[str, int], size: int) -> Tensor:
    """Which columns of a layer's weight a cut leaves."""
    left = torch.ones(size, dtype=torch.bool)
    for site in sites:
        for reader in site.readers:
            if reader.path == path:
                left[reader.rows[widths[site.name] :].reshape(-1)] = False
    return left


def _reader_left(sites: Sequence[Site], reader: Reader, width: int, widths: Mapping[str, int]) -> Reader:
    """A reader of the first ``width`` units of its site, where it finds them after a cut."""
    left = _left(sites, reader.path, widths, reader.num_features)
    return replace(reader, rows=(left.cumsum(0) - 1)[reader.rows[:width]], num_features=int(left.sum()))


def _pick(network: nn.Module, path: str, index: Tensor) -> str:
    """Replace a linear layer by one that reads the features of an index alone; the path of that."""
    full = network.get_submodule(path)
    known = exact_type(full)
    weight_axis, axis = known.reads or (0, 0)
    if axis != -1:
        wrong = f"{path} of the smaller network is a {type(full).__name__}"
        raise NestlingError(f"{wrong}, so that its single features can't be cut. Prune without inputs=True.")
    weight = full.get_parameter("weight")
    if len(index) == weight.shape[weight_axis]:
        return path
    index, small = index.to(weight.device), deepcopy(full)
    Holders(small).put({"weight": weight.index_select(weight_axis, index)})
    for name, value in known.sizes(small, dict(small.named_parameters())).items():
        setattr(small, name, value)
    network.set_submodule(path, nn.Sequential(KeptInputs(index), small).eval())
    return f"{path}.1"
