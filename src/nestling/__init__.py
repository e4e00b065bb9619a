"""One training run, every size: Bayesian nested networks for PyTorch."""

from typing import TYPE_CHECKING

from nestling.lazily import imports_lazily
from nestling.version import __version__

if TYPE_CHECKING:
    from nestling import data, distributions, models, runtime
    from nestling.cascade import Cascade, cascade
    from nestling.delivery import Exported, export, load_small
    from nestling.errors import (
        ArgumentError,
        BudgetError,
        DivergenceError,
        DtypeError,
        NestlingError,
        NonFiniteError,
        ProcessError,
        RangeError,
        RunError,
        ShapeError,
        TraceError,
    )
    from nestling.generation import Generated, generate
    from nestling.network import Bits, Cost, Cut, Group, Groups, Nested, cost, extract, nest, recalibrate
    from nestling.prediction import Calibration, Prediction, Scores, calibrate, evaluate, predict
    from nestling.pruning import Pruned, load_pruned, prune, save_pruned
    from nestling.search import Curve, search
    from nestling.training import Recipe, Run, elbo, load, open_run, save, train

__all__ = [
    "ArgumentError",
    "Bits",
    "BudgetError",
    "Calibration",
    "Cascade",
    "Cost",
    "Curve",
    "Cut",
    "DivergenceError",
    "DtypeError",
    "Exported",
    "Generated",
    "Group",
    "Groups",
    "Nested",
    "NestlingError",
    "NonFiniteError",
    "Prediction",
    "ProcessError",
    "Pruned",
    "RangeError",
    "Recipe",
    "Run",
    "RunError",
    "Scores",
    "ShapeError",
    "TraceError",
    "calibrate",
    "cascade",
    "cost",
    "data",
    "distributions",
    "elbo",
    "evaluate",
    "export",
    "extract",
    "generate",
    "load",
    "load_pruned",
    "load_small",
    "models",
    "nest",
    "open_run",
    "predict",
    "prune",
    "recalibrate",
    "runtime",
    "save",
    "save_pruned",
    "search",
    "train",
]

imports_lazily(__name__)
