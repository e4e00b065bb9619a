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

Task = Literal["classification", "segmentation", "regression", "language"]
SPLITS = ("train", "validation", "test", "held_out")


@dataclass(frozen=True, eq=False)
class Data:
    """A data set in memory; splits that were not asked for, or do not exist, are None.

    Attributes:
        name: The name of the set, or of its file.
        task: ``"classification"``, ``"segmentation"``, ``"regression"``, or ``"language"`` for the next byte at each
            position.
        train: The training examples.
        validation: Examples that were set aside, for calibration and search.
        test: Examples to measure on.
        held_out: The examples of the classes that were held out, with their labels in the whole set.
        num_outputs: The number of classes, or of numbers per target.
        classes: The names of the classes; empty for numbers.
        mean: One entry per channel of an image or per feature of a vector, and none for texts; bytes are scaled to [0,
            1] first.
        std: The standard deviation, likewise.
        augment: The augmentation for training.
        loaded_with: The arguments of ``load`` that load this data again; None if they can't be written as JSON.
        skipped: The names of files in an image folder that are not images of a class.

    Examples:
        >>> data
        Data(digits: classification of 1 x 8 x 8 inputs, 10 outputs; train 1,294, validation 144, test 359)
        >>> [len(y) for _, y in data.batches("test", 100)]
        [100, 100, 100, 59]
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
        """One split by its name.

        Args:
            name: ``"train"``, ``"validation"``, ``"test"`` or ``"held_out"``.

        Returns:
            Its examples.

        Raises:
            DataError: If the data was loaded without it.
        """
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
        """Batches of a split; pass ``augment=data.augment`` for training.

        Args:
            split: ``"train"``, ``"validation"``, ``"test"`` or ``"held_out"``.
            batch_size: Examples per batch.
            shuffle: Draw a new order for each epoch.
            augment: The name of an augmentation, or a function of the inputs of a batch.
            seed: Determines order and augmentation.
            drop_last: Leave out a last batch that is smaller.
            grader: Of masks by several graders ``"random"`` takes one per example, and ``"all"`` keeps all.
            limit: At most so many examples, drawn at random, the same ones each time; None for all.

        Returns:
            Batches of normalised inputs (B, ...) and targets, to iterate over any number of times.

        Raises:
            DataError: If there is no such split.

        Examples:
            >>> x, y = next(iter(data.batches("test", 50, limit=20)))
            >>> tuple(x.shape)
            (20, 1, 8, 8)
        """
        examples = self.split(split).drawn(limit)
        return Batches(examples, batch_size, self.mean, self.std, shuffle, augment, seed, drop_last, grader)

    def normalised_like(self, other: "Data") -> "Data":
        """This data with the mean and std of another: out-of-distribution data for a network trained on the other.

        Args:
            other: The data that the network was trained on.

        Returns:
            The same splits, normalised as the network expects them.
        """
        return replace(self, mean=other.mean, std=other.std)
