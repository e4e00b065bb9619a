"""The feed of a run: training, validation and recalibration batches, from a data set or from the user's loaders."""

import math
from collections.abc import Callable, Iterable, Iterator, Sized
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

from nestling import data
from nestling.data import Batches, Data, DatasetBatches, Grader
from nestling.errors import ArgumentError, RangeError
from nestling.processes import ALONE, Processes
from nestling.storage import tensors_digest
from nestling.training.recipe import Recipe

LIKELIHOODS = {"classification": "categorical", "segmentation": "categorical", "regression": "gaussian"}
_EVALUATION_BATCH = 500


@dataclass(frozen=True)
class Feed:
    """The batches of a run; ``likelihood`` is the default for the data, ``about`` its record in the run folder."""

    train: Batches | DatasetBatches
    validation: Iterable[Any]
    recalibration: Iterable[Any]
    likelihood: str | None
    about: dict[str, Any]


def make_feed(source: object, recipe: Recipe, processes: Processes = ALONE) -> Feed:
    """The feed from a data set (``Data``, its name or its path), or from a pair of DataLoaders or Datasets.

    Each of several processes has its share of every training batch, and all batches of validation and recalibration.
    """
    feed = _whole_feed(source, recipe)
    if processes.count == 1:
        return feed
    size, count = feed.train.batch_size, processes.count
    if size % count and not feed.train.is_apart:
        needed = f"a multiple of the number of processes, {count}"
        raise RangeError("batch_size", size, needed, f"Pass {(size // count + 1) * count}, for example.")
    return replace(feed, train=feed.train.shard(processes.rank, count))


def _whole_feed(source: object, recipe: Recipe) -> Feed:
    if isinstance(source, str | Path):
        source = data.load(source, seed=recipe.seed)
    if isinstance(source, Data):
        return _from_data(source, recipe)
    if isinstance(source, tuple | list) and len(source) == 2:
        train, validation = (_loader(part, recipe, shuffle=not number) for number, part in enumerate(source))
        batches = DatasetBatches(train, seed=recipe.seed)
        if not len(batches):
            raise ArgumentError("data", "a loader without a batch", "at least one batch", "Lower batch_size.")
        about = {
            "name": None,
            "num_examples": batches.dataset_size,
            "fingerprint": [_fingerprint(loader.dataset) for loader in (train, validation)],
        }
        return Feed(batches, validation, _Repeated(batches, recipe.recalibration_batches), None, about)
    given = f"a {type(source).__name__}"
    needed = "a data set's name, a path, Data, or a pair (train, validation) of DataLoaders or Datasets"
    raise ArgumentError("data", given, needed, "nestling data lists the names.")


def _from_data(source: Data, recipe: Recipe) -> Feed:
    grader: Grader = "random" if source.task == "segmentation" else "all"
    size = min(recipe.batch_size, len(source.split("train")))
    train = source.batches(
        "train", size, shuffle=True, augment=source.augment, seed=recipe.seed, drop_last=True, grader=grader
    )
    recalibration = source.batches(
        "train", max(size, 256), shuffle=True, augment=source.augment, seed=recipe.seed, grader=grader
    )
    about = {
        "name": source.name,
        "task": source.task,
        "loaded_with": source.loaded_with,
        "fingerprint": training_fingerprint(source),
        "as_bytes": source.split("train").inputs.dtype == torch.uint8,
        "input_shape": list(source.input_shape),
        "classes": list(source.classes),
        "mean": list(source.mean),
        "std": list(source.std),
    } | ({"augment": _name_of(source.augment)} if callable(source.augment) else {})
    return Feed(
        train,
        source.batches("validation", _EVALUATION_BATCH),
        _Repeated(recalibration, math.ceil(recipe.recalibration_batches * size / recalibration.batch_size)),
        LIKELIHOODS[source.task],
        about,
    )


def _name_of(function: Callable[..., Any]) -> str:
    """The name of a user's function, so that a folder can tell runs with different ones apart."""
    return f"{function.__module__}:{getattr(function, '__qualname__', type(function).__qualname__)}"


def training_fingerprint(source: Data) -> str:
    """The fingerprint of the data that training uses: train and validation."""
    return replace(source, test=None, held_out=None).fingerprint


def _fingerprint(dataset: object) -> str | None:
    """A checksum of data in plain tensors; None for other data sets, which may give other data on each access."""
    return tensors_digest(dataset.tensors) if isinstance(dataset, TensorDataset) else None


@dataclass(frozen=True)
class _Repeated:
    """The first ``number`` batches of epoch 0, the same at each pass."""

    batches: Batches | DatasetBatches
    number: int

    def __iter__(self) -> Iterator[Any]:
        epoch = self.batches.epoch
        self.batches.set_epoch(0)
        yield from islice(self.batches, self.number)
        self.batches.set_epoch(epoch)


def _loader(source: object, recipe: Recipe, *, shuffle: bool) -> "DataLoader[Any]":
    if isinstance(source, DataLoader):
        return source
    if isinstance(source, Dataset):
        size = min(recipe.batch_size, len(source)) if isinstance(source, Sized) else recipe.batch_size
        return DataLoader(source, size, shuffle=shuffle, drop_last=shuffle)
    given = f"a {type(source).__name__}"
    raise ArgumentError("data", given, "a DataLoader or a Dataset", "Wrap it in torch.utils.data.DataLoader.")
