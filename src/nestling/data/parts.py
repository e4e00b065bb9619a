"""What a reader returns before the data is split: checked arrays, and what they mean."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nestling.data.faults import DamagedError
from nestling.data.options import Augment
from nestling.data.record import Task
from nestling.data.split import Split

WHOLE = "whole"


@dataclass(frozen=True, eq=False)
class Part:
    """Examples of one part of a data set; examples of the same group in ``groups`` are never separated.

    ``classes`` are the names of the classes if only the files give them, ``task`` what the targets are for if only how
    they were read decides it.
    """

    split: Split
    groups: Tensor | None = None
    classes: tuple[str, ...] = ()
    task: Task | None = None


@dataclass(frozen=True, eq=False)
class Raw:
    """Parts by name: train, validation and test if the data set is published split, or ``whole``."""

    name: str
    task: Task
    classes: tuple[str, ...]
    augment: Augment
    parts: dict[str, Part]
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    skipped: tuple[str, ...] = ()


def labelled(images: NDArray[Any], labels: NDArray[Any], num_classes: int, where: str) -> Part:
    """Unchanged images, with labels in 0..``num_classes`` - 1, of an official file called ``where``."""
    if len(images) != len(labels):
        raise DamagedError(f"{where} has {len(images)} images and {len(labels)} labels. Fetch both files again.")
    if len(labels) == 0 or labels.min() < 0 or labels.max() >= num_classes:
        given = f"labels {labels.min()} to {labels.max()}" if len(labels) else "no labels"
        raise DamagedError(f"{where} has {given}, but its classes are 0 to {num_classes - 1}. Fetch it again.")
    return Part(Split(as_tensor(images), torch.from_numpy(labels.astype(np.int64))))


def as_tensor(array: NDArray[Any]) -> Tensor:
    """A contiguous tensor with a copy of the array."""
    return torch.from_numpy(np.array(array, order="C", copy=True))
