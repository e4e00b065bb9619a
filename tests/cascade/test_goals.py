"""Goals against all thresholds tried one by one, and the guarantee on data whose error rates are known."""

import itertools
from contextlib import suppress
from importlib import import_module

import numpy as np
import pytest

from nestling.budgets import Limit
from nestling.cascade import EarlyErrors, Loss, MeanCost
from nestling.cascade.goals import read_goal
from nestling.cascade.grid import between, grid_of, spread_candidates
from nestling.cascade.guarantee import num_proven, p_values
from nestling.cascade.outcomes import ANSWERS_ALL, LEFT_OUT, Outcomes, routed
from nestling.errors import ArgumentError, BudgetError, RangeError


def drawn(num_examples, seed, num_stages=3):
    """Stages that are right less often the higher the score, and the narrower the stage."""
    draws = np.random.default_rng(seed)
    scores = draws.random(num_examples)
    own = np.clip(scores + draws.normal(0, 0.1, (num_stages, num_examples)), 0, 1)
    skill = np.linspace(1.0, 0.4, num_stages)[:, None]
    correct = draws.random(num_examples) > skill * scores**2
    return Outcomes.counted(own, correct, np.linspace(1.0, 4.0, num_stages))


def every_choice(outcomes):
    """All thresholds that part the examples differently, with what each comes to."""
    options = [[LEFT_OUT, *between(scores)] for scores in outcomes.scores[:-1]]
    for choice in itertools.product(*options):
        thresholds = np.array([*choice, ANSWERS_ALL])
        yield thresholds, routed(outcomes, thresholds)


def highest_loss(outcomes, found):
    """How much less often the answers are right than the last stage's, and two standard errors more."""
    lost = outcomes.correct[-1].astype(float) - found.correct
    return lost.mean() + 2 * lost.std() / len(lost) ** 0.5


@pytest.mark.parametrize("most", [0.0, 0.2, 0.4])
def test_the_cheapest_that_is_accurate_enough(most):
    outcomes = drawn(25, 0)
    found = routed(outcomes, Loss(most).fit(outcomes, outcomes).thresholds)
    fitting = [own for _, own in every_choice(outcomes) if highest_loss(outcomes, own) <= most + 1e-9]
    assert highest_loss(outcomes, found) <= most + 1e-9
    assert found.mean_cost == pytest.approx(min(own.mean_cost for own in fitting))
    assert found.accuracy == max(own.accuracy for own in fitting if own.mean_cost <= found.mean_cost + 1e-9)


def test_a_loss_is_what_the_last_stage_expects():
    """The first of two stages is right as often as the second, and was lucky: the second expects less of it."""
    scores, correct = np.array([[0.1, 0.2, 0.3, 0.4]] * 2), np.ones((2, 4), dtype=bool)
    expected = np.array([[0.99, 0.99, 0.5, 0.1], [0.99, 0.99, 0.6, 0.9]])
    outcomes = Outcomes(scores, correct, np.array([1.0, 4.0]), expected)
    assert Loss(0.0).fit(outcomes, outcomes).thresholds[0] == pytest.approx(0.25)
    counted = Outcomes.counted(scores, correct, outcomes.costs)
    assert Loss(0.0).fit(counted, counted).thresholds[0] > 0.4


@pytest.mark.parametrize("most", ["0.4x", "2.5", "1x"])
def test_the_most_accurate_that_is_cheap_enough(most):
    outcomes = drawn(25, 1)
    goal = read_goal(f"macs={most}")
    limit = goal.limit.most(4.0)
    found = routed(outcomes, goal.fit(outcomes, outcomes).thresholds)
    assert found.mean_cost <= limit + 1e-9
    assert found.accuracy == max(own.accuracy for _, own in every_choice(outcomes) if own.mean_cost <= limit + 1e-9)


