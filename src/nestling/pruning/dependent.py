"""The second stage of dependent beta-Bernoulli dropout, and the network that chooses its units for each input."""

from collections.abc import Sequence
from copy import deepcopy

import torch
from torch import Tensor, nn

from nestling.distributions.gates import BetaBernoulli, DependentBetaBernoulli
from nestling.pruning.cutting import CutOut
from nestling.pruning.gated import Gates, attach_gates, gates_in, without_widths
from nestling.pruning.run_time import RunTimeGate, RunTimeReader
from nestling.pruning.sites import Site
from nestling.running import Nested, Read, as_call, in_mode
from nestling.torch_parts import pytree
from nestling.training import Recipe, make_feed


def with_dependence(nested: Nested) -> Nested:
    """A copy of a gated network whose gates also depend on the input, with pi fixed."""
    copy = deepcopy(nested)
    gates = gates_in(copy)
    for number, gate in enumerate(gates.by_name.values()):
        assert isinstance(gate, BetaBernoulli)
        gates.replace(number, DependentBetaBernoulli(gate.requires_grad_(False)))
    args, kwargs = nested.example
    return attach_gates(without_widths(copy.module, kwargs or args), gates)


def with_one_reader(sites: Sequence[Site]) -> tuple[list[Site], dict[str, str]]:
    """The sites with exactly one reader, since a gate that depends on its input needs one, and why not the others."""
    good = [site for site in sites if len(site.readers) == 1]
    reasons = {
        site.name: "several layers read it, and each would decide by itself" for site in sites if site not in good
    }
    return good, reasons


@torch.no_grad()
def drop_unused(nested: Nested, data: object, recipe: Recipe, read: Read | None = None) -> None:
    """Mark the units that no training example uses as not alive."""
    gates = gates_in(nested)
    used = {name: torch.zeros_like(gates.alive(name)) for name in gates.by_name}
    watch = gates.watch(lambda name, multipliers: used[name].logical_or_((multipliers > 0).any(0)))
    device = nested.device
    with in_mode(nested, training=False), watch:
        for inputs, _ in make_feed(data, recipe, read=read).train:
            args, kwargs = as_call(pytree.tree_map_only(Tensor, lambda tensor: tensor.to(device), inputs))
            nested(*args, **kwargs)
    for name, flags in used.items():
        gates.alive(name).copy_(flags)


@torch.no_grad()
def run_time_network(smaller: CutOut, gates: Gates, threshold: float) -> nn.Module:
    """The smaller network with its gates before the layers that read them; gates of single features come last."""
    for site, smaller_site in zip(gates.sites, smaller.sites, strict=True):
        gate = gates.by_name[site.name]
        assert isinstance(gate, DependentBetaBernoulli)
        units = smaller.units[site.name].to(gate.eta.device)
        scale = gate.gamma * torch.rsqrt(gate.running_var + gate.eps)
        reader = site.readers[0]
        pi, mean, slope, shift = (values[units] for values in (gate.gate.mean(), gate.running_mean, scale, gate.eta))
        run_time = RunTimeGate(pi, mean, slope, shift, smaller_site.readers[0].rows, reader.axis, threshold)
        _put_in_front(smaller.network, reader.path, run_time, site.group is not None)
    return smaller.network.eval()


def _put_in_front(network: nn.Module, path: str, gate: RunTimeGate, of_group: bool) -> None:
    """Put a gate before a layer: a group's gate before the gates that are there, one of single features after them."""
    layer = network.get_submodule(path)
    if isinstance(layer, nn.Sequential):
        *before, last = layer.children()
        new: nn.Module = nn.Sequential(gate, *before, last) if of_group else nn.Sequential(*before, _behind(gate, last))
    else:
        new = RunTimeReader(gate, layer) if of_group else _behind(gate, layer)
    network.set_submodule(path, new)


def _behind(gate: RunTimeGate, layer: nn.Module) -> nn.Module:
    """A layer with a gate that comes after its present gates."""
    if isinstance(layer, RunTimeReader):
        return RunTimeReader(layer.gate, _behind(gate, layer.layer))
    return RunTimeReader(gate, layer)
