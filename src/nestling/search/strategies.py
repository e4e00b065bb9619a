"""How a search goes from the whole network to the smallest: which cuts are scored, and in which order."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from nestling.reading import Cut, Group, Groups, full_cut, make_cut
from nestling.search.curve import Tried, front
from nestling.search.options import Searching
from nestling.search.quality import Quality

Score = Callable[[Sequence[Cut]], list[Quality]]
"""Scores cuts; the more cuts at once, the more of the work is shared."""


@dataclass(frozen=True)
class Space:
    """The cuts of a network's free groups, and the cost of each."""

    groups: Groups
    cost: Callable[[Cut], float]

    @property
    def full(self) -> Cut:
        """The whole network."""
        return full_cut(self.groups)

    @property
    def num_blocks(self) -> int:
        """The number of blocks that can be removed."""
        return sum(group.num_blocks - group.num_always for group in self.groups.free)

    def removed(self, cut: Cut) -> int:
        """The number of blocks that a cut removes."""
        return sum(group.num_blocks - cut[group.name] for group in self.groups.free)

    def tried(self, qualities: Mapping[Cut, Quality]) -> list[Tried]:
        """Cuts that were scored, as the curve records them."""
        return [Tried(cut, self.removed(cut), self.cost(cut), quality) for cut, quality in qualities.items()]

    def best(self, qualities: Mapping[Cut, Quality]) -> list[Cut]:
        """The scored cuts for which no cheaper cut is as good."""
        return [row.cut for row in front(self.tried(qualities))]


@dataclass(frozen=True)
class Strategy:
    """A way to choose cuts: ``run`` scores cuts, at most ``most`` of them, which is the length of the progress bar."""

    run: Callable[[Space, Score, Searching], None]
    most: Callable[[Space, Searching], int]


def with_width(cut: Cut, name: str, width: int) -> Cut:
    """The same cut with another width of one group."""
    return Cut(tuple((group, width if group == name else before) for group, before in cut.widths))


def beam(space: Space, score: Score, options: Searching) -> None:
    """FN3's heuristic: at each step every kept trajectory gives up one block, in some of the possible ways.

    A group may only give up blocks of the current slab, its last ``window`` share, until all groups have given up
    their slabs; then the slab moves on. The best ``num_kept`` of the resulting cuts go on. At most ``num_kept`` times
    ``num_candidates`` cuts are scored per block that can be removed.
    """
    kept = [space.full]
    score(kept)
    for step in range(space.num_blocks):
        new: dict[Cut, None] = {}
        for number, cut in enumerate(kept):
            candidates = _candidates(space, cut, options.window)
            generator = random.Random(f"{options.seed} {step} {number}")
            tried_groups = generator.sample(candidates, min(options.num_candidates, len(candidates)))
            new |= dict.fromkeys(_one_less(cut, name) for name in tried_groups)
        qualities = dict(zip(new, score(list(new)), strict=True))
        kept = sorted(qualities, key=lambda cut: qualities[cut], reverse=True)[: options.num_kept]


def greedy(space: Space, score: Score, options: Searching) -> None:
    """One trajectory that gives up, at each step, the block that costs the least quality."""
    cut = space.full
    score([cut])
    for _ in range(space.num_blocks):
        new = [_one_less(cut, group.name) for group in space.groups.free if cut[group.name] > group.num_always]
        qualities = score(new)
        cut = max(zip(new, qualities, strict=True), key=lambda pair: pair[1])[0]


def uniform(space: Space, score: Score, options: Searching) -> None:
    """The same fraction of every group."""
    most = max(group.num_blocks for group in space.groups.free)
    cuts = dict.fromkeys(make_cut(space.groups, number / most) for number in range(most, 0, -1))
    score(list(cuts))


def at_random(space: Space, score: Score, options: Searching) -> None:
    """Blocks given up in random order: the ablation of the papers."""
    cuts = {space.full: None}
    for number in range(options.num_trajectories):
        generator = random.Random(f"{options.seed} {number}")
        cut = space.full
        for _ in range(space.num_blocks):
            names = [group.name for group in space.groups.free if cut[group.name] > group.num_always]
            cut = _one_less(cut, generator.choice(names))
            cuts[cut] = None
    score(list(cuts))


NUM_WIDTHS, ROUNDS = 8, 2
"""The number of widths per group that are scored alone, and the number of rounds in which groups trade blocks."""


