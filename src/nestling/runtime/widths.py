"""The cuts of a file that holds several widths: which there are, and the sizes that choose one of them."""

from collections.abc import Mapping
from typing import Any

from nestling.errors import ArgumentError

CALIBRATION = ("temperature", "thresholds", "calibrated_on")
"""The entries of a record that differ between the cuts of a file."""
Cut = float | str | Mapping[str, int]


def row_of(about: Mapping[str, Any], cut: Cut | None) -> dict[str, Any]:
    """The row of a file's table of cuts for a fraction, a name, or widths by group; None is the largest cut.

    A file of one cut has no table: its only row is itself, which any other cut is refused for.
    """
    rows = _rows(about)
    if cut is None:
        return max(rows, key=lambda row: row.get("kept") or 1.0)
    for row in rows:
        if cut == row.get("cut") or str(_written(cut)) in str(row.get("name")).split(", "):
            return row
    needed = f"one that the file has ({', '.join(str(row.get('name')) for row in rows)})"
    raise ArgumentError("cut", cut, needed, "Leave it out, or export the cut.")


def calibrated_at(about: Mapping[str, Any], row: Mapping[str, Any]) -> dict[str, Any]:
    """The record with the calibration of a row in place of that of the file, where the row has one."""
    return {**about, **{key: row[key] for key in CALIBRATION if key in row}}


def _rows(about: Mapping[str, Any]) -> list[dict[str, Any]]:
    widths = about.get("widths")
    if widths:
        return list(widths["table"])
    return [{"name": about.get("name"), "cut": about.get("cut"), "kept": about.get("kept"), "sizes": {}}]


def _written(cut: Cut) -> object:
    return f"{cut:g}" if isinstance(cut, int | float) else cut
