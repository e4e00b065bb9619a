"""Loads data that is ready for training, from a name, a path or Datasets."""

import difflib
import math
import os
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from torch import Tensor
from torch.utils.data import Dataset

from nestling.arguments import count, natural_number
from nestling.data.arrays import num_outputs_of
from nestling.data.augmentation import Augmentation, check_augment
from nestling.data.faults import DataError, MissingError
from nestling.data.files import data_root, obtain
from nestling.data.formats.images import MOST_PIXELS, Size
from nestling.data.next_bytes import BYTES, PLAIN_TEXTS, read_plain
from nestling.data.options import AugmentChoice
from nestling.data.parts import WHOLE, Part, Raw
from nestling.data.record import Data
from nestling.data.sources import SOURCES, OfficialSet
from nestling.data.split import Split
from nestling.data.splitting import with_test, with_validation, without_classes
from nestling.data.statistics import mean_and_std
from nestling.data.text import TABLES, Texts, Tokenizer, read_table
from nestling.data.user_data import read_datasets, read_path
from nestling.errors import ArgumentError, RangeError

ALL_SPLITS = ("train", "validation", "test")


def names() -> tuple[str, ...]:
    """The names of the data sets that ``load`` can load.

    Returns:
        The names; ``found`` says which of them are on this machine.

    Examples:
        >>> {"digits", "mnist", "cifar10"} <= set(nl.data.names())
        True
    """
    return tuple(SOURCES)


def load(
    source: "str | Path | Dataset[Any] | Sequence[Dataset[Any]]",
    *,
    validation: float = 0.1,
    hold_out: Collection[int] = (),
    seed: int = 0,
    root: Path | str | None = None,
    splits: Collection[str] = ALL_SPLITS,
    augment: Augmentation | AugmentChoice = "auto",
    resize: int | Sequence[int] | None = None,
    download: bool = True,
    verify: bool = True,
    tokenizer: Tokenizer | Literal["bytes"] | None = None,
    max_length: int = 128,
) -> Data:
    """Load a data set into memory: by its name, at a path, or from torch Datasets.

    A set without a test split gives a fifth of its examples, always the same ones, to the test split.

    Args:
        source: One of ``names()``; the path of an ``.npz`` file, of a folder of images, or of a table of texts (.tsv or
            .csv, with a column ``label`` and a column of texts), or of a text (.txt); a Dataset; or a list
            of Datasets for training, validation and test.
        validation: The fraction (or, if an int, the number) of training examples to set aside. They are drawn by
            ``seed``, in proportion to the classes, or by whole patients if there are patients, and never from test
            data. They are set aside whichever ``splits`` are loaded; 0 trains on all examples.
        hold_out: Classes whose examples go to ``Data.held_out``; the other classes are renumbered from 0.
        seed: Determines which examples are set aside.
        root: The folder of official files, in a folder of the set's name; by default ``$NESTLING_DATA``.
        splits: Which of ``"train"``, ``"validation"`` and ``"test"`` to load.
        augment: The augmentation for training: a name, or a function of the inputs of a batch, as they are stored, that
            returns them changed (with masks it has and returns both). It draws from torch's random state, which follows
            from the seed and the batch. ``"auto"`` suits the named set, and is ``"none"`` for data of yours.
        resize: For a folder of images: (height, width), or one number for both.
        download: Fetch official files that are missing.
        verify: Compare official files with their published checksums.
        tokenizer: Makes tensors of texts: one of Hugging Face's, or a function of a list of texts that returns tensors
            by name. The inputs of a batch are these tensors, by the names of the network's arguments; what only pads
            every text of the batch is left out. ``"bytes"``, which is the default for a .txt file, makes rows of bytes
            of the texts, with the next bytes as targets: language data.
        max_length: How many tokens a tokenizer pads and cuts each text to, or how many bytes a row has.

    Returns:
        The splits, with what their targets mean and how inputs are normalised.

    Raises:
        MissingError: If files are missing and can't be fetched.
        DamagedError: If a file is not what its name says.
        DataError: If the data can't be used, such as a split without examples.
        ArgumentError: If an option does not fit.

    Examples:
        >>> known = nl.data.load("digits", hold_out=(8, 9), validation=0.2)
        >>> known.num_outputs, len(known.held_out), known.input_shape
        (8, 354, (1, 8, 8))
    """
    wanted, size = _checked_splits(splits), _checked_size(resize)
    natural_number("seed", seed)
    count("max_length", max_length, "how many tokens a text has at most")
    try:
        raw, where = _read(source, wanted, size, data_root(root), download, verify, _Tokens(tokenizer, max_length))
    except OSError as fault:
        advice = "Check that it is a file that you may read."
        raise DataError(f"{fault.filename or source} cannot be read: {fault.strerror or fault}. {advice}") from fault
    except MemoryError as fault:
        raise DataError(f"{source} does not fit into memory ({fault}). Use fewer examples, or a DataLoader.") from fault
    data = _prepared(raw, validation, hold_out, seed, wanted, augment)
    if tokenizer is not None and data.mean:
        raise ArgumentError("tokenizer", "one", f"none for {raw.name}, which has no texts", "Leave it out.")
    if where is None or callable(augment) or callable(tokenizer):
        return data
    arguments = {"source": where, "validation": validation, "hold_out": list(hold_out), "seed": seed}
    arguments |= {"augment": augment} if augment != "auto" else {}
    arguments |= {"resize": list(size)} if size is not None else {}
    arguments |= {"tokenizer": BYTES, "max_length": max_length} if raw.task == "language" else {}
    return replace(data, loaded_with=arguments)


