"""One training run, every size: Bayesian nested networks for PyTorch."""

from nestling import distributions, models
from nestling.errors import ArgumentError, DtypeError, NestlingError, NonFiniteError, RangeError, ShapeError, TraceError
from nestling.network import Cost, Cut, Group, Groups, Nested, cost, extract, nest, recalibrate

__version__ = "0.1.0"

__all__ = [
    "ArgumentError",
    "Cost",
    "Cut",
    "DtypeError",
    "Group",
    "Groups",
    "Nested",
    "NestlingError",
    "NonFiniteError",
    "RangeError",
    "ShapeError",
    "TraceError",
    "cost",
    "distributions",
    "extract",
    "models",
    "nest",
    "recalibrate",
]
