"""Which of the data sets by name are here, and how to get the others."""

from dataclasses import dataclass
from pathlib import Path

from nestling.data.files import data_root, how_to_get, located
from nestling.data.formats.npz import npz_length
from nestling.data.parts import WHOLE
from nestling.data.record import Task
from nestling.data.sources import SOURCES, Layout, OfficialSet


@dataclass(frozen=True)
class Found:
    """What is known of a data set without reading it: ``splits`` can be loaded from ``where``; ``how`` gets the rest.

    ``can_fetch`` says whether ``load`` fetches what is not here. ``num_examples`` is None where it cannot be told, or
    nothing is here. ``where`` is None for data that is embedded.
    """

    name: str
    task: Task
    splits: tuple[str, ...]
    num_examples: int | None
    where: Path | None
    how: str
    can_fetch: bool = False


def found(root: Path | str | None = None) -> list[Found]:
    """Look for every data set by name; nothing is fetched, and no checksum is computed."""
    folder = data_root(root)
    return [_look(source, folder) for source in SOURCES.values()]


def _look(source: OfficialSet, root: Path) -> Found:
    layouts = {part: located(source, part, root) for part in source.parts}
    here = {part: layout for part, layout in layouts.items() if layout is not None}
    sizes = [_size(source, part, layout, root) for part, layout in here.items()]
    total = None if not sizes or None in sizes else sum(size for size in sizes if size is not None)
    missing = [how_to_get(source, part, root) for part in source.parts if part not in here]
    where = root / source.name if here and any(layout.files for layout in here.values()) else None
    how = "; ".join(dict.fromkeys(missing))
    return Found(source.name, source.task, _splits(tuple(here)), total, where, how, bool(source.downloads))


def _splits(parts: tuple[str, ...]) -> tuple[str, ...]:
    if WHOLE in parts:
        return "train", "validation", "test"
    return tuple(split for part in parts for split in (("train", "validation") if part == "train" else (part,)))


def _size(source: OfficialSet, part: str, layout: Layout, root: Path) -> int | None:
    if layout.files and layout.files[0].endswith(".npz"):
        path = root / source.name / layout.files[0]
        return npz_length(path, "y") or npz_length(path, "ids")
    return source.sizes.get(part)
