"""A data set that is ready for training: its splits, what its targets mean, and how its inputs are normalised."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

from nestling.data.augmentation import Augmentation
from nestling.data.batches import Batches, Grader
from nestling.data.faults import DataError
from nestling.data.split import Split, tensors_of

Task = Literal["classification", "segmentation", "regression"]
SPLITS = ("train", "validation", "test", "held_out")


@dataclass(frozen=True, eq=False)
class Data:
    """A data set in memory; splits that were not asked for, or do not exist, are None.

    ``held_out`` has the examples of the classes that were held out, with their labels in the whole set.
    ``loaded_with`` are the arguments of ``load`` that load this data again, None if they can't be written as JSON.
    ``mean`` and ``std`` have one entry per channel of an image or per feature of a vector, and none for texts; bytes
    are first scaled to [0, 1], other inputs are not scaled. ``augment`` is the augmentation for training. ``skipped``
    are the names of the files in an image folder that are not images of a class.
    """

    name: str
    task: Task
    train: Split | None
    validation: Split | None
    test: Split | None
    held_out: Split | None
    num_outputs: int
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    augment: Augmentation
    loaded_with: Mapping[str, Any] | None = None
    skipped: tuple[str, ...] = ()

    def __repr__(self) -> str:
        shape = " x ".join(map(str, self.input_shape))
        sizes = ", ".join(f"{name} {len(split):,}" for name, split in self.splits.items())
        return f"Data({self.name}: {self.task} of {shape} inputs, {self.num_outputs} outputs; {sizes})"

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one input, without the batch axis; of texts (L,), the positions of a row of tokens."""
        inputs = next(iter(self.splits.values())).inputs
        return tuple(next(iter(tensors_of(inputs).values())).shape[1:])

    @property
    def splits(self) -> dict[str, Split]:
        """The splits that exist, by name."""
        all_splits = (self.train, self.validation, self.test, self.held_out)
        return {name: split for name, split in zip(SPLITS, all_splits, strict=True) if split is not None}

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 over all splits: it changes with any byte of any example, and with how the examples are split."""
        digest = hashlib.sha256()
        for name, split in self.splits.items():
            for tensor in (*tensors_of(split.inputs).values(), split.targets):
                digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)};".encode())
                digest.update(tensor.contiguous().numpy().data)
        return digest.hexdigest()

    def split(self, name: str) -> Split:
        """The split called ``name``: train, validation, test or held_out."""
        if name not in self.splits:
            existing = ", ".join(self.splits)
            raise DataError(f"{self.name} was loaded without a split {name!r}; it has {existing}. Ask load() for it.")
        return self.splits[name]

    def batches(
        self,
        split: str,
        batch_size: int,
        *,
        shuffle: bool = False,
        augment: Augmentation = "none",
        seed: int = 0,
        drop_last: bool = False,
        grader: Grader = "all",
        limit: int | None = None,
    ) -> Batches:
        """Batches of the split called ``split``; pass ``augment=data.augment`` for training.

        ``limit`` takes at most that many of its examples, drawn at random, the same ones each time.
        """
        examples = self.split(split).drawn(limit)
        return Batches(examples, batch_size, self.mean, self.std, shuffle, augment, seed, drop_last, grader)

    def normalised_like(self, other: "Data") -> "Data":
        """This data with the mean and std of ``other``, for a network trained on ``other`` (out-of-distribution)."""
        return replace(self, mean=other.mean, std=other.std)
