"""The record that travels in a file: what its inputs and outputs mean, and what is known of the network."""

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from nestling.errors import RunError

KEY = "nestling"
"""The entry of a file's metadata that has the record, as JSON."""
FORMAT = 1
"""Version of the record."""
DTYPES = ("uint8", "int8", "int32", "int64", "float16", "float32", "float64", "bool")
"""What inputs may be."""
CASCADE_SCORES = ("entropy", "max_probability")
"""How a cascade can say how unsure a stage is, where weights are not drawn."""
_MOST = 16 * 2**20
"""No record has more characters."""


def record_in(text: str | None) -> dict[str, Any]:
    """The record from its JSON; empty for a file of others, and for what can't be read."""
    if text is None or len(text) > _MOST:
        return {}
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}


def check_record(record: Mapping[str, Any], path: Path) -> None:
    """Refuse a file without a record, with one of another version, and with entries that are not what they must be."""
    if not record:
        advice = "Export it with nl.export, or open it in its runtime by itself."
        raise RunError(path, "has no record of nestling's that can be read", advice)
    if record.get("format") != FORMAT or isinstance(record["format"], bool | float):
        problem = f"has a record of format {str(record.get('format'))[:20]}, and this version reads {FORMAT}"
        raise RunError(path, problem, "Update nestling, or export it again.")
    for name, is_right in _ENTRIES.items():
        if not is_right(record.get(name)):
            raise RunError(path, f"has a record whose {name} can't be used", "Export it again.")


def _are_inputs(entry: object) -> bool:
    return isinstance(entry, list) and bool(entry) and all(map(_is_input, entry))


def _is_input(entry: object) -> bool:
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str) or entry.get("dtype") not in DTYPES:
        return False
    shape = entry.get("shape")
    return isinstance(shape, list) and all(isinstance(size, str) or _is_size(size) for size in shape)


def _is_size(entry: object) -> bool:
    return isinstance(entry, int) and not isinstance(entry, bool) and 0 <= entry < 2**31


def _are_sizes(entry: object) -> bool:
    return isinstance(entry, dict) and all(map(_is_size, entry.values()))


def _are_names(entry: object) -> bool:
    return isinstance(entry, list) and all(isinstance(name, str) for name in entry)


def _are_thresholds(entry: object) -> bool:
    if not isinstance(entry, dict) or not all(isinstance(value, int | float) for value in entry.values()):
        return False
    return all(coverage.replace(".", "", 1).isdecimal() for coverage in entry)


def _are_widths(entry: object) -> bool:
    rows = entry.get("table") if isinstance(entry, dict) else None
    return isinstance(rows, list) and bool(rows) and all(map(_is_row, rows))


def _is_row(entry: object) -> bool:
    if not isinstance(entry, dict) or not _are_sizes(entry.get("sizes")) or not _is_share(entry.get("kept")):
        return False
    return entry.get("thresholds") is None or _are_thresholds(entry["thresholds"])


def _is_share(entry: object) -> bool:
    return entry is None or (isinstance(entry, int | float) and 0 <= entry <= 1)


def _is_cascade(entry: object) -> bool:
    if not isinstance(entry, dict) or entry.get("score") not in CASCADE_SCORES:
        return False
    stages = entry.get("stages")
    has_sets = _are_thresholds(entry.get("set_thresholds")) and isinstance(entry.get("goal"), str)
    return has_sets and isinstance(stages, list) and bool(stages) and all(map(_is_stage, stages))


def _is_stage(entry: object) -> bool:
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str) or not _are_sizes(entry.get("cut")):
        return False
    threshold, temperature, macs = (entry.get(name) for name in ("threshold", "temperature", "macs"))
    return (threshold is None or _is_number(threshold)) and _is_positive(temperature) and _is_positive(macs)


def _is_number(entry: object) -> bool:
    return isinstance(entry, int | float) and not isinstance(entry, bool) and math.isfinite(entry)


def _is_positive(entry: object) -> bool:
    return _is_number(entry) and entry > 0  # type: ignore[operator]


_ENTRIES: dict[str, Callable[[object], bool]] = {
    "inputs": _are_inputs,
    "classes": lambda entry: entry is None or _are_names(entry),
    "thresholds": lambda entry: entry is None or _are_thresholds(entry),
    "sizes": lambda entry: entry is None or _are_sizes(entry),
    "widths": lambda entry: entry is None or _are_widths(entry),
    "kept": _is_share,
    "cascade": lambda entry: entry is None or _is_cascade(entry),
}
"""The entries of a record that are used here, each with its check; all but the inputs may be missing."""
