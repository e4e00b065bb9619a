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
    """A data set, without reading it: ``splits`` can be loaded from ``where``; ``how`` says how to get the others.

    ``can_fetch`` says whether ``load`` fetches missing files. ``num_examples`` is None if it is unknown, or if no file
    is present. ``where`` is None for data that comes with a package.
    """

    name: str
    task: Task
    splits: tuple[str, ...]
    num_examples: int | None
    where: Path | None
    how: str
    can_fetch: bool = False


def found(root: Path | str | None = None) -> list[Found]:
    """Look for every named data set; fetches nothing and computes no checksum."""
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
