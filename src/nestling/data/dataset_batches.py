"""A user's own DataLoader behind the same interface as ``Batches``."""

from collections.abc import Iterator, Sized
from itertools import chain, islice
from typing import Any, cast

import torch
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from nestling.data.batches import Batch
from nestling.data.seeding import Purpose, mixed
from nestling.errors import ArgumentError


class DatasetBatches:
    """The batches of ``loader`` as they are: neither normalised nor augmented by us.

    The order of a shuffling loader without a generator of its own follows from (seed, epoch). Passes that start later
    skip batches after loading them. Randomness inside the user's data set stays the user's.
    """

    def __init__(self, loader: "DataLoader[Any]", *, seed: int = 0) -> None:
        if loader.batch_size is None or not isinstance(loader.dataset, Sized):
            needed = "a DataLoader with a batch_size, over a Dataset with a length"
            raise ArgumentError("loader", "one without", needed, "Pass batch_size=, and give the Dataset a __len__.")
        self.loader = loader
        self.seed = seed
        self.epoch = 0
        self.batch_size: int = loader.batch_size
        self.drop_last: bool = loader.drop_last
        self.dataset_size = len(loader.dataset)

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Batch]:
        return self.from_batch(0)

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of the passes that begin from now on."""
        self.epoch = epoch
        if isinstance(self.loader.sampler, DistributedSampler):
            self.loader.sampler.set_epoch(epoch)

    def from_batch(self, first: int) -> Iterator[Batch]:
        """The batches of this epoch's pass from number ``first`` on."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(mixed(Purpose.LOADER, self.seed, self.epoch))
            batches = iter(self.loader)
            begun = list(islice(batches, 1))  # a loader draws its order when its first batch is asked for
        return cast(Iterator[Batch], islice(chain(begun, batches), first, None))
