"""The costs and errors of all combinations of thresholds on a grid, by sums over a histogram of the examples."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nestling.cascade.outcomes import ANSWERS_ALL, LEFT_OUT, Floats, Integers, Outcomes

MOST_CELLS = 1_000_000
"""No grid has more combinations of thresholds."""
_MARGIN = 1e-6
"""How far above the largest score the largest threshold is."""
_DIGITS = 9
"""Sums are rounded to so many digits, so that none is better than an equal one by the order of its terms."""


@dataclass(frozen=True, eq=False)
class Grid:
    """Of every combination of thresholds of all stages but the last: the mean costs, and sums over examples.

    Each array has one axis per stage but the last. Place 0 of an axis stands for a stage that is left out, place j for
    the j-th candidate. ``early`` counts the examples answered before the last stage, ``early_errors`` the wrong answers
    among them. ``lost`` is the sum, and ``lost_squares`` that of squares, of how much more the answer of the last stage
    is expected to be right.
    """

    candidates: tuple[Floats, ...]
    costs: Floats
    early: Floats
    early_errors: Floats
    lost: Floats
    lost_squares: Floats

    def thresholds(self, cell: int) -> Floats:
        """The thresholds (K,) of a cell of the flattened grid; the last stage answers all."""
        places = np.unravel_index(cell, self.costs.shape)
        pairs = zip(self.candidates, places, strict=True)
        return np.array([*(values[place - 1] if place else LEFT_OUT for values, place in pairs), ANSWERS_ALL])


def spread_candidates(outcomes: Outcomes) -> list[Floats]:
    """Thresholds of each stage but the last: all scores, or as many of their quantiles as a grid has room for."""
    early = outcomes.scores[:-1]
    most = int(MOST_CELLS ** (1 / max(1, len(early))) + 1e-9) - 1
    return [_quantiles(between(scores), most) for scores in early]


def between(scores: Floats) -> Floats:
    """Thresholds that part scores in every possible way: midway, so that rounding moves no example across them."""
    values: Floats = np.unique(scores)
    return np.append((values[1:] + values[:-1]) / 2, values[-1] + _MARGIN)


def _quantiles(values: Floats, most: int) -> Floats:
    """At most so many of sorted thresholds, evenly spread, with the largest."""
    if len(values) <= most:
        return values
    return np.asarray(values[np.linspace(0, len(values) - 1, most + 1).round().astype(int)[1:]])


def grid_of(outcomes: Outcomes, candidates: Sequence[Floats]) -> Grid:
    """Count what becomes of the examples under every combination of candidates, which are sorted."""
    num, num_early = outcomes.num_examples, len(candidates)
    # The first place on each axis at which an example is answered there; one beyond the axis if it never is.
    pairs = zip(candidates, outcomes.scores, strict=False)
    first = [np.searchsorted(values, scores).astype(np.int64) + 1 for values, scores in pairs]
    shape = tuple(len(values) + 1 for values in candidates)
    costs, early, errors, lost, squares = (np.zeros(shape) for _ in range(5))
    for stage in range(num_early):
        arriving = _spread(_going_on(_histogram(first[:stage], shape, np.ones(num)), stage), num_early)
        runs = _spread(np.minimum(np.arange(shape[stage]), 1.0).reshape((1,) * stage + (-1,)), num_early)
        costs += outcomes.costs[stage] * arriving * runs
        loss = outcomes.expected[-1] - outcomes.expected[stage]
        wrong = (~outcomes.correct[stage]).astype(np.float64)
        for total, weights in ((early, np.ones(num)), (errors, wrong), (lost, loss), (squares, loss**2)):
            total += _spread(_ending(_histogram(first[: stage + 1], shape, weights), stage), num_early)
    costs += outcomes.costs[-1] * (num - early)
    return Grid(tuple(candidates), costs / num, early, errors, lost.round(_DIGITS), squares)


def _histogram(places: Sequence[Integers], shape: Sequence[int], weights: Floats) -> Floats:
    """The sums of weights by places, each axis with room for the place beyond its end."""
    sizes = [size + 1 for size, _ in zip(shape, places, strict=False)]
    flat = np.zeros(len(weights), np.int64)
    for size, place in zip(sizes, places, strict=True):
        flat = flat * size + place
    sums = np.bincount(flat, weights, int(np.prod(sizes, dtype=np.int64)))
    return sums.astype(np.float64).reshape(sizes)


def _going_on(counts: Floats, num_axes: int) -> Floats:
    """Sums over the places behind each, along the first axes: the examples that no stage among these answers."""
    for axis in range(num_axes):
        behind = np.flip(np.cumsum(np.flip(counts, axis), axis), axis)
        counts = np.delete(behind, 0, axis)
    return counts


def _ending(counts: Floats, stage: int) -> Floats:
    """Sums over the places up to each along the last axis, and behind each along those before it."""
    return _going_on(np.cumsum(counts, stage)[..., :-1], stage)


def _spread(values: Floats, num_axes: int) -> Floats:
    """Values of the first axes, with axes of length 1 for the others."""
    return values.reshape(values.shape + (1,) * (num_axes - values.ndim))


def front(cost: Floats, quality: Floats) -> Integers:
    """The cells of flattened arrays that are better than all cheaper ones, from the cheapest on."""
    order = np.lexsort((-quality.ravel(), cost.ravel()))
    best = quality.ravel()[order]
    before = np.maximum.accumulate(np.concatenate(([-np.inf], best[:-1])))
    return order[best > before].astype(np.int64)


def thinned(cells: Integers, cost: Floats, most: int) -> Integers:
    """At most so many cells of a front, as evenly spread over its costs as they lie, with both ends."""
    if len(cells) <= most:
        return cells
    costs = cost.ravel()[cells]
    wanted = np.linspace(costs[0], costs[-1], most)
    return np.asarray(cells[np.unique(np.abs(costs[:, None] - wanted).argmin(0))])
