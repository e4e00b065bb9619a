"""One training run, every size: Bayesian nested networks for PyTorch."""

from nestling import distributions, models
from nestling.errors import ArgumentError, DtypeError, NestlingError, NonFiniteError, RangeError, ShapeError, TraceError
from nestling.network import Cut, Group, Groups, Nested, extract, nest

__version__ = "0.1.0"

__all__ = [
    "ArgumentError",
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
    "distributions",
    "extract",
    "models",
    "nest",
]
