"""The second stage of dependent beta-Bernoulli dropout, and the network that decides by itself what to compute."""

from collections.abc import Sequence
from copy import deepcopy

import torch
from torch import Tensor, nn

from nestling.distributions.gates import BetaBernoulli, DependentBetaBernoulli
from nestling.pruning.cutting import CutOut
from nestling.pruning.gated import Gates, gates_in, holding, without_widths
from nestling.pruning.run_time import RunTimeGate, RunTimeReader
from nestling.pruning.sites import Site
from nestling.running import Nested, as_call, in_mode
from nestling.torch_parts import pytree
from nestling.training import Recipe, make_feed


def with_dependence(nested: Nested) -> Nested:
    """A copy of a gated network whose gates depend on the input too, with pi held fixed."""
    copy = deepcopy(nested)
    held = gates_in(copy)
    for number, gate in enumerate(held.by_name.values()):
        assert isinstance(gate, BetaBernoulli)
        held.replace(number, DependentBetaBernoulli(gate.requires_grad_(False)))
    args, kwargs = nested.example
    return holding(without_widths(copy.module, kwargs or args), held)


def with_one_reader(sites: Sequence[Site]) -> tuple[list[Site], dict[str, str]]:
    """The sites that one layer reads, at which alone a gate can look at its input when the network runs."""
    good = [site for site in sites if len(site.readers) == 1]
    left = {site.name: "several layers read it, and each would decide by itself" for site in sites if site not in good}
    return good, left


@torch.no_grad()
def in_use(nested: Nested, data: object, recipe: Recipe) -> None:
    """Give up the units that no training example uses."""
    held = gates_in(nested)
    used = {name: torch.zeros_like(held.alive(name)) for name in held.by_name}
    watch = held.watch(lambda name, multipliers: used[name].logical_or_((multipliers > 0).any(0)))
    device = next((tensor.device for tensor in nested.tensors().values()), torch.device("cpu"))
    with in_mode(nested, training=False), watch:
        for inputs, _ in make_feed(data, recipe).train:
            args, kwargs = as_call(pytree.tree_map_only(Tensor, lambda tensor: tensor.to(device), inputs))
            nested(*args, **kwargs)
    for name, flags in used.items():
        held.alive(name).copy_(flags)


@torch.no_grad()
def run_time_network(taken: CutOut, held: Gates, threshold: float) -> nn.Module:
    """The smaller network with its gates in front of the layers that read them: features of a layer come last."""
    for site, left in zip(held.sites, taken.sites, strict=True):
        gate = held.by_name[site.name]
        assert isinstance(gate, DependentBetaBernoulli)
        units = taken.units[site.name].to(gate.eta.device)
        scale = gate.gamma * torch.rsqrt(gate.running_var + gate.eps)
        reader = site.readers[0]
        pi, mean, slope, shift = (own[units] for own in (gate.gate.mean(), gate.running_mean, scale, gate.eta))
        run_time = RunTimeGate(pi, mean, slope, shift, left.readers[0].rows, reader.axis, threshold)
        _put_in_front(taken.network, reader.path, run_time, site.group is not None)
    return taken.network.eval()


def _put_in_front(network: nn.Module, path: str, gate: RunTimeGate, of_group: bool) -> None:
    """Put a gate before a layer: that of a group before, that of single features behind whatever is there."""
    layer = network.get_submodule(path)
    if isinstance(layer, nn.Sequential):
        *before, last = layer.children()
        new: nn.Module = nn.Sequential(gate, *before, last) if of_group else nn.Sequential(*before, _behind(gate, last))
    else:
        new = RunTimeReader(gate, layer) if of_group else _behind(gate, layer)
    network.set_submodule(path, new)


def _behind(gate: RunTimeGate, layer: nn.Module) -> nn.Module:
    """A layer with a gate that comes after the ones it has."""
    if isinstance(layer, RunTimeReader):
        return RunTimeReader(layer.gate, _behind(gate, layer.layer))
    return RunTimeReader(gate, layer)
