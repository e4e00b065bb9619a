"""Arrays from numpy's files; headers are checked before memory is taken, and Python objects are refused."""

import math
import zipfile
import zlib
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from nestling.data.faults import DamagedError
from nestling.data.formats.limits import check_expansion, plain_file

Arrays = dict[str, NDArray[Any]]


def read_npz(path: Path) -> Arrays:
    """Every array of the file."""
    advice = "Save it with numpy.savez, which does not compress."
    try:
        with plain_file(path).open("rb") as file, zipfile.ZipFile(file) as archive:
            members = archive.infolist()
            check_expansion(path, sum(member.file_size for member in members), path.stat().st_size, advice)
            return {_key(member): _member(archive, member, path) for member in members}
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError) as fault:
        raise DamagedError(f"{path} is damaged: {fault}. Replace it.") from fault


def read_npy(file: IO[bytes], length: int, where: str) -> NDArray[Any]:
    """The array in an open .npy file of ``length`` bytes, called ``where`` in error messages."""
    try:
        shape, dtype = _header(file)
        promised, present = math.prod(shape) * dtype.itemsize, length - file.tell()
        if dtype.hasobject:
            raise DamagedError(f"{where} has Python objects. {_ADVICE}")
        if promised != present or min(shape, default=0) < 0:
            raise DamagedError(f"{where} is damaged: its header promises {promised} bytes, and {present} are there.")
        file.seek(0)
        array: NDArray[Any] = npy.read_array(file, allow_pickle=False)
    except (ValueError, TypeError, ArithmeticError, LookupError, AttributeError, RecursionError, MemoryError) as fault:
        raise DamagedError(f"{where} is not an array that can be read: {fault!s:.200}. {_ADVICE}") from fault
    return array


_ADVICE = "Save it as numbers, with a dtype such as uint8, float32 or int64."


def npz_length(path: Path, key: str) -> int | None:
    """The number of rows of the array ``key``, from its header alone, or None if the header can't be read."""
    try:
        with zipfile.ZipFile(path) as archive, archive.open(f"{key}.npy") as file:
            return int(_header(file)[0][0])
    except (zipfile.BadZipFile, KeyError, ValueError, IndexError, OSError):
        return None


def _header(file: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """The shape and the dtype that the header of an .npy file promises."""
    read = npy.read_array_header_1_0 if npy.read_magic(file) == (1, 0) else npy.read_array_header_2_0
    shape, _, dtype = read(file)
    return shape, dtype


def _key(member: zipfile.ZipInfo) -> str:
    return member.filename.removesuffix(".npy")


def _member(archive: zipfile.ZipFile, member: zipfile.ZipInfo, path: Path) -> NDArray[Any]:
    with archive.open(member) as file:
        return read_npy(file, member.file_size, f"{path}: the array {_key(member)!r}")
