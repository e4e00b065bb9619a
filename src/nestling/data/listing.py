"""Lists which of the named data sets are on this machine, and how to get the others."""

from dataclasses import dataclass
from pathlib import Path

from nestling.data.files import data_root, find_layout, how_to_get
from nestling.data.formats.npz import npz_length
from nestling.data.parts import WHOLE
from nestling.data.record import Task
from nestling.data.sources import SOURCES, Layout, OfficialSet


@dataclass(frozen=True)
class Found:
    """A data set as far as it can be known without reading it.

    Attributes:
        name: What ``load`` takes.
        task: ``"classification"``, ``"segmentation"``, ``"regression"`` or ``"language"``.
        splits: The splits that can be loaded now.
        num_examples: How many examples are here; None if that is unknown, or no file is present.
        where: The folder of its files; None for data that comes with a package, or is missing.
        how: How to get what is missing; empty if nothing is.
        can_fetch: Whether ``load`` fetches missing files where there is a network connection.

    Examples:
        >>> next(entry for entry in nl.data.found() if entry.name == "digits").splits
        ('train', 'validation', 'test')
    """

    name: str
    task: Task
    splits: tuple[str, ...]
    num_examples: int | None
    where: Path | None
    how: str
    can_fetch: bool = False


def found(root: Path | str | None = None) -> list[Found]:
    """Look for every named data set; fetches nothing and computes no checksum.

    Args:
        root: The folder of all data sets; None for the usual one (``data_root``).

    Returns:
        An entry per data set, also for those that are missing.

    Examples:
        >>> [entry.name for entry in nl.data.found("an/empty/folder") if entry.splits]  # that need no files
        ['digits', 'cluttered_digits']
    """
    folder = data_root(root)
    return [_look(source, folder) for source in SOURCES.values()]


def _look(data_set: OfficialSet, root: Path) -> Found:
    layouts = {part: find_layout(data_set, part, root) for part in data_set.parts}
    present = {part: layout for part, layout in layouts.items() if layout is not None}
    sizes = [_size(data_set, part, layout, root) for part, layout in present.items()]
    total = None if not sizes or None in sizes else sum(size for size in sizes if size is not None)
    missing = [how_to_get(data_set, part, root) for part in data_set.parts if part not in present]
    where = root / data_set.name if present and any(layout.files for layout in present.values()) else None
    how = "; ".join(dict.fromkeys(missing))
    return Found(data_set.name, data_set.task, _splits(tuple(present)), total, where, how, bool(data_set.downloads))


def _splits(parts: tuple[str, ...]) -> tuple[str, ...]:
    if WHOLE in parts:
        return "train", "validation", "test"
    return tuple(split for part in parts for split in (("train", "validation") if part == "train" else (part,)))


def _size(data_set: OfficialSet, part: str, layout: Layout, root: Path) -> int | None:
    if layout.files and layout.files[0].endswith(".npz"):
        path = root / data_set.name / layout.files[0]
        return npz_length(path, "y") or npz_length(path, "ids")
    return data_set.sizes.get(part)