def dynamic(space: Space, score: Score, options: Searching) -> None:
    """The loss of each group alone at some widths, then the best sum of losses for every budget, then trades.

    Losses are assumed to add up, and costs to be linear around a uniform cut: for each of ``num_points`` such cuts a
    dynamic programme finds the widths with the least loss at its cost. The resulting cuts are scored; then, ``ROUNDS``
    times, groups of the best networks trade blocks with each other.
    """
    alone = {
        group.name: [with_width(space.full, group.name, width) for width in _some_widths(group, NUM_WIDTHS)]
        for group in space.groups.free
    }
    first = dict.fromkeys((space.full, *(cut for cuts in alone.values() for cut in cuts)))
    qualities = dict(zip(first, score(list(first)), strict=True))
    losses = {name: _losses(space, name, qualities) for name in alone}
    targets = [_uniform_cut(space, float(fraction)) for fraction in np.linspace(1, 0, options.num_points + 1)[1:]]
    planned = dict.fromkeys((*targets, *(_best_sum(space, losses, target) for target in targets)))
    qualities |= zip(planned, score(list(planned)), strict=True)
    for step in range(ROUNDS):
        new = dict.fromkeys(other for cut in space.best(qualities) for other in _trades(space, losses, cut, step))
        qualities |= zip(new, score(list(new)), strict=True)


def _candidates(space: Space, cut: Cut, window: float) -> list[str]:
    """The groups that may give up their last block: those with blocks left in the current slab."""
    ends: dict[str, list[int]] = {}
    for group in space.groups.free:
        slab = max(1, round(window * group.num_blocks))
        ends[group.name] = [*range(group.num_blocks - slab, group.num_always, -slab), group.num_always]
    for number in range(max(map(len, ends.values()))):
        names = [name for name, slab_ends in ends.items() if cut[name] > slab_ends[min(number, len(slab_ends) - 1)]]
        if names:
            return names
    return []


def _one_less(cut: Cut, name: str) -> Cut:
    return with_width(cut, name, cut[name] - 1)


def _some_widths(group: Group, number: int) -> list[int]:
    """Some widths of a group, evenly spaced, with the smallest and without the full one."""
    return sorted({round(width) for width in np.linspace(group.num_always, group.num_blocks, number + 1)})[:-1]


def _losses(space: Space, name: str, qualities: dict[Cut, Quality]) -> dict[int, float]:
    """The loss in score when one group alone has a smaller width; between scored widths, linearly interpolated."""
    group, whole = space.groups[name], qualities[space.full].score
    scored = {
        width: whole - qualities[cut].score
        for width in range(group.num_always, group.num_blocks)
        if (cut := with_width(space.full, name, width)) in qualities
    }
    lost = list(np.maximum.accumulate([0.0, *reversed(scored.values())]))[::-1]  # a narrower group loses no less
    every = range(group.num_always, group.num_blocks + 1)
    return dict(zip(every, np.interp(every, [*scored, group.num_blocks], lost).tolist(), strict=True))


_BINS = 512
"""The number of steps into which the dynamic programme divides a budget."""


def _best_sum(space: Space, losses: dict[str, dict[int, float]], target: Cut) -> Cut:
    """The widths with the least sum of losses among those that cost no more than ``target``, with linear costs."""
    base = space.cost(target)
    names = [group.name for group in space.groups.free]
    extra = {n: {w: space.cost(with_width(target, n, w)) - base for w in losses[n]} for n in names}
    least = {name: min(extra_costs.values()) for name, extra_costs in extra.items()}
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
    steps_left, chosen = _BINS, dict(target.widths)
    for name, choice in zip(reversed(names), reversed(choices), strict=True):
        chosen[name] = int(choice[0, steps_left])
        steps_left -= int(choice[1, steps_left])
    return Cut(tuple((name, chosen[name]) for name, _ in target.widths))


def _uniform_cut(space: Space, fraction: float) -> Cut:
    """Every group with the same fraction of the blocks that it can give up."""
    return Cut(
        tuple((g.name, g.num_always + round(fraction * (g.num_blocks - g.num_always))) for g in space.groups.free)
    )


_MOST_TRADES = 4


def _trades(space: Space, losses: dict[str, dict[int, float]], cut: Cut, step: int) -> list[Cut]:
    """Cuts that cost no more: one group gives up blocks and another gets some; the most promising cuts first."""
    most = space.cost(cut)
    trades: list[tuple[float, Cut]] = []
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
                    expected_loss = sum(losses[n][grown[n]] - losses[n][cut[n]] for n in (giver.name, taker.name))
                    trades.append((expected_loss, grown))
    trades.sort(key=lambda trade: (trade[0], trade[1].widths))
    return [traded for _, traded in trades[:_MOST_TRADES]]


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


def _per_block(number: Callable[[Space, Searching], int]) -> Callable[[Space, Searching], int]:
    """``number`` cuts per block that can be removed, and the whole network."""
    return lambda space, options: number(space, options) * space.num_blocks + 1


def _some(space: Space, options: Searching) -> int:
    return 8 * len(space.groups.free) + 300


STRATEGIES: dict[str, Strategy] = {
    "dynamic": Strategy(dynamic, _some),
    "beam": Strategy(beam, _per_block(lambda space, o: o.num_kept * min(o.num_candidates, len(space.groups.free)))),
    "greedy": Strategy(greedy, _per_block(lambda space, options: len(space.groups.free))),
    "uniform": Strategy(uniform, _some),
    "random": Strategy(at_random, _per_block(lambda space, options: options.num_trajectories)),
}
"""The strategies of ``search``, by name."""
