"""The idx format of MNIST: a magic number, the sizes, and the bytes of one array, plain or gzipped."""

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import IO, cast

import numpy as np
from numpy.typing import NDArray

from nestling.data.faults import DamagedError

UNSIGNED_BYTE = 8
MAX_BYTES = 1 << 31


def read_idx(path: Path, num_axes: int) -> NDArray[np.uint8]:
    """The array in the file, of unsigned bytes with ``num_axes`` axes."""
    try:
        with _open(path) as file:
            return _read_array(file, path, num_axes)
    except (EOFError, gzip.BadGzipFile, zlib.error) as fault:
        raise DamagedError(f"{path} is damaged: {fault}. Delete it and fetch it again.") from fault


def _open(path: Path) -> IO[bytes]:
    return cast(IO[bytes], gzip.open(path)) if path.suffix == ".gz" else path.open("rb")


def _read_array(file: IO[bytes], path: Path, num_axes: int) -> NDArray[np.uint8]:
    header = file.read(4 + 4 * num_axes)
    if header[:4] != bytes([0, 0, UNSIGNED_BYTE, num_axes]):
        needed = f"0000{UNSIGNED_BYTE:02x}{num_axes:02x}"
        given = f"{header[:4].hex() or 'nothing'} instead of {needed}"
        raise DamagedError(f"{path} is not an idx file of {num_axes} axes: it begins with {given}. Fetch it again.")
    if len(header) < 4 + 4 * num_axes:
        raise DamagedError(f"{path} is damaged: it ends within its header. Delete it and fetch it again.")
    shape = struct.unpack(f">{num_axes}I", header[4:])
    size = math.prod(shape)
    content = file.read(min(size + 1, MAX_BYTES))
    if len(content) != size:
        given = "more" if len(content) > size else f"only {len(content)}"
        sizes = "x".join(str(length) for length in shape)
        raise DamagedError(f"{path} is damaged: {sizes} bytes are promised, {given} are there. Fetch it again.")
    return np.frombuffer(content, np.uint8).reshape(shape)
