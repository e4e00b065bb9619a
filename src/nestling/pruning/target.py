"""Prunes to a target: drops the units or weights with the least signal for their cost until a budget holds."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from nestling.budgets import BUDGETS, Budgets, Limit, read_budgets
from nestling.errors import ArgumentError, BudgetError
from nestling.pruning.cutting import joined
from nestling.pruning.delivered import Delivered, latencies_of
from nestling.pruning.sites import Site
from nestling.running import Cost

Flags = Mapping[str, Tensor]
Build = Callable[[Flags], nn.Module]

_AIM = {"latency_ms": 0.95, "bytes": 0.95}
"""The share of the limit to aim at: latencies scatter by a few percent, and the last training may cost bytes."""
_PRICED_AS = {"macs": "macs", "latency_ms": "macs", "params": "params", "bytes": "params"}
"""The cost that prices a unit under each budget: one that is computed and not measured."""


@dataclass(frozen=True)
class Target:
    """The ``limits`` that a pruned network must keep to, by name; ``whole`` is the original network."""

    limits: Mapping[str, Limit]
    whole: Delivered

    def __str__(self) -> str:
        return ", ".join(f"{name}={limit}" for name, limit in self.limits.items())

    def check(self, network: nn.Module) -> None:
        """Raise if a network is above a limit."""
        compared = self._against(network)
        if any(cost > most for cost, most in compared.values()):
            costs, limits = ({name: pair[k] for name, pair in compared.items()} for k in (0, 1))
            advice = "Raise the budget, or let more be pruned: inputs=True, where='all', fewer names in exclude."
            raise BudgetError(limits, costs, advice)

    def fits(self, network: nn.Module) -> bool:
        """Whether a network keeps to every limit."""
        return all(cost <= most for cost, most in self._against(network).values())

    def price(self, network: nn.Module) -> float:
        """The cost of a network under the limits: the sum of its shares of the whole network's costs."""
        delivered = Delivered(network, self.whole.example)
        names = {_PRICED_AS[name] for name in self.limits}
        total: float = sum(getattr(delivered, name) / max(1, getattr(self.whole, name)) for name in sorted(names))
        return total

    def exceeded(self, before: Cost, after: Cost) -> str:
        """What to say if a network, measured once more as it is delivered, is above a limit."""
        pairs = [(name, getattr(after, name), limit.most(getattr(before, name))) for name, limit in self.limits.items()]
        above = [f"{name} is {cost:.4g}, above the budget of {most:.4g}" for name, cost, most in pairs if cost > most]
        return f"Measured again, {' and '.join(above)}: give a smaller one." if above else ""

    def _against(self, network: nn.Module) -> dict[str, tuple[float, float]]:
        """By the name of each limit the cost of a network, and the most that it may be."""
        both = Delivered(network, self.whole.example), self.whole
        costs = {}
        for name, limit in self.limits.items():
            is_time = name == "latency_ms"
            cost, whole = latencies_of(*both) if is_time else (getattr(each, name) for each in both)
            costs[name] = cost, _AIM.get(name, 1.0) * limit.most(whole)
        return costs


def target_of(under: Budgets, module: nn.Module, example: Any) -> Target | None:  # noqa: ANN401
    """The target of ``prune(under=...)``, None if there is none."""
    limits = read_budgets(under)
    for name in limits:
        if name not in BUDGETS:
            raise ArgumentError("under", repr(name), f"one of {', '.join(BUDGETS)}", "Write macs=0.5x, for example.")
    return Target(limits, Delivered(module, example)) if limits else None


def narrowed(target: Target, signals: Flags, kept: Flags, last: Flags, build: Build) -> Flags:
    """Drop more of what is kept, what has the smallest signal first, until the network that is built fits the target.

    ``last`` has what is never dropped. All four mappings have one entry (size,) per layer or site.
    """
    if target.fits(build(kept)):
        return kept
    target.check(build(last))
    names = list(kept)
    flat_kept, flat_last, flat_signals = (
        torch.cat([each[n].flatten() for n in names]) for each in (kept, last, signals)
    )
    candidates = (flat_kept & ~flat_last).nonzero().squeeze(1)
    order = candidates[flat_signals[candidates].argsort(stable=True)]

    def without(number: int) -> dict[str, Tensor]:
        parts = torch.split(flat_kept.index_fill(0, order[:number], False), [kept[name].numel() for name in names])
        return {name: part.view_as(kept[name]) for name, part in zip(names, parts, strict=True)}

    too_few, enough = 0, len(order)
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        too_few, enough = (too_few, middle) if target.fits(build(without(middle))) else (middle, enough)
    return without(enough)


def signal_for_cost(target: Target, signals: Flags, kept: Flags, build: Build) -> dict[str, Tensor]:
    """The signal of each unit over what it costs of the budget, the mean saving when half of its site's units go."""
    now = target.price(build(kept))
    weighed = {}
    for site, flags in kept.items():
        places = flags.nonzero().squeeze(1)
        gone = places[len(places) - len(places) // 2 :]
        saved = now - target.price(build({**kept, site: flags.index_fill(0, gone, False)})) if len(gone) else 1.0
        weighed[site] = signals[site] / max(saved / max(1, len(gone)), torch.finfo(torch.float32).tiny)
    return weighed


def strongest(signals: Flags, kept: Flags) -> dict[str, Tensor]:
    """The one kept entry of each layer or site with the largest signal."""
    best = {}
    for name, flags in kept.items():
        place = signals[name].where(flags, -torch.inf).flatten().argmax()
        best[name] = torch.zeros_like(flags.flatten()).index_fill(0, place, True).view_as(flags)
    return best


def strongest_units(sites: Sequence[Site], signals: Flags, kept: Flags) -> dict[str, Tensor]:
    """The strongest unit of each group, and for each site of single features the strongest that these units give."""
    best = strongest(signals, kept)
    groups = {site.name: best[site.name] if site.group is not None else kept[site.name] for site in sites}
    return {name: best[name] for name in best} | strongest(signals, _of_features(sites, joined(sites, groups)))


def _of_features(sites: Sequence[Site], flags: Flags) -> dict[str, Tensor]:
    return {site.name: flags[site.name] for site in sites if site.group is None}