def test_a_budget_below_the_narrowest_cut_says_what_it_needs():
    outcomes = drawn(50, 0)
    with pytest.raises(BudgetError, match=r"macs=.* takes macs=1"):
        read_goal("macs=0.1x").fit(outcomes, outcomes)


def test_stages_are_refined_where_a_grid_is_coarse(monkeypatch):
    """On a grid of few quantiles, thresholds that are then tried one stage at a time are at least as good."""
    outcomes = drawn(120, 3, num_stages=4)
    fine = routed(outcomes, Loss(0.1).fit(outcomes, outcomes).thresholds)
    monkeypatch.setattr(import_module("nestling.cascade.grid"), "MOST_CELLS", 5**3)
    refined = routed(outcomes, Loss(0.1).fit(outcomes, outcomes).thresholds)
    monkeypatch.setattr(import_module("nestling.cascade.goals"), "_MOST_ROUNDS", 0)
    coarse = routed(outcomes, Loss(0.1).fit(outcomes, outcomes).thresholds)
    assert all(highest_loss(outcomes, own) <= 0.1 + 1e-9 for own in (fine, refined, coarse))
    assert fine.mean_cost <= refined.mean_cost * 1.02
    assert refined.mean_cost < coarse.mean_cost


def test_identical_stages_use_one_of_them():
    one = drawn(200, 0, num_stages=1)
    outcomes = Outcomes.counted(one.scores.repeat(3, 0), one.correct.repeat(3, 0), np.ones(3))
    for goal in (Loss(0.0), read_goal("macs=1x")):
        found = routed(outcomes, goal.fit(outcomes, outcomes).thresholds)
        assert found.mean_cost == 1.0
        assert found.accuracy == outcomes.correct[0].mean()


def test_a_single_stage_answers_everything():
    outcomes = drawn(30, 0, num_stages=1)
    assert Loss(0.0).fit(outcomes, outcomes).thresholds.tolist() == [ANSWERS_ALL]


def test_p_values_are_sums_of_binomial_probabilities():
    """For 4 answers of which 1 is wrong, at 10 %: 0.9^4 + 4 * 0.1 * 0.9^3; nothing follows from no answer."""
    found = p_values(np.array([4, 0, 100]), np.array([1, 0, 0]), 0.1)
    assert found.tolist() == pytest.approx([0.9**4 + 4 * 0.1 * 0.9**3, 1.0, 0.9**100])


def test_a_sequence_ends_at_the_first_failure():
    assert num_proven([0.01, 0.1, 0.2, 0.01], 0.1) == 2
    assert num_proven([0.2, 0.01], 0.1) == 0
    assert num_proven([0.01], 0.1) == 1
    assert num_proven([], 0.1) == 0


DELTA, MOST = 0.05, 0.05


def population(draws, num_examples):
    """Three stages, wrong with a probability that grows with how hard an example is, which scores show with noise."""
    hard = draws.random(num_examples)
    scores = np.stack([np.clip(hard + draws.normal(0, width, num_examples), 0, 1) for width in (0.15, 0.1, 0.0)])
    wrong = draws.random(scores.shape) < np.array([[0.6], [0.4], [0.2]]) * hard**3
    return Outcomes.counted(scores, ~wrong, np.array([1.0, 3.0, 9.0]))


def early_error_rate(outcomes, thresholds):
    found = routed(outcomes, thresholds)
    early = found.stages < 2
    return (early & ~found.correct).sum() / max(1, early.sum())


def chosen_without_a_test(outcomes):
    """The cheapest thresholds whose early answers err as rarely as they should, on the data that chose them."""
    grid = grid_of(outcomes, spread_candidates(outcomes))
    holds = grid.early_errors <= MOST * grid.early
    return grid.thresholds(int(np.where(holds, grid.costs, np.inf).argmin()))