class _Tokens(NamedTuple):
    """What makes a part of its texts; a part without texts stays as it is."""

    tokenizer: Tokenizer | Literal["bytes"] | None
    max_length: int

    def part(self, read: Part | Texts) -> Part:
        return read.tokenised(self.tokenizer, self.max_length) if isinstance(read, Texts) else read

    def rows(self, path: Path) -> Part:
        if self.tokenizer not in (None, BYTES):
            given = "a tokenizer for a file that is one text, without labels"
            raise ArgumentError("tokenizer", given, f"{BYTES!r}, or none", "Leave it out to predict each next byte.")
        return read_plain(path, self.max_length)


def _read(
    source: "str | Path | Dataset[Any] | Sequence[Dataset[Any]]",
    wanted: Collection[str],
    size: Size | None,
    root: Path,
    download: bool,
    verify: bool,
    tokens: _Tokens,
) -> tuple[Raw, str | None]:
    """The data before it is split, and the name or the absolute path that loads it again, None for Datasets."""
    is_named = isinstance(source, str) and source in SOURCES
    path = _existing_path(source) if isinstance(source, str | Path) and not is_named else None
    if size is not None and (path is None or not path.is_dir()):
        raise ArgumentError("resize", size, "left out for all data except a folder of images", "Leave it out.")
    if path is not None and path.suffix in (*TABLES, *PLAIN_TEXTS) and path.is_file():
        part = tokens.part(read_table(path)) if path.suffix in TABLES else tokens.rows(path)
        return Raw(path.stem, part.task or "classification", part.classes, "none", {WHOLE: part}), str(path.resolve())
    if path is not None:
        return read_path(path, wanted, size), str(path.resolve())
    if isinstance(source, str):
        return _official(SOURCES[source], root, wanted, download, verify, tokens), source
    datasets = [source] if isinstance(source, Dataset) else list(source)  # type: ignore[arg-type]
    return read_datasets(datasets), None


