"""Checks of what a caller hands in, done once at the door so that the mathematics behind it can trust its input."""

import math

import torch
from torch import Tensor

from nestling.errors import DtypeError, NonFiniteError, RangeError, ShapeError


def real_tensor(name: str, value: Tensor) -> Tensor:
    """Return ``value`` if it is a tensor of finite real numbers."""
    if not isinstance(value, Tensor):
        raise DtypeError(name, f"a {type(value).__name__}", "a floating-point tensor", "Wrap it in torch.tensor(...).")
    if not value.is_floating_point():
        raise DtypeError(name, f"a tensor of {value.dtype}", "a floating-point tensor", "Convert it with .float().")
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
    number = _number(name, value)
    if not number > 0:
        raise RangeError(name, value, "a finite number > 0", "Use a small positive value to come close to zero.")
    return number


def probability(name: str, value: float) -> float:
    """Return ``value`` as a float if it lies in [0, 1]."""
    number = _number(name, value)
    if not 0 <= number <= 1:
        raise RangeError(name, value, "within [0, 1]", "Pass a probability, not a percentage or a logit.")
    return number


def block_counts(num_blocks: int, num_always: int) -> None:
    """Check that ``num_always`` blocks out of ``num_blocks`` can be kept at every width."""
    for name, count in (("num_blocks", num_blocks), ("num_always", num_always)):
        if isinstance(count, bool) or not isinstance(count, int):
            raise DtypeError(name, f"{count!r}", "a whole number", "Pass an int.")
    if num_blocks < 1:
        raise RangeError("num_blocks", num_blocks, "at least 1", "An order needs a block to keep.")
    if not 1 <= num_always <= num_blocks:
        needed = f"between 1 and the number of blocks ({num_blocks})"
        raise RangeError("num_always", num_always, needed, "The smallest width keeps this many blocks.")


def last_size(name: str, value: Tensor, size: int, meaning: str) -> None:
    """Check that the last axis of ``value`` has ``size`` entries, one per ``meaning``."""
    if value.ndim < 1 or value.shape[-1] != size:
        needed = f"a tensor whose last axis has {size} entries, one per {meaning}"
        raise ShapeError(name, f"shape {tuple(value.shape)}", needed, "Check the number of blocks or units.")


def _number(name: str, value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise RangeError(name, f"{value!r}", "a finite number", "Pass a plain float.")
    return float(value)
