"""Sums over histograms against every example sent through the stages by itself."""

import itertools

import numpy as np
import pytest

from nestling.cascade.grid import MOST_CELLS, between, front, grid_of, spread_candidates, thinned
from nestling.cascade.outcomes import ANSWERS_ALL, LEFT_OUT, Outcomes, routed


def drawn(num_stages, num_examples, seed=0):
    """Outcomes with ties among the scores."""
    draws = np.random.default_rng(seed)
    scores = draws.integers(0, 6, (num_stages, num_examples)) / 7
    correct = draws.random(scores.shape) < 0.7
    return Outcomes(scores, correct, np.arange(1.0, num_stages + 1) ** 2, draws.random(scores.shape))


@pytest.mark.parametrize("num_stages", [1, 2, 3, 4])
def test_every_cell_counts_as_examples_one_by_one(num_stages):
    outcomes = drawn(num_stages, 40)
    grid = grid_of(outcomes, spread_candidates(outcomes))
    assert grid.costs.size == np.prod([len(np.unique(own)) + 1 for own in outcomes.scores[:-1]])
    for cell in range(grid.costs.size):
        found = routed(outcomes, grid.thresholds(cell))
        early = found.stages < num_stages - 1
        assert grid.costs.flat[cell] == pytest.approx(found.mean_cost, rel=1e-12)
        lost = outcomes.expected[-1] - outcomes.expected[found.stages, np.arange(40)]
        assert grid.lost.flat[cell] == pytest.approx(lost.sum(), abs=1e-8)
        assert grid.lost_squares.flat[cell] == pytest.approx((lost**2).sum(), abs=1e-8)
        assert grid.early.flat[cell] == early.sum()
        assert grid.early_errors.flat[cell] == (early & ~found.correct).sum()


def test_cells_have_their_thresholds():
    outcomes = drawn(3, 40)
    candidates = [np.array([0.1, 0.2]), np.array([0.3])]
    grid = grid_of(outcomes, candidates)
    expected = [(one, two, ANSWERS_ALL) for one in (LEFT_OUT, 0.1, 0.2) for two in (LEFT_OUT, 0.3)]
    assert [tuple(grid.thresholds(cell)) for cell in range(6)] == expected


def test_candidates_lie_between_scores():
    values = between(np.array([0.3, 0.1, 0.1, 0.5]))
    assert values.tolist() == [pytest.approx(0.2), pytest.approx(0.4), pytest.approx(0.5, abs=1e-5)]
    assert values[-1] > 0.5


@pytest.mark.parametrize("num_stages", [2, 3, 4, 6])
def test_grids_stay_small(num_stages):
    draws = np.random.default_rng(0)
    scores = draws.random((num_stages, 3000))
    outcomes = Outcomes.counted(scores, scores < 0.5, np.ones(num_stages))
    candidates = spread_candidates(outcomes)
    assert np.prod([len(own) + 1 for own in candidates]) <= MOST_CELLS
    assert all(own[-1] > scores.max() for own, scores in zip(candidates, outcomes.scores, strict=False))
    assert all(np.all(np.diff(own) > 0) for own in candidates)


def test_a_front_has_what_nothing_cheaper_beats():
    draws = np.random.default_rng(1)
    cost, quality = draws.integers(0, 9, 60).astype(float), draws.integers(0, 9, 60).astype(float)
    kept = {(cost[cell], quality[cell]) for cell in front(cost, quality)}
    pairs = set(zip(cost, quality, strict=True))
    best = {p for p in pairs if not any(o != p and o[0] <= p[0] and o[1] >= p[1] for o in pairs)}
    assert kept == best
    assert np.all(np.diff(cost[front(cost, quality)]) > 0)


def test_a_thinned_front_keeps_its_ends():
    cost = np.arange(100.0)
    cells = thinned(np.arange(100), cost, 7)
    assert len(cells) == 7
    assert {cells[0], cells[-1]} == {0, 99}
    assert all(later > earlier for earlier, later in itertools.pairwise(cells))
    assert thinned(np.arange(3), cost, 7).tolist() == [0, 1, 2]
