"""Checks of what a caller hands in, done once at the door so that the mathematics behind it can trust its input."""

import math

import torch
from torch import Tensor

from nestling.errors import DtypeError, NonFiniteError, RangeError, ShapeError


def floating_tensor(name: str, value: Tensor) -> Tensor:
    """Return ``value`` if it is a tensor of real numbers, finite or not: a check that reads none of them."""
    if not isinstance(value, Tensor):
        raise DtypeError(name, f"a {type(value).__name__}", "a floating-point tensor", "Wrap it in torch.tensor(...).")
    if not value.is_floating_point():
        raise DtypeError(name, f"a tensor of {value.dtype}", "a floating-point tensor", "Convert it with .float().")
    return value


def real_tensor(name: str, value: Tensor) -> Tensor:
    """Return ``value`` if it is a tensor of finite real numbers."""
    floating_tensor(name, value)
    if not bool(torch.isfinite(value).all()):
        bad = int((~torch.isfinite(value)).sum())
        given = f"{bad} of {value.numel()} entries NaN or infinite"
        raise NonFiniteError(name, given, "finite everywhere", "Look for a step that diverged or a division by zero.")
    return value


def probabilities(name: str, value: Tensor) -> Tensor:
    """Return ``value`` if it is a real tensor with every entry in [0, 1]."""
    real_tensor(name, value)
    if value.numel() and not bool(((value >= 0) & (value <= 1)).all()):
        given = f"values from {value.min().item():g} to {value.max().item():g}"
        raise RangeError(name, given, "within [0, 1]", "Pass probabilities, or logits where the argument is named so.")
    return value


def positive_number(name: str, value: float) -> float:
    """Return ``value`` as a float if it is a finite number above zero."""
    number = finite_number(name, value)
    if not number > 0:
        raise RangeError(name, value, "a finite number > 0", "Use a small positive value to come close to zero.")
    return number


def finite_number(name: str, value: float) -> float:
    """Return ``value`` as a float if it is a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise DtypeError(name, f"{value!r}", "a plain number", "Pass a float; of a tensor with one entry, its .item().")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise RangeError(name, number, "a finite number", "Look for a division by zero or a schedule that ran away.")
    return number


def probability(name: str, value: float) -> float:
    """Return ``value`` as a float if it lies in [0, 1]."""
    number = finite_number(name, value)
    if not 0 <= number <= 1:
        raise RangeError(name, value, "within [0, 1]", "Pass a probability, not a percentage or a logit.")
    return number


def inner_probability(name: str, value: float) -> float:
    """Return ``value`` as a float if it lies strictly between 0 and 1."""
    number = probability(name, value)
    if number in (0.0, 1.0):
        raise RangeError(name, value, "strictly between 0 and 1", "At an end its logit is infinite: stay off it.")
    return number


def whole_tensor(name: str, value: Tensor) -> Tensor:
    """Return ``value`` if it is a tensor of whole numbers."""
    if not isinstance(value, Tensor):
        raise DtypeError(name, f"a {type(value).__name__}", "an integer tensor", "Wrap it in torch.tensor(...).")
    if value.is_floating_point() or value.is_complex() or value.dtype == torch.bool:
        raise DtypeError(name, f"a tensor of {value.dtype}", "an integer tensor", "Convert it with .long().")
    return value


def floating_dtype(value: torch.dtype | None) -> torch.dtype | None:
    """Return ``value`` if it is a dtype of real numbers, or None for torch's default."""
    if value is not None and not value.is_floating_point:
        raise DtypeError("dtype", value, "a floating-point dtype", "Use torch.float32 or torch.float64.")
    return value


def unit_features(value: Tensor, num_units: int) -> Tensor:
    """Return ``value`` if it is a floating-point tensor (batch, num_units)."""
    floating_tensor("features", value)
    if value.ndim != 2 or value.shape[1] != num_units:
        needed = f"of shape (batch, {num_units}), a row of units for each example"
        raise ShapeError("features", f"shape {tuple(value.shape)}", needed, "Average a convolution over its positions.")
    return value


def count(name: str, value: int, meaning: str) -> int:
    """Return ``value`` if it is a whole number of at least 1; ``meaning`` says what it counts."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise DtypeError(name, f"{value!r}", "a whole number", f"Pass an int: {meaning}.")
    if value < 1:
        raise RangeError(name, value, "at least 1", f"Pass {meaning}.")
    return value


def block_counts(num_blocks: int, num_always: int) -> None:
    """Check that ``num_always`` blocks out of ``num_blocks`` can be kept at every width."""
    count("num_always", num_always, "how many blocks the smallest width keeps")
    count("num_blocks", num_blocks, "how many blocks the full width has")
    if num_always > num_blocks:
        needed = f"between 1 and the number of blocks ({num_blocks})"
        raise RangeError("num_always", num_always, needed, "The smallest width keeps this many blocks.")


def last_size(name: str, value: Tensor, size: int, meaning: str) -> None:
    """Check that the last axis of ``value`` has ``size`` entries, one per ``meaning``."""
    if value.ndim < 1 or value.shape[-1] != size:
        needed = f"a tensor whose last axis has {size} entries, one per {meaning}"
        raise ShapeError(name, f"shape {tuple(value.shape)}", needed, "Check the number of blocks or units.")
