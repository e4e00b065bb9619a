"""How training draws widths: from the orders or uniformly, each group by itself or all at the fraction of one."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from nestling.distributions.orders import Order
from nestling.reading import Cut, Group, Groups, full_cut, make_cut, smallest_cut
from nestling.running import Nested

BETWEEN_WEIGHT = 2.0
"""How many times as often as the narrowest and the widest a cut between them is drawn alone: docs/decisions/0011."""


class Draw(NamedTuple):
    """A cut, and the log-probability with which learned orders gave it: None where they did not."""

    cut: Cut
    log_prob: Tensor | None


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
        return Draw(smallest_cut(nested.groups), None)
    if extreme < sandwich:
        return Draw(full_cut(nested.groups), None)
    leaders = [groups[int(lead * len(groups))]] if together < coupled else list(groups)
    learned = bool(learned_orders(nested))
    if learned and uniform < explore:
        widths = {group.name: _uniform_width(group, generator) for group in leaders}
        log_prob = None
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


def draw_between(
    nested: Nested, lowest: Cut, *, explore: float = 0.0, coupled: float = 1.0, generator: torch.Generator | None = None
) -> "Draw":
    """Draw a cut between ``lowest`` and the full width.

    In the share ``coupled`` of draws all groups are at one fraction, any as likely. In the others each group has a
    width of its own, never below ``lowest``: uniform in the share ``explore`` if there is a learned order, else from
    the orders. Only the latter have a log-probability.
    """
    groups, least = nested.groups.free, lowest.as_dict()
    together, uniform, place = torch.rand(3, generator=generator).tolist()
    if together < coupled:
        low = min(_fraction(group, least[group.name]) for group in groups)
        widths = make_cut(nested.groups, low + (1 - low) * place).as_dict()
        log_prob = None
    elif learned_orders(nested) and uniform < explore:
        widths = {group.name: _uniform_width(group, generator, least[group.name]) for group in groups}
        log_prob = None
    else:
        drawn = {name: order.sample((), generator) for name, order in nested.orders.items()}
        chances = [order.log_prob(drawn[name]) for name, order in nested.orders.items()]
        log_prob = torch.stack(chances).sum() if learned_orders(nested) else None
        widths = {name: int(width) for name, width in drawn.items()}
    return Draw(Cut(tuple((name, max(width, least[name])) for name, width in widths.items())), log_prob)


def anchor_cuts(groups: Groups, fractions: Sequence[float]) -> list[Cut]:
    """The cuts that fractions name, narrowest first, each once."""
    return list(dict.fromkeys(make_cut(groups, fraction) for fraction in sorted(fractions)))


def draw_anchors(cuts: Sequence[Cut], count: int, generator: torch.Generator | None = None) -> list[Cut]:
    """Draw ``count`` of some cuts, which are sorted, narrowest first: docs/decisions/0011.

    A single one is drawn such that those between the narrowest and the widest are twice as likely as these two: chosen
    equally often, they lag behind networks trained alone. Of several the narrowest is always one. The others are drawn
    from the rest, each the likelier the narrower it is: of three, in the proportions 3, 2 and 1.
    """
    if count >= len(cuts):
        return list(cuts)
    if count == 1:
        weights = torch.ones(len(cuts))
        weights[1:-1] = BETWEEN_WEIGHT
        return [cuts[int(torch.multinomial(weights, 1, generator=generator))]]
    ranks = torch.arange(len(cuts) - 1, 0, -1.0)
    chosen = torch.multinomial(ranks, count - 1, generator=generator).tolist()
    return [cuts[0], *(cuts[1 + number] for number in sorted(chosen))]


def learned_orders(nested: Nested) -> list[Order]:
    """The orders that have something to learn."""
    return [order for order in nested.orders.values() if any(p.requires_grad for p in order.parameters())]


def _uniform_width(group: Group, generator: torch.Generator | None, least: int | None = None) -> int:
    return int(torch.randint(least or group.num_always, group.num_blocks + 1, (), generator=generator))


def _fraction(group: Group, width: int) -> float:
    return width / group.num_blocks