def test_the_guarantee_holds_in_95_of_100_samples(monkeypatch):
    """The true rate is read off 400,000 further examples; thresholds that no test has proven exceed it often."""
    monkeypatch.setattr(import_module("nestling.cascade.grid"), "MOST_CELLS", 2500)
    everyone = population(np.random.default_rng(1), 400_000)
    violations, untested, saved = 0, 0, []
    for seed in range(100):
        sample = population(np.random.default_rng([2, seed]), 1600)
        half = np.arange(800)
        untested += early_error_rate(everyone, chosen_without_a_test(sample)) > MOST
        with suppress(RangeError):  # nothing can be proven from this sample, and nothing is claimed
            fitted = EarlyErrors(MOST, DELTA).fit(sample.of(half), sample.of(half + 800))
            violations += early_error_rate(everyone, fitted.thresholds) > MOST
            saved.append(1 - routed(everyone, fitted.thresholds).mean_cost / 9.0)
    assert violations <= 5
    assert untested > 20
    assert len(saved) > 80
    assert np.mean(saved) > 0.25


def two_levels(draws, num):
    """A first stage that is sure of half of the examples and wrong on 2 % of them, and wrong on 18 % of the others."""
    unsure = draws.random(num) < 0.5
    correct = np.stack([draws.random(num) >= np.where(unsure, 0.18, 0.02), np.ones(num, bool)])
    scores = np.stack([np.where(unsure, 0.9, 0.1), np.zeros(num)])
    return Outcomes.counted(scores, correct, np.array([1.0, 4.0]))


@pytest.mark.parametrize("delta", [0.05, 0.1, 0.3])
def test_the_guarantee_fails_as_often_as_the_test_is_computed_to(delta):
    """The stage that answers all is wrong on 10 %, a hair above the bound: to claim it has a known probability."""
    from scipy.stats import binom

    goal, size, times = EarlyErrors(0.1 - 1e-9, delta), 500, 2000
    most_errors = max(number for number in range(size) if binom.cdf(number, size, 0.1) <= delta)
    expected = binom.cdf(most_errors, size, 0.1)
    halves = np.arange(2 * size).reshape(2, size)
    claimed = 0
    for seed in range(times):
        sample = two_levels(np.random.default_rng([3, seed]), 2 * size)
        claimed += goal.fit(*map(sample.of, halves)).thresholds[0] > 0.9
    assert 0.6 * delta < expected <= delta
    assert abs(claimed - times * expected) <= 4 * (times * expected * (1 - expected)) ** 0.5


def test_a_bound_that_cannot_be_proven_is_refused():
    sample = population(np.random.default_rng(0), 60)
    half = np.arange(30)
    with pytest.raises(RangeError, match="30 examples can prove"):
        EarlyErrors(0.01, 0.05).fit(sample.of(half), sample.of(half + 30))


@pytest.mark.parametrize(
    ("text", "goal"),
    [
        ("loss=0.002", Loss(0.002)),
        ("loss=0", Loss(0.0)),
        ("early_errors=0.02", EarlyErrors(0.02, 0.1)),
        ("macs=0.5x", read_goal("macs=0.50x")),
    ],
)
def test_goals_are_read(text, goal):
    assert read_goal(text) == goal
    assert read_goal(str(goal)) == goal


@pytest.mark.parametrize(
    "text",
    [
        "",
        "loss",
        "loss=",
        "loss=a",
        "loss=-1",
        "loss=1",
        "loss=nan",
        "macs=",
        "macs=-3",
        "early_errors=0",
        "early_errors=1",
        "errors=0.1",
        "macs=0",
    ],
)
def test_goals_that_mean_nothing_are_refused(text):
    with pytest.raises(ArgumentError):
        read_goal(text)


def test_deltas_that_mean_nothing_are_refused():
    with pytest.raises(ArgumentError, match="delta"):
        read_goal("early_errors=0.02", delta=0.0)


def test_macs_are_a_goal():
    assert isinstance(read_goal("macs=4e6"), MeanCost)
    assert read_goal("latency_ms=4") == MeanCost(Limit(4.0), "latency_ms")
