"""Checks a user's arrays and converts them to the shapes and types of a split."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nestling.data.faults import DataError
from nestling.data.parts import Part, as_tensor
from nestling.data.record import Task
from nestling.data.split import Split

CHANNELS = (1, 3, 4)
MANY_CLASSES = 1000


def part_of(x: NDArray[Any], y: NDArray[Any], where: str) -> Part:
    """A part with these inputs and targets; ``where`` names them in error messages."""
    if x.ndim == 0 or y.ndim == 0 or len(x) != len(y):
        given = f"{_length(x)} inputs and {_length(y)} targets"
        raise DataError(f"{where} has {given}. Save one target per input.")
    if len(x) == 0:
        raise DataError(f"{where} has no examples. Save at least one.")
    return Part(Split(_inputs(x, where), _targets(y, where)))


def task_of(targets: Tensor) -> Task:
    """The task that targets of this type are for."""
    if targets.dtype == torch.int64:
        return "classification"
    return "segmentation" if targets.dtype == torch.uint8 else "regression"


def num_outputs_of(parts: list[Part], where: str) -> int:
    """The number of classes, or the size of a target, over all parts, which must agree."""
    if len({(task_of(part.split.targets), part.split.inputs.shape[1:]) for part in parts}) > 1:
        raise DataError(f"{where}: its splits differ in the shape of inputs or the kind of targets. Make them alike.")
    task = task_of(parts[0].split.targets)
    if task == "segmentation":
        return max(2, *(int(part.split.targets.max()) + 1 for part in parts))
    if task == "regression":
        return int(parts[0].split.targets.shape[1])
    classes = max(int(part.split.targets.max()) + 1 for part in parts)
    if classes > max(MANY_CLASSES, sum(len(part.split) for part in parts)):
        raise DataError(f"{where}: labels go up to {classes - 1}, more than there are examples. Number classes from 0.")
    return classes


def finite_numbers(values: NDArray[Any], what: str) -> NDArray[np.float32]:
    """The numbers as float32; NaN, infinity and what float32 can't hold are refused."""
    with np.errstate(over="ignore"):  # what is too large becomes infinite, and is counted
        numbers: NDArray[np.float32] = values.astype(np.float32)
    num_bad = int((~np.isfinite(numbers)).sum())
    if num_bad:
        share = f"{num_bad} entries of {numbers.size}"
        raise DataError(f"{what} have {share} that are NaN, infinite or too large. Remove or fill them.")
    return numbers


def _inputs(x: NDArray[Any], where: str) -> Tensor:
    if x.dtype.kind not in "uifb" or x.ndim not in (2, 3, 4):
        needed = "numbers (N, D), (N, H, W), (N, C, H, W) or (N, H, W, C)"
        raise DataError(f"{where}: inputs are {x.dtype} of shape {x.shape}, but must be {needed}. Convert them.")
    if 0 in x.shape:
        raise DataError(f"{where}: inputs of shape {x.shape} are empty. Save at least one number for each.")
    if x.ndim == 3:
        x = x[:, None]
    if x.ndim == 4 and x.shape[3] in CHANNELS and x.shape[1] not in CHANNELS:
        x = x.transpose(0, 3, 1, 2)
    return as_tensor(x if x.dtype == np.uint8 else finite_numbers(x, f"{where}: inputs"))


def _targets(y: NDArray[Any], where: str) -> Tensor:
    if y.ndim in (3, 4) and (y.dtype == np.uint8 or y.dtype.kind == "b"):
        _check_numbers(y.astype(np.uint8), where)
        return as_tensor((y[:, None] if y.ndim == 3 else y).astype(np.uint8))
    if y.ndim == 2 and y.shape[1] == 1 and y.dtype.kind in "ui":
        y = y[:, 0]
    if y.ndim == 1 and y.dtype.kind in "ui":
        if y.min() < 0:
            raise DataError(f"{where}: labels go down to {y.min()}. Number classes from 0.")
        _check_numbers(y, where)
        return torch.from_numpy(y.astype(np.int64))
    if y.ndim in (1, 2) and y.dtype.kind == "f" and y.size:
        return as_tensor(finite_numbers(y.reshape(len(y), -1), f"{where}: targets"))
    needed = "whole numbers (N,), masks of bytes (N, H, W) or (N, R, H, W), or real numbers (N,) or (N, D)"
    raise DataError(f"{where}: targets are {y.dtype} of shape {y.shape}, but must be {needed}. Convert them.")


def _check_numbers(labels: NDArray[Any], where: str) -> None:
    """Raise an error if most of the classes would have no example, as with masks of 0 and 255."""
    values = np.unique(labels)
    if values.size and int(values[-1]) + 1 > 2 * values.size:
        listed = ", ".join(map(str, values[:5].tolist())) + (", ..." if values.size > 5 else "")
        raise DataError(f"{where}: labels are {listed}, up to {values[-1]}. Number classes from 0, without gaps.")


def _length(array: NDArray[Any]) -> int:
    return len(array) if array.ndim else 1
