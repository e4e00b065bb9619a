"""The idx reader against bytes made by struct, whole and damaged in every way."""

import gzip
import struct

import numpy as np
import pytest
from data_files import idx_bytes, some_bytes
from hypothesis import given
from hypothesis import strategies as st

from nestling.data import DamagedError
from nestling.data.formats.idx import read_idx

IMAGES = some_bytes(3, 4, 5)


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("array", [IMAGES, np.arange(7, dtype=np.uint8)], ids=["images", "labels"])
def test_reads_what_was_written(tmp_path, suffix, array):
    path = tmp_path / f"file{suffix}"
    path.write_bytes(gzip.compress(idx_bytes(array)) if suffix else idx_bytes(array))
    np.testing.assert_array_equal(read_idx(path, array.ndim), array)


DAMAGED = {
    "empty": b"",
    "half a header": idx_bytes(IMAGES)[:9],
    "cut short": idx_bytes(IMAGES)[:-1],
    "trailing garbage": idx_bytes(IMAGES) + b"!",
    "wrong magic": b"\x01" + idx_bytes(IMAGES)[1:],
    "of floats": bytes([0, 0, 13, 3]) + idx_bytes(IMAGES)[4:],
    "of two axes": idx_bytes(IMAGES[0]),
    "huge promise": bytes([0, 0, 8, 3]) + struct.pack(">III", 2**32 - 1, 2**32 - 1, 2**32 - 1) + b"abc",
}


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("fault", DAMAGED)
def test_damage_is_one_line_that_names_the_file(tmp_path, fault, suffix):
    path = tmp_path / f"file{suffix}"
    path.write_bytes(gzip.compress(DAMAGED[fault]) if suffix else DAMAGED[fault])
    with pytest.raises(DamagedError, match="file") as caught:
        read_idx(path, 3)
    assert "\n" not in str(caught.value)


@given(st.integers(0, 200))
def test_gzip_cut_anywhere(tmp_path_factory, length):
    whole = gzip.compress(idx_bytes(IMAGES))
    path = tmp_path_factory.mktemp("cut") / "file.gz"
    path.write_bytes(whole[: min(length, len(whole) - 1)])
    with pytest.raises(DamagedError):
        read_idx(path, 3)


def test_gzip_with_a_wrong_sum(tmp_path):
    content = bytearray(gzip.compress(idx_bytes(IMAGES)))
    content[-5] ^= 1
    (tmp_path / "file.gz").write_bytes(bytes(content))
    with pytest.raises(DamagedError):
        read_idx(tmp_path / "file.gz", 3)


def test_plain_file_called_gz(tmp_path):
    (tmp_path / "file.gz").write_bytes(idx_bytes(IMAGES))
    with pytest.raises(DamagedError):
        read_idx(tmp_path / "file.gz", 3)
