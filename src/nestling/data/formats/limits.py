"""Limits on what is read of files that others may have made: plain files, which expand no more than data does."""

import stat
from pathlib import Path

from nestling.data.faults import DataError

MOST_BYTES = 1 << 31
"""Data may always take this much memory."""
MOST_EXPANSION = 100
"""Larger data may take this many times the bytes of its files: images take 2 to 30 times theirs."""


def plain_file(path: Path) -> Path:
    """The path of a plain file; a pipe or a device is refused, since reading one may never end."""
    try:
        mode = path.stat().st_mode
    except OSError as fault:
        raise DataError(f"{path} cannot be read: {fault.strerror or fault}. Replace or remove it.") from fault
    if not stat.S_ISREG(mode):
        raise DataError(f"{path} is not a plain file, but a pipe or a device. Replace or remove it.")
    return path


def check_expansion(where: object, num_bytes: int, on_disk: int, advice: str) -> None:
    """Refuse data that would take much more memory than its files could hold, before any of it is read."""
    if num_bytes > max(MOST_BYTES, MOST_EXPANSION * on_disk):
        raise DataError(f"{where} would take {num_bytes:,} bytes of memory for {on_disk:,} bytes of files. {advice}")
