"""Where gates are placed: on the inputs of a group's readers, or on the single features that a linear layer reads."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor, nn

from nestling.errors import ArgumentError
from nestling.reading import Group, Groups, Slice
from nestling.running import Call, called_with
from nestling.running.layers import exact_type, shared_weights


@dataclass(frozen=True)
class Reader:
    """The layer at ``path`` reads each unit of a site at ``rows`` (size, rows per unit) along ``axis`` of its input.

    ``weight_axis`` is the matching axis of its weight.
    """

    path: str
    axis: int
    weight_axis: int
    rows: Tensor = field(repr=False)
    num_features: int

    @cached_property
    def is_plain(self) -> bool:
        """Whether each unit is exactly one feature, in order."""
        return self.rows.shape == (self.num_features, 1) and bool((self.rows[:, 0].diff() == 1).all())

    @cached_property
    def unit_of(self) -> Tensor:
        """The unit (num_features,) that each feature belongs to, and ``size`` for features without a unit."""
        size = self.rows.shape[0]
        unit = torch.full((self.num_features,), size)
        unit[self.rows] = torch.arange(size).unsqueeze(1).expand(self.rows.shape)
        return unit


@dataclass(frozen=True)
class Site:
    """A place for a gate: ``size`` units with all their readers; ``group`` is None for single features of a layer."""

    name: str
    size: int
    readers: tuple[Reader, ...]
    group: Group | None = None


def find_sites(
    module: nn.Module, groups: Groups, *, inputs: bool = False, exclude: Collection[str] = ()
) -> tuple[list[Site], dict[str, str]]:
    """The sites of a network, and for each group without a site the reason.

    ``inputs`` adds a site for the features of every linear layer whose features are not exactly the units of one group:
    layers that read the network's input or flattened channels. ``exclude`` names modules to leave alone.
    """
    sites, reasons = [], {group.name: str(group.frozen_because) for group in groups.frozen}
    shared = shared_weights(module)
    for group in groups.free:
        reading = [piece for piece in group.slices if piece.reads]
        refusal = _refusal(module, group, reading, shared)
        if refusal is None:
            sites.append(Site(group.name, group.size, tuple(_reader(module, piece) for piece in reading), group))
        else:
            reasons[group.name] = refusal
    if inputs:
        plainly_read = {reader.path for site in sites for reader in site.readers if reader.is_plain}
        others = _feature_sites(module, plainly_read, shared)
        sites += [site for site in others if not _is_within(site.readers[0].path, exclude)]
    return sites, reasons


def layer_sites(module: nn.Module) -> list[Site]:
    """A site at the input of every layer whose input can be gated."""
    sites = []
    for path, layer in module.named_modules():
        reads = exact_type(layer).reads
        if reads is not None and getattr(layer, "groups", 1) == 1:
            size = weight_of(layer).shape[reads[0]]
            rows = torch.arange(size).unsqueeze(1)
            sites.append(Site(f"{path}.input", size, (Reader(path, reads[1], reads[0], rows, size),)))
    return sites


def check_called(module: nn.Module, sites: Sequence[Site], call: Call) -> tuple[list[Site], dict[str, str]]:
    """The sites whose readers are all called as layers, with a batch; for each other site the reason."""
    paths = {reader.path for site in sites for reader in site.readers}
    called = called_with({path: module.get_submodule(path) for path in paths}, module, call)
    good = [site for site in sites if all(reader.path in called for reader in site.readers)]
    names = {site.name for site in good}
    reasons = {site.name: "code reads the weights of a layer without calling it" for site in sites}
    return good, {name: why for name, why in reasons.items() if name not in names}


def chosen_sites(sites: Sequence[Site], reasons: dict[str, str], only: Collection[str] | None) -> list[Site]:
    """The chosen sites; raises for unknown names, and for a network without any site."""
    if isinstance(only, str):
        raise ArgumentError("only", repr(only), "a tuple of names", f"Write ({only!r},).")
    by_name = {site.name: site for site in sites}
    for name in only or ():
        if name in reasons:
            raise ArgumentError("only", repr(name), "something that can be pruned", f"It can't: {reasons[name]}.")
        if name not in by_name:
            raise ArgumentError("only", repr(name), f"out of {', '.join(by_name)}", "Check its spelling.")
    chosen = [site for site in sites if only is None or site.name in only]
    if not chosen:
        all_reasons = "; ".join(f"{name}: {reason}" for name, reason in reasons.items()) or "there is no layer in it"
        advice = 'Prune its weights instead (structure="weights"), or gate its inputs (inputs=True).'
        raise ArgumentError("module", f"a network without units to prune ({all_reasons})", "one with some", advice)
    return chosen


def _feature_sites(module: nn.Module, plainly_read: set[str], shared: set[int]) -> Iterator[Site]:
    for path, layer in module.named_modules():
        weight_axis, axis = exact_type(layer).reads or (0, 0)
        if axis == -1 and path and path not in plainly_read and id(layer.weight) not in shared:
            size = weight_of(layer).shape[weight_axis]
            rows = torch.arange(size).unsqueeze(1)
            yield Site(f"{path}.input", size, (Reader(path, axis, weight_axis, rows, size),))


def _is_within(path: str, names: Collection[str]) -> bool:
    """Whether a module is one of the named ones, or part of one."""
    return any(f"{path}.".startswith(f"{name}.") for name in names)


def _refusal(module: nn.Module, group: Group, reading: Sequence[Slice], shared: set[int]) -> str | None:
    """The reason why a group can't be gated, None if it can."""
    if not group.exact:
        return "a norm runs over its units, so that each of them changes the others"
    if not reading:
        return "no layer reads it"
    for piece in reading:
        path, _, key = piece.tensor.rpartition(".")
        layer = module.get_submodule(path)
        reads = exact_type(layer).reads
        if reads is None or key != "weight":
            return f"it is read by {piece.tensor}, of a {type(layer).__name__}"
        if piece.axis != reads[0] or getattr(layer, "groups", 1) != 1:
            return f"{path} reads it in groups"
        if id(layer.weight) in shared:
            return f"{path} shares its weight with another layer"
    return None


def _reader(module: nn.Module, piece: Slice) -> Reader:
    path = piece.tensor.rpartition(".")[0]
    layer = module.get_submodule(path)
    reads = exact_type(layer).reads
    assert reads is not None
    return Reader(path, reads[1], reads[0], piece.rows, weight_of(layer).shape[reads[0]])


def weight_of(layer: nn.Module) -> Tensor:
    """The weight of a layer that has one."""
    weight = layer.weight
    assert isinstance(weight, Tensor)
    return weight
