"""Batches of a split: the seed alone determines any batch of any epoch, so a pass can start anywhere."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from nestling.arguments import count, natural_number
from nestling.data.augmentation import Augmentation, Moves, changed, check_augment, draw, move
from nestling.data.split import Split, tensors_of, trimmed
from nestling.errors import ArgumentError, RangeError
from nestling.seeding import Purpose, generator

Grader = Literal["all", "random"]
Batch = tuple[Any, Tensor]


@dataclass(eq=False)
class Batches:
    """Batches ``(inputs, targets)`` of a split, to be iterated over once per epoch; ``Data.batches`` makes them.

    Inputs are float32 and normalised, ``(x - mean) / std``, where bytes x are first scaled to [0, 1]. Targets are as
    stored. Texts are what a tokenizer made of them, without the last positions that no text of the batch reaches.
    (seed, epoch) determines the order, and (seed, epoch, batch) the augmentation and the grader, so that any batch of
    any epoch can be made again by itself.

    Attributes:
        split: The examples.
        batch_size: Examples per batch, over all ranks; the last batch may be smaller.
        mean: What is subtracted, per channel of an image or per feature of a vector; empty for texts.
        std: What the rest is divided by.
        shuffle: Draw a new order for each epoch.
        augment: The name of an augmentation, or a function of the inputs of a batch.
        seed: Determines order, augmentation and graders.
        drop_last: Leave out a last batch that is smaller.
        grader: Of masks by R graders ``"random"`` takes one per example, (B, H, W) int64; ``"all"`` keeps (B, R, H, W).
        rank: The number of this process.
        world: The number of processes, each of which gets every ``world``-th row of a batch.
        epoch: The epoch of the next pass; ``set_epoch`` changes it.

    Raises:
        ArgumentError: If a number or a name can't be used for these examples.

    Examples:
        >>> batches = data.batches("train", 64, shuffle=True, seed=1)
        >>> x, y = next(iter(batches))
        >>> tuple(x.shape), x.dtype, tuple(y.shape)
        ((64, 1, 8, 8), torch.float32, (64,))
        >>> third = next(batches.from_batch(2))  # without making the first two
        >>> torch.equal(third[0], list(batches)[2][0])
        True
    """

    split: Split
    batch_size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    shuffle: bool = False
    augment: Augmentation = "none"
    seed: int = 0
    drop_last: bool = False
    grader: Grader = "all"
    rank: int = 0
    world: int = 1
    epoch: int = 0
    _scale: Tensor = field(init=False, repr=False)
    _shift: Tensor = field(init=False, repr=False)

    def __post_init__(self) -> None:
        count("batch_size", self.batch_size, "how many examples a batch has")
        check_augment(self.augment, self.split.inputs)
        if self.grader not in get_args(Grader):
            raise ArgumentError("grader", repr(self.grader), "'all' or 'random'", "Check its spelling.")
        if self.grader == "random" and self.split.targets.ndim != 4:
            raise ArgumentError("grader", "'random'", "'all' where targets are not masks", "Leave it out.")
        natural_number("seed", self.seed)
        std, mean = torch.tensor(self.std, dtype=torch.float64), torch.tensor(self.mean, dtype=torch.float64)
        inputs = next(iter(tensors_of(self.split.inputs).values()))
        unit = 255.0 if inputs.dtype == torch.uint8 else 1.0
        shape = (1, -1) + (1,) * (inputs.ndim - 2)
        self._scale = (1 / (unit * std)).float().view(shape)
        self._shift = (-mean / std).float().view(shape)

    def __len__(self) -> int:
        whole, remainder = divmod(self.dataset_size, self.batch_size)
        return whole if self.drop_last or not remainder else whole + 1

    def __iter__(self) -> Iterator[Batch]:
        return self.from_batch(0)

    @property
    def is_apart(self) -> bool:
        """Whether something other than ``shard`` gives each rank different batches."""
        return False

    @property
    def dataset_size(self) -> int:
        """The number of examples of the split, over all ranks."""
        return len(self.split)

    def set_epoch(self, epoch: int) -> None:
        """Choose the order and the augmentation of the passes that begin after this call.

        Args:
            epoch: A whole number of at least 0; the same one gives the same batches again.

        Raises:
            ArgumentError: If it is no such number.
        """
        self.epoch = natural_number("epoch", epoch)

    def from_batch(self, first: int) -> Iterator[Batch]:
        """The batches of this epoch from number ``first`` on, bit for bit equal to those of a full pass.

        Args:
            first: A number from 0 to the number of batches.

        Returns:
            An iterator over pairs (inputs, targets).

        Raises:
            RangeError: If there is no such batch.
        """
        if not 0 <= first <= len(self):
            raise RangeError("first", first, f"between 0 and {len(self)}, the number of batches", "Check the step.")
        order, epoch = self._order(), self.epoch
        return (self._batch(order, epoch, index) for index in range(first, len(self)))

    def shard(self, rank: int, world: int) -> "Batches":
        """The same batches, of which one process gets every ``world``-th row.

        All ranks get equally many rows if ``world`` divides the batch; use ``drop_last`` if that matters. The first
        half of a rank's rows is its share of the first half of the batch, and likewise for any other part.

        Args:
            rank: The number of this process, from 0 to ``world - 1``; its rows begin with row ``rank``.
            world: The number of processes.

        Returns:
            New batches; these stay as they are.

        Raises:
            RangeError: If there is no such rank, or there are more processes than rows.
        """
        count("world", world, "how many processes share the batches")
        if not 0 <= rank < world:
            raise RangeError("rank", rank, f"between 0 and {world - 1}", "Pass the rank of this process.")
        if world > self.batch_size:
            advice = "Use larger batches or fewer processes."
            raise RangeError("world", world, f"at most the batch size, {self.batch_size}", advice)
        return replace(self, rank=rank, world=world)

    def _order(self) -> Tensor:
        if not self.shuffle:
            return torch.arange(self.dataset_size)
        return torch.randperm(self.dataset_size, generator=generator(Purpose.SHUFFLE, self.seed, self.epoch))

    def _batch(self, order: Tensor, epoch: int, index: int) -> Batch:
        examples = order[index * self.batch_size : (index + 1) * self.batch_size]
        rows = slice(self.rank, None, self.world)
        random = generator(Purpose.AUGMENT, self.seed, epoch, index)
        taken = slice(None) if callable(self.augment) else rows  # a function draws its noise for the whole batch
        moves = draw(self.augment, len(examples), random).rows(taken)
        subset = self.split.subset(examples[taken])
        inputs, targets = subset.inputs, self._graded(subset.targets, len(examples), taken, random)
        if not isinstance(inputs, Tensor):
            return trimmed(inputs), targets
        if callable(self.augment):
            inputs, targets = (t[rows] for t in changed(self.augment, inputs, targets, random))
        elif self.augment != "none":
            inputs, targets = move(inputs, moves), _moved_masks(targets, moves)
        return inputs.float().mul_(self._scale).add_(self._shift), targets

    def _graded(self, targets: Tensor, num_examples: int, rows: slice, random: torch.Generator) -> Tensor:
        if self.grader == "all":
            return targets
        graders = torch.randint(0, targets.shape[1], (num_examples,), generator=random)[rows]
        return targets[torch.arange(len(targets)), graders].long()


def _moved_masks(targets: Tensor, moves: Moves) -> Tensor:
    """Targets after the moves of their images: masks (B, R, H, W) or (B, H, W) move, other targets do not."""
    if targets.ndim == 3:
        return move(targets[:, None], moves)[:, 0]
    return move(targets, moves) if targets.ndim == 4 else targets
