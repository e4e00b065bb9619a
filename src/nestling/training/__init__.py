"""Training: recipes, the evidence lower bound, the loop and run folders."""

from typing import TYPE_CHECKING

from nestling.lazily import imports_lazily

if TYPE_CHECKING:
    from nestling.storage import load, save
    from nestling.training.elbo import elbo, elbo_terms
    from nestling.training.progress import Progress
    from nestling.training.recipe import Recipe, WeightKL
    from nestling.training.run import (
        CALIBRATION_FILE,
        LOG_FILE,
        RECIPE_FILE,
        SCORES_FILE,
        Run,
        describes_data,
        log_of,
        open_run,
    )
    from nestling.training.run_batches import make_feed, outputs_for, training_fingerprint
    from nestling.training.stopping import Stopped, Stopping
    from nestling.training.terms import Terms
    from nestling.training.train import calibrate_mean, keep_statistics, make_statistics, prepare_cuts, train
    from nestling.training.trained_here import was_trained_here

__all__ = ["Recipe", "Run", "Terms", "elbo", "elbo_terms", "load", "open_run", "save", "train"]

imports_lazily(__name__)
