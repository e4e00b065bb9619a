"""Schedules at the ends of their pieces, and between them."""

import math
from itertools import pairwise

import numpy as np
import pytest

from nestling.training import Recipe
from nestling.training.schedules import auto_kappa, kappa, lr_factor, temperature

SHARES = np.linspace(0, 1, 1001).tolist()


@pytest.mark.parametrize("warm_up", [0.0, 0.2, 1.0])
@pytest.mark.parametrize("schedule", ["cosine", "step", "constant"])
def test_learning_rates_rise_in_a_line_to_their_largest(schedule, warm_up):
    recipe = Recipe(schedule=schedule, lr_warm_up=warm_up, milestones=(1.0,))
    for share in (own for own in SHARES if own < warm_up):
        assert lr_factor(recipe, share) == pytest.approx(share / warm_up)
    if warm_up < 1:
        assert lr_factor(recipe, warm_up) == 1.0
    assert max(lr_factor(recipe, share) for share in SHARES) <= 1.0


@pytest.mark.parametrize("warm_up", [0.0, 0.2])
def test_cosine(warm_up):
    recipe = Recipe(schedule="cosine", lr_warm_up=warm_up)
    after = [lr_factor(recipe, share) for share in SHARES if share >= warm_up]
    assert all(a > b for a, b in pairwise(after))
    assert lr_factor(recipe, (1 + warm_up) / 2) == pytest.approx(0.5)
    assert lr_factor(recipe, warm_up + (1 - warm_up) / 3) == pytest.approx(0.75)
    assert lr_factor(recipe, 1.0) == pytest.approx(0.0, abs=1e-12)
    assert lr_factor(recipe, 1.1) == pytest.approx(0.0, abs=1e-12)


def test_steps():
    recipe = Recipe(schedule="step", lr_warm_up=0.1, milestones=(0.5, 0.75), lr_factor=0.2)
    for share, factor in ((0.1, 1), (0.499, 1), (0.5, 0.2), (0.749, 0.2), (0.75, 0.04), (1.0, 0.04)):
        assert lr_factor(recipe, share) == pytest.approx(factor)


def test_constant():
    recipe = Recipe(schedule="constant", lr_warm_up=0.0)
    assert {lr_factor(recipe, share) for share in SHARES} == {1.0}


def test_kappa_rises_in_a_line_to_the_recipes():
    recipe = Recipe(kappa=0.8, kl_warm_up=0.5)
    for share, value in ((0.0, 0.0), (0.25, 0.4), (0.5, 0.8), (1.0, 0.8)):
        assert kappa(recipe, share, 100, 1000) == pytest.approx(value)
    assert kappa(recipe.but(kl_warm_up=0.0), 0.0, 100, 1000) == 0.8
    assert kappa(recipe.but(kl_warm_up=1.0), 0.5, 100, 1000) == pytest.approx(0.4)


def test_auto_kappa_makes_the_mean_divergence_cost_the_same_whatever_the_network():
    for num_examples, num_weights in ((100, 1000), (100, 10**6), (60_000, 10**7)):
        scale = auto_kappa(num_examples, num_weights) * num_weights / num_examples
        assert scale == pytest.approx(1)
    assert auto_kappa(10**6, 10) == 1.0
    assert auto_kappa(10, 0) == 1.0
    assert kappa(Recipe(kappa="auto", kl_warm_up=0.5), 0.25, 100, 1000) == pytest.approx(1 / 20)


def test_temperature_falls_by_the_same_factor_in_each_step():
    recipe = Recipe(temperature=(2.0, 0.5))
    values = [temperature(recipe, share) for share in SHARES]
    assert values[0] == 2.0
    assert values[-1] == pytest.approx(0.5)
    assert values[500] == pytest.approx(1.0)
    ratios = np.diff(np.log(values))
    assert np.allclose(ratios, ratios[0])
    assert temperature(recipe, 1.2) == pytest.approx(0.5)
    assert math.isclose(temperature(recipe.but(temperature=(0.5, 0.5)), 0.3), 0.5)
