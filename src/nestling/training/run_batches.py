"""The feed of a run: training, validation and recalibration batches, from a data set or from the user's loaders."""

import math
from collections.abc import Callable, Iterable, Iterator, Sized
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset

from nestling import data
from nestling.data import Batches, Data, DatasetBatches, Grader
from nestling.errors import ArgumentError, RangeError
from nestling.prediction import Likelihood, likelihood_for, likelihood_named
from nestling.processes import ALONE, Processes
from nestling.running import Nested, Read, read_by
from nestling.storage import tensors_digest
from nestling.training.recipe import Recipe

LIKELIHOODS = {
    "classification": "categorical",
    "segmentation": "categorical",
    "language": "categorical",
    "regression": "gaussian",
}
MOST_EXAMPLES, MOST_NUMBERS = 10_000, 10_000_000
"""The scale of targets that loaders give is that of the first so many of an epoch."""
_EVALUATION_BATCH = 500


@dataclass(frozen=True)
class Feed:
    """The batches of a run; ``likelihood`` is the default for the data, ``about`` its record in the run folder.

    ``targets`` gives the targets of training examples: all of a data set in memory, else those of the first batches.
    """

    train: Batches | DatasetBatches
    validation: Iterable[Any]
    recalibration: Iterable[Any]
    likelihood: str | None
    about: dict[str, Any]
    targets: Callable[[], Tensor]


def make_feed(source: object, recipe: Recipe, processes: Processes = ALONE, read: Read | None = None) -> Feed:
    """The feed from a data set (``Data``, its name or its path), or from a pair of DataLoaders or Datasets.

    ``read`` is a function that makes pairs of the loaders' batches. Each of several processes has its share of every
    training batch, and all batches of validation and recalibration.
    """
    feed = _whole_feed(source, recipe, read)
    if processes.count == 1:
        return feed
    size, count = feed.train.batch_size, processes.count
    if size % count and not feed.train.is_apart:
        needed = f"a multiple of the number of processes, {count}"
        raise RangeError("batch_size", size, needed, f"Pass {(size // count + 1) * count}, for example.")
    return replace(feed, train=feed.train.shard(processes.rank, count))


def _whole_feed(source: object, recipe: Recipe, read: Read | None) -> Feed:
    if isinstance(source, str | Path):
        source = data.load(source, seed=recipe.seed)
    if isinstance(source, Data):
        return _from_data(source, recipe)
    if isinstance(source, tuple | list) and len(source) == 2:
        train, validation = (_loader(part, recipe, shuffle=not number) for number, part in enumerate(source))
        batches = DatasetBatches(train, seed=recipe.seed, read=read)
        if not len(batches):
            raise ArgumentError("data", "a loader without a batch", "at least one batch", "Lower batch_size.")
        about = {
            "name": None,
            "num_examples": batches.dataset_size,
            "fingerprint": [_fingerprint(loader.dataset) for loader in (train, validation)],
        }
        recalibration = _Repeated(batches, recipe.recalibration_batches)
        return Feed(batches, read_by(validation, read), recalibration, None, about, partial(_first_targets, batches))
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
        "as_bytes": source.split("train").has_bytes,
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
        lambda: source.split("train").targets,
    )


def _name_of(function: Callable[..., Any]) -> str:
    """The name of a user's function, so that a folder can tell runs with different ones apart."""
    return f"{function.__module__}:{getattr(function, '__qualname__', type(function).__qualname__)}"


def chosen_likelihood(feed: Feed, nested: Nested, given: str | Likelihood | None) -> Likelihood:
    """The likelihood of a run: the one given, or the network's own, or the data's; one of the caller's is copied."""
    chosen = likelihood_for(nested, given or (feed.likelihood if nested.likelihood is None else None))
    if feed.likelihood is not None:
        _check_likelihood(feed.likelihood, chosen)
    return chosen if chosen is nested.likelihood else deepcopy(chosen)


def outputs_for(source: Data, likelihood: str | None) -> int:
    """How many outputs a network needs to learn this data with a likelihood, by default the data's own."""
    default = LIKELIHOODS[source.task]
    chosen = likelihood_named(likelihood or default)
    _check_likelihood(default, chosen)
    return chosen.outputs_for(source.num_outputs)


def _check_likelihood(default: str, chosen: Likelihood) -> None:
    """Raise if a likelihood of numbers is chosen for data with classes, or the other way round."""
    needed = likelihood_named(default).targets
    if chosen.targets != needed:
        given = f"{chosen.name!r}, which is for {chosen.targets}"
        advice = "In a file of yours whole numbers are classes, and floats are numbers."
        raise ArgumentError("likelihood", given, f"one for {needed}, as {default!r} is", advice)


def _first_targets(batches: DatasetBatches) -> Tensor:
    """The targets of the first batches of epoch 0."""
    collected: list[Tensor] = []
    for _, targets in batches:
        collected.append(targets.detach().cpu())
        if sum(map(len, collected)) >= MOST_EXAMPLES or sum(t.numel() for t in collected) >= MOST_NUMBERS:
            break
    return torch.cat(collected)


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
