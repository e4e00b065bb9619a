"""The record that travels in a file: what its inputs and outputs mean, and what is known of the network."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nestling.errors import RunError

KEY = "nestling"
"""The entry of a file's metadata that has the record, as JSON."""
FORMAT = 1
"""Version of the record."""
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
    """Refuse a file without a record of a version that is understood, or whose record does not say its inputs."""
    if not record:
        advice = "Export it with nl.export, or open it in its runtime by itself."
        raise RunError(path, "has no record of nestling's that can be read", advice)
    if record.get("format") != FORMAT or isinstance(record["format"], bool | float):
        problem = f"has a record of format {str(record.get('format'))[:20]}, and this version reads {FORMAT}"
        raise RunError(path, problem, "Update nestling, or export it again.")
    inputs = record.get("inputs")
    if not (isinstance(inputs, list) and inputs and all(map(_is_input, inputs))):
        raise RunError(path, "has a record that does not describe its inputs", "Export it again.")


def _is_input(entry: object) -> bool:
    if not isinstance(entry, dict) or not all(isinstance(entry.get(key), str) for key in ("name", "dtype")):
        return False
    shape = entry.get("shape")
    return isinstance(shape, list) and all(isinstance(size, int | str) and not isinstance(size, bool) for size in shape)
