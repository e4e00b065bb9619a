"""Checks of the tensors that a caller passes, done once."""

import torch
from torch import Tensor

from nestling.errors import DtypeError, NonFiniteError, RangeError, ShapeError

HALF_ENDS = "Half precision (float16) ends at 65,504: use bfloat16 or float32."
"""The advice where numbers in half precision are not finite."""


def floating_tensor(name: str, value: Tensor) -> Tensor:
    """Return ``value`` if it is a tensor of real numbers, finite or not: the values are not read."""
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
        advice = "Look for a step that diverged or a division by zero."
        if value.dtype == torch.float16:
            given, advice = f"{given}, in float16", f"{HALF_ENDS} {advice}"
        raise NonFiniteError(name, given, "finite everywhere", advice)
    return value


def probabilities(name: str, value: Tensor) -> Tensor:
    """Return ``value`` if it is a real tensor with every entry in [0, 1]."""
    real_tensor(name, value)
    if value.numel() and not bool(((value >= 0) & (value <= 1)).all()):
        given = f"values from {value.min().item():g} to {value.max().item():g}"
        raise RangeError(name, given, "within [0, 1]", "Pass probabilities, or logits if the argument is named so.")
    return value


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
        needed = f"of shape (batch, {num_units}), one row of units per example"
        raise ShapeError("features", f"shape {tuple(value.shape)}", needed, "Average a convolution over its positions.")
    return value


def last_size(name: str, value: Tensor, size: int, meaning: str) -> None:
    """Check that the last axis of ``value`` has ``size`` entries, one per ``meaning``."""
    if value.ndim < 1 or value.shape[-1] != size:
        needed = f"a tensor whose last axis has {size} entries, one per {meaning}"
        raise ShapeError(name, f"shape {tuple(value.shape)}", needed, "Check the number of blocks or units.")
