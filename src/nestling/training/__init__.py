"""Training: recipes, the evidence lower bound, the loop and run folders."""

from nestling.training.elbo import elbo, elbo_terms
from nestling.training.recipe import Recipe
from nestling.training.saving import load, save
from nestling.training.terms import Terms
from nestling.training.train import Run, open_run, train

__all__ = ["Recipe", "Run", "Terms", "elbo", "elbo_terms", "load", "open_run", "save", "train"]
