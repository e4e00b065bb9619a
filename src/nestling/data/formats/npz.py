"""Arrays by name from a numpy archive; Python objects in it are refused."""

import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from nestling.data.faults import DamagedError, DataError

Arrays = dict[str, NDArray[Any]]


def read_npz(path: Path) -> Arrays:
    """Every array of the file."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return {key: _array(archive, key, path) for key in archive.files}
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError) as fault:
        raise DamagedError(f"{path} is damaged: {fault}. Replace it.") from fault
    except (ValueError, AttributeError, TypeError) as fault:
        raise DamagedError(f"{path} is not an .npz file that numpy can read. Write it with numpy.savez.") from fault


def npz_length(path: Path, key: str) -> int | None:
    """The number of rows of the array ``key``, from its header alone, or None if the header can't be read."""
    try:
        with zipfile.ZipFile(path) as archive, archive.open(f"{key}.npy") as file:
            read_header = npy.read_array_header_1_0 if npy.read_magic(file) == (1, 0) else npy.read_array_header_2_0
            shape = read_header(file)[0]
            return int(shape[0])
    except (zipfile.BadZipFile, KeyError, ValueError, IndexError, OSError):
        return None


def _array(archive: Any, key: str, path: Path) -> NDArray[Any]:  # noqa: ANN401
    try:
        array: NDArray[Any] = archive[key]
    except ValueError as fault:
        advice = "Save it as numbers, with a dtype such as uint8, float32 or int64."
        raise DataError(f"{path}: the array {key!r} has Python objects or cannot be read. {advice}") from fault
    return array
