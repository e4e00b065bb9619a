"""Reads a user's data: an .npz file, a folder of images, or torch Datasets.

An .npz file has inputs and targets under one of the pairs of names in ``PAIRS``. With a suffix, such as ``x_train``
and ``y_train``, they are that split. Without a suffix they are the whole set, of which a fifth is set aside for
testing. Targets that are whole numbers mean classification, real numbers regression, masks of bytes segmentation.

A folder has images as ``<class>/<image>``, or one such folder per split, such as ``train/<class>/<image>``. Its other
files are skipped, and counted.
"""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import Dataset

from nestling.data.arrays import num_outputs_of, part_of, task_of
from nestling.data.faults import DataError, MissingError
from nestling.data.formats.archive import FolderTree
from nestling.data.formats.images import Size, has_colour, is_image, read_images
from nestling.data.formats.npz import Arrays, read_npz
from nestling.data.parts import WHOLE, Part, Raw, labelled
from nestling.errors import ArgumentError

PAIRS = (("x", "y"), ("images", "labels"), ("images", "masks"), ("inputs", "targets"))
SUFFIXES = {"_train": "train", "_validation": "validation", "_val": "validation", "_test": "test", "": WHOLE}
FOLDERS = {"train": "train", "validation": "validation", "val": "validation", "test": "test"}


def read_path(path: Path, wanted: Collection[str], resize: Size | None = None) -> Raw:
    """The data at ``path``, a folder of images or an .npz file; ``wanted`` are the splits to read."""
    if path.is_dir():
        return _folder(path, wanted, resize)
    if path.suffix != ".npz":
        kinds = "an .npz file, a folder of images or a table of texts (.tsv, .csv)"
        raise DataError(f"{path} is none of these: {kinds}. Convert it with numpy.savez.")
    return _npz(path)


def read_datasets(datasets: Sequence["Dataset[Any]"]) -> Raw:
    """Datasets of pairs (input, target): the whole set, or train and test, or train, validation and test."""
    names = {1: (WHOLE,), 2: ("train", "test"), 3: ("train", "validation", "test")}.get(len(datasets))
    if names is None or not all(isinstance(dataset, Dataset) for dataset in datasets):
        given = ", ".join(type(dataset).__name__ for dataset in datasets) or "nothing"
        needed = "one Dataset, or (train, test), or (train, validation, test)"
        raise ArgumentError("source", given, needed, "Pass torch Datasets, a name or a path.")
    parts = {name: _stacked(dataset, name) for name, dataset in zip(names, datasets, strict=True)}
    return _raw(type(datasets[0]).__name__, parts)


def _npz(path: Path) -> Raw:
    arrays = read_npz(path)
    parts: dict[str, Part] = {}
    for suffix, name in SUFFIXES.items():
        for x, y in PAIRS:
            if x + suffix in arrays and y + suffix in arrays and name not in parts:
                where = f"{path} ({x}{suffix}, {y}{suffix})"
                parts[name] = part_of(arrays.pop(x + suffix), arrays.pop(y + suffix), where)
    if not parts or (WHOLE in parts and len(parts) > 1):
        raise DataError(f"{path} has the arrays {_listed(arrays)}. {_NPZ_ADVICE}")
    if any(name in arrays for name in _ARRAY_NAMES):
        raise DataError(f"{path} has {_listed(arrays)} without the array that goes with it. {_NPZ_ADVICE}")
    return _raw(path.stem, parts)


_ARRAY_NAMES = {name + suffix for pair in PAIRS for name in pair for suffix in SUFFIXES}
_NPZ_ADVICE = "Save inputs and targets as x and y, or as x_train, y_train, x_test, y_test (x_validation, y_validation)."


def _listed(arrays: Arrays) -> str:
    return ", ".join(sorted(arrays)) or "none"


def _folder(path: Path, wanted: Collection[str], resize: Size | None) -> Raw:
    present = {split: path / folder for folder, split in FOLDERS.items() if (path / folder).is_dir()}
    has_splits = "train" in present or "test" in present
    folders = {split: folder for split, folder in present.items() if split in wanted} if has_splits else {WHOLE: path}
    if has_splits and "train" in present and "validation" in wanted and "validation" not in present:
        folders["train"] = present["train"]
    if not folders:
        raise MissingError(f"{path} has the splits {', '.join(present)}, none of which was asked for. Ask for one.")
    trees = {split: FolderTree(folder) for split, folder in folders.items()}
    files = {split: tree.names() for split, tree in trees.items()}
    names = {split: _images_by_class(folders[split], files[split]) for split in trees}
    classes = sorted({folder for split_names in names.values() for folder in split_names.values()})
    unknown = set(classes) - set(names["train"].values()) if "train" in names else set()
    if unknown:
        raise DataError(f"{path} has the class {min(unknown)} outside of train only. Add it to train or remove it.")
    colour = any(has_colour(tree, list(names[split])) for split, tree in trees.items())
    parts = {}
    for split, tree in trees.items():
        images = read_images(tree, list(names[split]), colour, resize, resize=resize is not None)
        labels = np.array([classes.index(name) for name in names[split].values()])
        parts[split] = labelled(images, labels, len(classes), tree.where(""))
    skipped = [trees[split].where(name) for split in trees for name in files[split] if name not in names[split]]
    return Raw(path.name, "classification", tuple(classes), "none", parts, skipped=tuple(skipped))


def _images_by_class(folder: Path, files: Sequence[str]) -> dict[str, str]:
    images = [name for name in files if is_image(name)]
    if not any("/" in name for name in images):
        given = "images, but none in a folder of its class" if images else "no images"
        raise MissingError(f"{folder} has {given}. Put images into {folder}/<class>/.")
    return {name: name.split("/")[0] for name in images if "/" in name}


def _stacked(dataset: "Dataset[Any]", name: str) -> Part:
    """Every example of a Dataset, read once and kept in memory; its random transforms are so applied only once."""
    try:
        pairs = [dataset[place] for place in range(len(dataset))]  # type: ignore[arg-type]
        x, y = (np.stack([np.asarray(pair[side]) for pair in pairs]) for side in (0, 1))
    except (TypeError, ValueError, IndexError, NotImplementedError) as fault:
        needed = "have a length and give pairs (input, target) of one shape"
        raise DataError(f"the Dataset for {name} must {needed}, but: {fault}. Wrap it, or use a DataLoader.") from fault
    return part_of(x, y, f"the Dataset for {name}")


def _raw(name: str, parts: dict[str, Part]) -> Raw:
    num_outputs = num_outputs_of(list(parts.values()), name)
    task = task_of(next(iter(parts.values())).split.targets)
    classes = () if task == "regression" else tuple(str(number) for number in range(num_outputs))
    return Raw(name, task, classes, "none", parts)
