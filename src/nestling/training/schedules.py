"""What changes during training, as pure functions of the share of the steps that are done."""

import math

from nestling.distributions.weights import WeightPosterior
from nestling.running import FIRST_SHARPNESS, LAST_SHARPNESS, Nested
from nestling.training.optimisers import OPTIMISERS
from nestling.training.recipe import Recipe


def largest_lr(recipe: Recipe, num_steps: int, *, is_delicate: bool = False) -> float:
    """The recipe's learning rate; auto is what the optimiser says."""
    if recipe.lr != "auto":
        return recipe.lr
    return OPTIMISERS["adamw" if recipe.optimiser == "auto" else recipe.optimiser].lr(num_steps, is_delicate)


def lr_factor(recipe: Recipe, share: float) -> float:
    """What the learning rates are multiplied by: a linear rise, then the recipe's schedule."""
    rising = min(1.0, share / recipe.lr_warm_up) if recipe.lr_warm_up else 1.0
    if recipe.schedule == "constant":
        return rising
    if recipe.schedule == "step":
        return rising * recipe.lr_factor ** sum(share >= milestone for milestone in recipe.milestones)
    if share < recipe.lr_warm_up:
        return rising
    falling = (share - recipe.lr_warm_up) / (1 - recipe.lr_warm_up) if recipe.lr_warm_up < 1 else 0.0
    return 0.5 * (1 + math.cos(math.pi * min(1.0, falling)))


def kappa_factor(recipe: Recipe, share: float) -> float:
    """What the weight of the divergences is multiplied by: a linear rise."""
    return min(1.0, share / recipe.kl_warm_up) if recipe.kl_warm_up else 1.0


CONVOLUTION_KAPPA = 1e-3
"""What kappa="auto" means for networks with convolutions, unless the posterior says otherwise: docs/decisions/0012."""


def largest_kappa(recipe: Recipe, nested: Nested, num_examples: int) -> float:
    """The recipe's weight of the divergences; auto depends on the posterior of the weights."""
    if recipe.kappa != "auto":
        return recipe.kappa
    posteriors = [part for part in nested.modules() if isinstance(part, WeightPosterior)]
    for own in posteriors:
        if own.kappa is not None:
            return own.kappa
    if any(own.mean.ndim > 2 for own in posteriors):
        return CONVOLUTION_KAPPA
    return auto_kappa(num_examples, nested.num_uncertain)


def auto_kappa(num_examples: int, num_weights: int) -> float:
    """A weight at which the divergences of all weights together cost about as much as the data can pay for.

    With weight 1 a network of many more weights than examples would rather forget the data than pay a nat for each
    weight. This one makes the loss NLL + the mean divergence of a weight, and never exceeds 1.
    """
    return min(1.0, num_examples / num_weights) if num_weights else 1.0


def sharpness(recipe: Recipe, share: float) -> float:
    """The sharpness of annealed steps of quantisers: another ``FIRST_SHARPNESS`` each epoch, up to the largest."""
    return min(FIRST_SHARPNESS * (1 + share * recipe.epochs), LAST_SHARPNESS)


def temperature(recipe: Recipe, share: float) -> float:
    """The temperature of relaxed masks: from the first to the last, by the same factor in each step."""
    first, last = recipe.temperature
    return float(first * (last / first) ** min(1.0, share))
