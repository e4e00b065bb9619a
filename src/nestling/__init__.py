"""One training run, every size: Bayesian nested networks for PyTorch."""

from nestling import distributions
from nestling.errors import ArgumentError, DtypeError, NestlingError, NonFiniteError, RangeError, ShapeError

__version__ = "0.1.0"

__all__ = [
    "ArgumentError",
    "DtypeError",
    "NestlingError",
    "NonFiniteError",
    "RangeError",
    "ShapeError",
    "distributions",
]
