"""How a search goes from the whole network to the smallest: which cuts it has scored, and in which order."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from nestling.reading import Cut, Group, Groups, full_cut, make_cut
from nestling.search.curve import Tried, front
from nestling.search.options import Searching
from nestling.search.quality import Quality

Score = Callable[[Sequence[Cut]], list[Quality]]
"""Scores cuts; the more at once, the more of the work they share."""


@dataclass(frozen=True)
class Space:
    """The cuts of a network's free groups, and what each costs."""

    groups: Groups
    cost: Callable[[Cut], float]

    @property
    def full(self) -> Cut:
        """The whole network."""
        return full_cut(self.groups)

    @property
    def num_blocks(self) -> int:
        """How many blocks can be removed."""
        return sum(group.num_blocks - group.num_always for group in self.groups.free)

    def removed(self, cut: Cut) -> int:
        """How many blocks a cut lacks."""
        return sum(group.num_blocks - cut[group.name] for group in self.groups.free)

    def tried(self, found: Mapping[Cut, Quality]) -> list[Tried]:
        """Cuts that were scored, as the curve has them."""
        return [Tried(cut, self.removed(cut), self.cost(cut), quality) for cut, quality in found.items()]

    def best(self, found: Mapping[Cut, Quality]) -> list[Cut]:
        """Of cuts that were scored those that no cheaper one is as good as."""
        return [own.cut for own in front(self.tried(found))]


@dataclass(frozen=True)
class Strategy:
    """A way to choose cuts: ``run`` scores some, of no more than ``most``, which the progress bar goes by."""

    run: Callable[[Space, Score, Searching], None]
    most: Callable[[Space, Searching], int]


def with_width(cut: Cut, name: str, width: int) -> Cut:
    """The same cut with another width of one group."""
    return Cut(tuple((own, width if own == name else before) for own, before in cut.widths))


def beam(space: Space, score: Score, options: Searching) -> None:
    """FN3's heuristic: at each step every kept trajectory gives up one block, in some of the ways it can.

    A group may only give up blocks of the present slab, its last ``window`` share, until all groups have given up
    theirs; then the slab moves on. Of all the cuts that come out, the best ``num_kept`` go on. At most ``num_kept``
    times ``num_candidates`` cuts are scored for each block that can be removed.
    """
    kept = [space.full]
    score(kept)
    for step in range(space.num_blocks):
        new: dict[Cut, None] = {}
        for number, cut in enumerate(kept):
            ways = _ways(space, cut, options.window)
            chance = random.Random(f"{options.seed} {step} {number}")
            some = chance.sample(ways, min(options.num_candidates, len(ways)))
            new |= dict.fromkeys(_one_less(cut, name) for name in some)
        found = dict(zip(new, score(list(new)), strict=True))
        kept = sorted(found, key=lambda cut: found[cut], reverse=True)[: options.num_kept]


def greedy(space: Space, score: Score, options: Searching) -> None:
    """One trajectory that gives up, at each step, the block that costs the least quality."""
    cut = space.full
    score([cut])
    for _ in range(space.num_blocks):
        new = [_one_less(cut, group.name) for group in space.groups.free if cut[group.name] > group.num_always]
        found = score(new)
        cut = max(zip(new, found, strict=True), key=lambda own: own[1])[0]


def uniform(space: Space, score: Score, options: Searching) -> None:
    """The same fraction of every group."""
    most = max(group.num_blocks for group in space.groups.free)
    cuts = dict.fromkeys(make_cut(space.groups, number / most) for number in range(most, 0, -1))
    score(list(cuts))


def at_random(space: Space, score: Score, options: Searching) -> None:
    """Blocks given up in random order, the papers' ablation."""
    cuts = {space.full: None}
    for number in range(options.num_trajectories):
        chance = random.Random(f"{options.seed} {number}")
        cut = space.full
        for _ in range(space.num_blocks):
            left = [group.name for group in space.groups.free if cut[group.name] > group.num_always]
            cut = _one_less(cut, chance.choice(left))
            cuts[cut] = None
    score(list(cuts))


NUM_WIDTHS, ROUNDS = 8, 2
"""How many widths of each group alone are scored, and how often groups trade blocks."""


def dynamic(space: Space, score: Score, options: Searching) -> None:
    """What each group loses by itself at some widths, then the best sum of losses for every budget, then repairs.

    The losses are taken to add up, and costs to be linear around a uniform cut: for each of ``num_points`` such cuts a
    dynamic programme finds the widths that lose the least at its cost. Whatever it finds is scored in truth; then,
    ``ROUNDS`` times, groups of the best networks trade blocks with each other.
    """
    alone = {
        group.name: [with_width(space.full, group.name, width) for width in _some_widths(group, NUM_WIDTHS)]
        for group in space.groups.free
    }
    asked = dict.fromkeys((space.full, *(cut for own in alone.values() for cut in own)))
    found = dict(zip(asked, score(list(asked)), strict=True))
    losses = {name: _losses(space, name, found) for name in alone}
    targets = [_uniform_cut(space, float(fraction)) for fraction in np.linspace(1, 0, options.num_points + 1)[1:]]
    planned = dict.fromkeys((*targets, *(_best_sum(space, losses, target) for target in targets)))
    found |= zip(planned, score(list(planned)), strict=True)
    for step in range(ROUNDS):
        new = dict.fromkeys(other for cut in space.best(found) for other in _trades(space, losses, cut, step))
        found |= zip(new, score(list(new)), strict=True)


