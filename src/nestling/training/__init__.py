"""Training: recipes, the evidence lower bound, the loop and run folders."""

from typing import TYPE_CHECKING

from nestling.lazily import imports_lazily

if TYPE_CHECKING:
    from nestling.training.elbo import elbo, elbo_terms
    from nestling.training.recipe import Recipe
    from nestling.training.run import Run, open_run
    from nestling.training.saving import load, save
    from nestling.training.terms import Terms
    from nestling.training.train import train

__all__ = ["Recipe", "Run", "Terms", "elbo", "elbo_terms", "load", "open_run", "save", "train"]

imports_lazily(
    __name__,
    {
        "nestling.training.elbo": "elbo elbo_terms",
        "nestling.training.recipe": "Recipe",
        "nestling.training.saving": "load save",
        "nestling.training.terms": "Terms",
        "nestling.training.run": "Run open_run",
        "nestling.training.train": "train",
    },
)
