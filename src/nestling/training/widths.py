"""How training draws widths: from the orders or uniformly, each group by itself or all at the fraction of one."""

from typing import NamedTuple

import torch
from torch import Tensor

from nestling.network import Cut, Nested
from nestling.network.cut import full_cut, make_cut
from nestling.network.group import Group, Groups


class Draw(NamedTuple):
    """A cut, and the log-probability with which the orders gave it: zero, without gradient, where they did not."""

    cut: Cut
    log_prob: Tensor


def draw_cut(
    nested: Nested,
    *,
    explore: float = 0.0,
    coupled: float = 0.0,
    sandwich: float = 0.0,
    generator: torch.Generator | None = None,
) -> Draw:
    """Draw a width for every group.

    With probability ``sandwich`` every group is at its smallest or, as often, at its full width, which all the others
    lie between (US-Net's rule, in expectation). Of the other draws, the share ``explore`` is uniform
    over widths instead of from the orders, so that none of them starves; and in the share ``coupled`` one group, picked
    at random, draws and the others follow at the same fraction of their blocks: the cuts that ``at(fraction)`` asks
    for, which widths drawn apart would hardly ever give.
    """
    groups = nested.groups.free
    extreme, uniform, together, lead = torch.rand(4, generator=generator).tolist()
    if not groups or extreme < sandwich / 2:
        return Draw(smallest_cut(nested.groups), torch.zeros(()))
    if extreme < sandwich:
        return Draw(full_cut(nested.groups), torch.zeros(()))
    leaders = [groups[int(lead * len(groups))]] if together < coupled else list(groups)
    learned = any(parameter.requires_grad for order in nested.orders.values() for parameter in order.parameters())
    if learned and uniform < explore:
        widths = {group.name: _uniform_width(group, generator) for group in leaders}
        log_prob = torch.zeros(())
    else:
        orders = nested.orders
        drawn = {group.name: orders[group.name].sample((), generator) for group in leaders}
        log_prob = torch.stack([orders[name].log_prob(width) for name, width in drawn.items()]).sum()
        widths = {name: int(width) for name, width in drawn.items()}
    if together < coupled:
        (leader,) = leaders
        return Draw(make_cut(nested.groups, _fraction(leader, widths[leader.name])), log_prob)
    return Draw(make_cut(nested.groups, widths), log_prob)


def draw_fraction(nested: Nested, generator: torch.Generator | None = None) -> Cut:
    """Draw one fraction for all groups, uniform between the smallest width and the full one, as US-Net does."""
    lowest = min((_fraction(group, group.num_always) for group in nested.groups.free), default=1.0)
    return make_cut(nested.groups, 1 - (1 - lowest) * float(torch.rand((), generator=generator)))


def smallest_cut(groups: Groups) -> Cut:
    """The cut that keeps only what is always kept."""
    return Cut(tuple((group.name, group.num_always) for group in groups.free))


def _uniform_width(group: Group, generator: torch.Generator | None) -> int:
    return int(torch.randint(group.num_always, group.num_blocks + 1, (), generator=generator))


def _fraction(group: Group, width: int) -> float:
    return width / group.num_blocks
