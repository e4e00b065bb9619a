"""A user's DataLoader with the same interface as ``Batches``."""

from collections.abc import Iterator, Sized
from itertools import chain, islice
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from nestling.data.batches import Batch
from nestling.errors import ArgumentError, RangeError
from nestling.running import Read, pair_of, read_by
from nestling.seeding import Purpose, mixed
from nestling.torch_parts import pytree


class DatasetBatches:
    """The batches of a DataLoader of yours as pairs (inputs, targets): nestling neither normalises nor augments them.

    The order of a shuffling loader that has no generator follows from (seed, epoch). A pass that starts later loads the
    batches before its start and skips them. Randomness inside the user's data set is left to the user. Each of
    ``world`` ranks loads the whole batch and takes its rows, unless a DistributedSampler gives each rank its examples.

    Args:
        loader: A DataLoader with a ``batch_size``, over a Dataset with a length.
        seed: Determines the order of a loader that shuffles.
        rank: The number of this process.
        world: The number of processes.
        read: A function that makes pairs of batches that are neither pairs nor dictionaries with ``labels``.

    Raises:
        ArgumentError: If the loader has no batch size, or its Dataset no length.

    Examples:
        >>> rows = torch.utils.data.TensorDataset(torch.randn(10, 3), torch.arange(10))
        >>> batches = nl.data.DatasetBatches(torch.utils.data.DataLoader(rows, 4, shuffle=True), seed=1)
        >>> first = [y.tolist() for _, y in batches]
        >>> len(batches), first == [y.tolist() for _, y in batches]  # the same order until set_epoch
        (3, True)
    """

    def __init__(
        self, loader: "DataLoader[Any]", *, seed: int = 0, rank: int = 0, world: int = 1, read: Read | None = None
    ) -> None:
        if loader.batch_size is None or not isinstance(loader.dataset, Sized):
            needed = "a DataLoader with a batch_size, over a Dataset with a length"
            raise ArgumentError("loader", "one without", needed, "Pass batch_size=, and give the Dataset a __len__.")
        self.loader = loader
        self.seed, self.read = seed, read
        self.rank, self.world = rank, world
        self.epoch = 0
        self.batch_size: int = loader.batch_size
        self.drop_last: bool = loader.drop_last
        self.dataset_size = len(loader.dataset)

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Batch]:
        return self.from_batch(0)

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of the passes that begin after this call.

        Args:
            epoch: The number of the epoch, which a DistributedSampler gets too.
        """
        self.epoch = epoch
        if isinstance(self.loader.sampler, DistributedSampler):
            self.loader.sampler.set_epoch(epoch)

    def from_batch(self, first: int) -> Iterator[Batch]:
        """The batches of this epoch's pass from a number on; those before are loaded and skipped.

        Args:
            first: The number of the first batch.

        Returns:
            An iterator over pairs (inputs, targets).
        """
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(mixed(Purpose.LOADER, self.seed, self.epoch))
            batches = iter(self.loader)
            first_batch = list(islice(batches, 1))  # a loader draws its order when it gives its first batch
        remaining = map(pair_of, read_by(islice(chain(first_batch, batches), first, None), self.read))
        return remaining if self.world == 1 or self.is_apart else map(self._rows, remaining)

    def shard(self, rank: int, world: int) -> "DatasetBatches":
        """The same batches, of which one process gets every ``world``-th row.

        Args:
            rank: The number of this process.
            world: The number of processes.

        Returns:
            New batches; these stay as they are.

        Raises:
            RangeError: If there are more processes than rows in a batch.
        """
        if self.batch_size < world and not self.is_apart:
            raise RangeError("world", world, f"at most the batch size, {self.batch_size}", "Use larger batches.")
        return DatasetBatches(self.loader, seed=self.seed, rank=rank, world=world, read=self.read)

    @property
    def is_apart(self) -> bool:
        """Whether something other than ``shard`` gives each rank different batches."""
        return isinstance(self.loader.sampler, DistributedSampler)

    def _rows(self, batch: Batch) -> Batch:
        rows: Batch = pytree.tree_map_only(Tensor, lambda t: t[self.rank :: self.world] if t.ndim else t, batch)
        return rows
