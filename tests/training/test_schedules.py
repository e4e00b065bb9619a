"""Schedules at the ends of their pieces, and between them."""

import math
from itertools import pairwise

import numpy as np
import pytest
from small_networks import nested_mlp, nested_norms

from nestling.training import Recipe
from nestling.training.schedules import auto_kappa, kappa_factor, largest_kappa, largest_lr, lr_factor, temperature

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


def test_the_largest_learning_rate_is_the_recipes_or_grows_with_the_steps_that_a_short_run_lacks():
    assert {largest_lr(Recipe(optimiser=own, lr=0.7), 10) for own in ("auto", "adamw", "sgd")} == {0.7}
    assert {largest_lr(Recipe(optimiser="sgd"), steps) for steps in (1, 1250, 10**6)} == {0.1}
    for steps, lr in ((1, 0.01), (1250, 0.006), (5000, 0.003), (10**6, 0.003)):
        assert largest_lr(Recipe(optimiser="adamw"), steps) == pytest.approx(lr)
        assert largest_lr(Recipe(optimiser="adamw"), steps, is_delicate=True) == 0.003


def test_kappa_rises_in_a_line_to_its_largest():
    recipe = Recipe(kappa=0.8, kl_warm_up=0.5)
    for share, value in ((0.0, 0.0), (0.25, 0.5), (0.5, 1.0), (1.0, 1.0)):
        assert kappa_factor(recipe, share) == pytest.approx(value)
    assert kappa_factor(recipe.but(kl_warm_up=0.0), 0.0) == 1.0
    assert kappa_factor(recipe.but(kl_warm_up=1.0), 0.5) == pytest.approx(0.5)


def test_the_largest_kappa_is_the_recipes_or_suits_the_posterior():
    nested = nested_mlp(weights="gaussian")
    for value in (0.0, 0.8, 3.0):
        assert largest_kappa(Recipe(kappa=value), nested, 100) == value
    num_weights = 4 * 6 + 6 * 5 + 5 * 3
    assert largest_kappa(Recipe(kappa="auto"), nested, 50) == auto_kappa(50, num_weights) == 50 / num_weights
    assert largest_kappa(Recipe(kappa="auto"), nested_mlp(weights="ivon"), 50) == 0.3
    assert largest_kappa(Recipe(kappa="auto"), nested_norms(weights="ivon"), 50) == 0.3
    assert largest_kappa(Recipe(kappa="auto"), nested_norms(weights="gaussian"), 50) == 0.001
    assert largest_kappa(Recipe(kappa="auto"), nested_norms(weights=None), 50) == 1.0


def test_auto_kappa_makes_the_mean_divergence_cost_the_same_whatever_the_network():
    for num_examples, num_weights in ((100, 1000), (100, 10**6), (60_000, 10**7)):
        scale = auto_kappa(num_examples, num_weights) * num_weights / num_examples
        assert scale == pytest.approx(1)
    assert auto_kappa(10**6, 10) == 1.0
    assert auto_kappa(10, 0) == 1.0
    assert auto_kappa(100, 1000) == pytest.approx(1 / 10)


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