def _official(
    source: OfficialSet, root: Path, wanted: Collection[str], download: bool, verify: bool, tokens: _Tokens
) -> Raw:
    needed = [part for part in source.parts if part == WHOLE or part in wanted]
    if "validation" in wanted and "train" in source.parts and "train" not in needed:
        needed.insert(0, "train")
    parts = {}
    for part in needed:
        layout, paths = obtain(source, part, root, download=download, verify=verify)
        parts[part] = tokens.part(layout.read(paths))
    first = next(iter(parts.values()))
    classes = first.classes if first.task else source.classes or first.classes
    return Raw(source.name, first.task or source.task, classes, source.augment, parts, source.mean, source.std)


def _prepared(
    raw: Raw,
    validation: float,
    hold_out: Collection[int],
    seed: int,
    wanted: Collection[str],
    augment: Augmentation | AugmentChoice,
) -> Data:
    kept, held_out = without_classes(raw, hold_out)
    parts = with_test(kept).parts
    train_part = parts.get("train") or next(iter(parts.values()))
    mean, std, inputs = raw.mean, raw.std, train_part.split.inputs
    if mean is None or std is None:
        mean, std = mean_and_std(inputs) if isinstance(inputs, Tensor) else ((), ())
    divided_parts = with_validation(replace(kept, parts=parts), validation, seed).parts
    chosen = {name: part.split for name, part in divided_parts.items() if name in wanted}
    _check_splits(raw.name, chosen, wanted)
    chosen_augment: Augmentation = raw.augment if augment == "auto" else augment
    check_augment(chosen_augment, inputs)
    num_outputs = len(kept.classes) or num_outputs_of(list(parts.values()), raw.name)
    return Data(
        name=raw.name,
        task=raw.task,
        train=chosen.get("train"),
        validation=chosen.get("validation"),
        test=chosen.get("test"),
        held_out=held_out,
        num_outputs=num_outputs,
        classes=kept.classes,
        mean=mean,
        std=std,
        augment=chosen_augment,
        skipped=raw.skipped,
    )


def _check_splits(name: str, chosen: dict[str, Split], wanted: Collection[str]) -> None:
    if not chosen or ("train" in wanted and "train" not in chosen):
        existing = f"only {', '.join(chosen)}" if chosen else "none of these"
        raise DataError(f"{name} was asked for {', '.join(wanted)}, but has {existing}. Ask for other splits.")
    for split, examples in chosen.items():
        if len(examples) == 0:
            raise DataError(f"{name} has too few examples for a split {split!r}: it would be empty. Ask for others.")


def _checked_splits(splits: Collection[str]) -> Collection[str]:
    if isinstance(splits, str) or not splits or not set(splits) <= set(ALL_SPLITS):
        advice = 'For example splits=("test",).'
        raise ArgumentError("splits", repr(splits), f"some of {', '.join(ALL_SPLITS)}", advice)
    return splits


def _checked_size(resize: int | Sequence[int] | None) -> Size | None:
    """The height and the width to which the images of a folder are resized."""
    if resize is None:
        return None
    sizes = tuple(resize) if isinstance(resize, Sequence) else (resize,)
    sizes = sizes * 2 if len(sizes) == 1 else sizes
    if len(sizes) != 2 or not all(type(size) is int and size > 0 for size in sizes) or math.prod(sizes) > MOST_PIXELS:
        needed = f"a height and a width, together of at most {MOST_PIXELS:,} pixels"
        raise RangeError("resize", resize, needed, "For example 64, or 48 64.")
    return sizes


def _existing_path(source: str | Path) -> Path:
    path = Path(os.path.expanduser(source))  # which leaves a user that does not exist as it is
    if path.exists():
        return path
    if isinstance(source, Path) or os.sep in source or path.suffix:
        raise MissingError(f"{path} does not exist. Pass an .npz file, a folder of images or a table of texts.")
    matches = difflib.get_close_matches(source.lower().replace("-", "_"), names(), n=1, cutoff=0.5)
    guess = f"Did you mean {matches[0]!r}? " if matches else ""
    raise MissingError(f"there is no data set {source!r}. {guess}The names are {', '.join(names())}.")