def _ways(space: Space, cut: Cut, window: float) -> list[str]:
    """The groups that may give up their last block: those with blocks left in the slab that all of them are in."""
    ends: dict[str, list[int]] = {}
    for group in space.groups.free:
        slab = max(1, round(window * group.num_blocks))
        ends[group.name] = [*range(group.num_blocks - slab, group.num_always, -slab), group.num_always]
    for number in range(max(map(len, ends.values()))):
        left = [name for name, own in ends.items() if cut[name] > own[min(number, len(own) - 1)]]
        if left:
            return left
    return []


def _one_less(cut: Cut, name: str) -> Cut:
    return with_width(cut, name, cut[name] - 1)


def _some_widths(group: Group, number: int) -> list[int]:
    """Some widths of a group, evenly spread, with the smallest and without the full one."""
    return sorted({round(own) for own in np.linspace(group.num_always, group.num_blocks, number + 1)})[:-1]


def _losses(space: Space, name: str, found: dict[Cut, Quality]) -> dict[int, float]:
    """What the network loses when one group alone has a smaller width; between those that were scored, on a line."""
    group, whole = space.groups[name], found[space.full].score
    scored = {
        width: whole - found[cut].score
        for width in range(group.num_always, group.num_blocks)
        if (cut := with_width(space.full, name, width)) in found
    }
    lost = list(np.maximum.accumulate([0.0, *reversed(scored.values())]))[::-1]  # a narrower group loses no less
    every = range(group.num_always, group.num_blocks + 1)
    return dict(zip(every, np.interp(every, [*scored, group.num_blocks], lost).tolist(), strict=True))


_BINS = 512
"""Into how many steps the dynamic programme divides a budget."""


def _best_sum(space: Space, losses: dict[str, dict[int, float]], target: Cut) -> Cut:
    """The widths with the least sum of losses among those that cost no more than ``target``, costs linear around it."""
    base = space.cost(target)
    names = [group.name for group in space.groups.free]
    extra = {n: {w: space.cost(with_width(target, n, w)) - base for w in losses[n]} for n in names}
    least = {name: min(own.values()) for name, own in extra.items()}
    budget = -sum(least.values())
    if budget <= 0:
        return target
    best = np.zeros(_BINS + 1)
    choices: list[np.ndarray] = []
    for name in names:
        widths = sorted(losses[name])
        steps = [int(np.ceil((extra[name][w] - least[name]) / budget * _BINS - 1e-9)) for w in widths]
        table = np.full((len(widths), _BINS + 1), np.inf)
        for row, (width, step) in enumerate(zip(widths, steps, strict=True)):
            if step <= _BINS:
                table[row, step:] = best[: _BINS + 1 - step] + losses[name][width]
        choices.append(np.array([np.asarray(widths)[table.argmin(0)], np.asarray(steps)[table.argmin(0)]]))
        best = table.min(0)
    left, found = _BINS, dict(target.widths)
    for name, choice in zip(reversed(names), reversed(choices), strict=True):
        found[name] = int(choice[0, left])
        left -= int(choice[1, left])
    return Cut(tuple((name, found[name]) for name, _ in target.widths))


def _uniform_cut(space: Space, fraction: float) -> Cut:
    """Every group at the same fraction of what it can give up."""
    return Cut(
        tuple((g.name, g.num_always + round(fraction * (g.num_blocks - g.num_always))) for g in space.groups.free)
    )


_MOST_TRADES = 4


def _trades(space: Space, losses: dict[str, dict[int, float]], cut: Cut, step: int) -> list[Cut]:
    """Cuts that cost no more: one group gives up blocks and another gets some, those first that promise the most."""
    most = space.cost(cut)
    found: list[tuple[float, Cut]] = []
    groups = space.groups.free
    for giver in groups:
        size = max(1, giver.num_blocks >> (step + 3))
        if cut[giver.name] - size < giver.num_always:
            continue
        less = with_width(cut, giver.name, cut[giver.name] - size)
        for taker in groups:
            if taker is not giver and cut[taker.name] < taker.num_blocks:
                grown = _grown(space, less, taker.name, most)
                if grown != less:
                    promise = sum(losses[n][grown[n]] - losses[n][cut[n]] for n in (giver.name, taker.name))
                    found.append((promise, grown))
    found.sort(key=lambda own: (own[0], own[1].widths))
    return [own for _, own in found[:_MOST_TRADES]]


def _grown(space: Space, cut: Cut, name: str, most: float) -> Cut:
    """The cut with one group as wide as the budget allows."""
    low, high = cut[name], space.groups[name].num_blocks
    while low < high:
        middle = (low + high + 1) // 2
        if space.cost(with_width(cut, name, middle)) <= most:
            low = middle
        else:
            high = middle - 1
    return with_width(cut, name, low)


def _each_step(number: Callable[[Space, Searching], int]) -> Callable[[Space, Searching], int]:
    """So many cuts for each block that can be removed, and the whole network."""
    return lambda space, options: number(space, options) * space.num_blocks + 1


def _some(space: Space, options: Searching) -> int:
    return 8 * len(space.groups.free) + 300


STRATEGIES: dict[str, Strategy] = {
    "dynamic": Strategy(dynamic, _some),
    "beam": Strategy(
        beam, _each_step(lambda space, own: own.num_kept * min(own.num_candidates, len(space.groups.free)))
    ),
    "greedy": Strategy(greedy, _each_step(lambda space, e: len(space.groups.free))),
    "uniform": Strategy(uniform, _some),
    "random": Strategy(at_random, _each_step(lambda space, e: e.num_trajectories)),
}
"""The strategies of ``search``, by name."""
