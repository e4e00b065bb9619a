"""Schedules of training, as pure functions of the share of the steps that are done."""

import math

from nestling.distributions.weights import WeightPosterior
from nestling.running import FIRST_SHARPNESS, LAST_SHARPNESS, Nested
from nestling.training.optimisers import OPTIMISERS
from nestling.training.recipe import Recipe


def largest_lr(recipe: Recipe, num_steps: int, *, is_delicate: bool = False) -> float:
    """The recipe's learning rate; auto is the optimiser's default."""
    if recipe.lr != "auto":
        return recipe.lr
    return OPTIMISERS["adamw" if recipe.optimiser == "auto" else recipe.optimiser].lr(num_steps, is_delicate)


def lr_factor(recipe: Recipe, share: float, began: float = 0.0) -> float:
    """The factor on the learning rates: a linear rise from the share where the run began or went on, then the schedule.

    A run that goes on starts with a new optimiser, so that its rates rise again, over that share of what is left.
    """
    rising = min(1.0, (share - began) / (recipe.lr_warm_up * (1 - began))) if recipe.lr_warm_up else 1.0
    if recipe.schedule == "constant":
        return rising
    if recipe.schedule == "step":
        return rising * recipe.lr_factor ** sum(share >= milestone for milestone in recipe.milestones)
    if share < recipe.lr_warm_up:
        return rising
    falling = (share - recipe.lr_warm_up) / (1 - recipe.lr_warm_up) if recipe.lr_warm_up < 1 else 0.0
    return rising * 0.5 * (1 + math.cos(math.pi * min(1.0, falling)))


def kappa_factor(recipe: Recipe, share: float) -> float:
    """The factor on the weight of the divergences: a linear rise."""
    return min(1.0, share / recipe.kl_warm_up) if recipe.kl_warm_up else 1.0


CONVOLUTION_KAPPA = 1e-3
"""kappa="auto" for networks with convolutions, unless the posterior has a value: docs/decisions/0012."""


def largest_kappa(recipe: Recipe, nested: Nested, num_examples: int) -> float:
    """The recipe's weight of the divergences; auto depends on the posterior of the weights."""
    if recipe.kappa != "auto":
        return recipe.kappa
    posteriors = [module for module in nested.modules() if isinstance(module, WeightPosterior)]
    for posterior in posteriors:
        if posterior.kappa is not None:
            return posterior.kappa
    if any(posterior.mean.ndim > 2 for posterior in posteriors):
        return CONVOLUTION_KAPPA
    return auto_kappa(num_examples, nested.num_uncertain)


def auto_kappa(num_examples: int, num_weights: int) -> float:
    """The weight of the divergences at which their sum over all weights is in proportion to the number of examples.

    With weight 1 a network with many more weights than examples does not fit the data, because one nat per weight costs
    more than the likelihood gains. This weight makes the loss NLL + the mean divergence per weight; it is at most 1.
    """
    return min(1.0, num_examples / num_weights) if num_weights else 1.0


def sharpness(recipe: Recipe, share: float) -> float:
    """The sharpness of annealed quantiser steps: it grows by ``FIRST_SHARPNESS`` per epoch, up to the largest."""
    return min(FIRST_SHARPNESS * (1 + share * recipe.epochs), LAST_SHARPNESS)


def temperature(recipe: Recipe, share: float) -> float:
    """The temperature of relaxed masks: from the first to the last, by the same factor per step."""
    first, last = recipe.temperature
    return float(first * (last / first) ** min(1.0, share))
