"""CIFAR's pickles, read without unpickling: the official kind of every protocol is read, all else is refused."""

import collections
import os
import pickle
import pickletools
from contextlib import suppress

import numpy as np
import pytest
from data_files import python2_pickle, python3_pickle, some_bytes
from hypothesis import given
from hypothesis import strategies as st

from nestling.data import DamagedError
from nestling.data.formats.cifar_pickle import read_cifar_pickle
from nestling.data.formats.plain_pickle import read_plain_pickle

IMAGES = some_bytes(3, 3, 32, 32)
LABELS = np.array([7, 0, 9])


def test_the_python2_file_of_the_tests_is_a_pickle():
    batch = pickle.loads(python2_pickle(IMAGES, LABELS), encoding="latin1")
    np.testing.assert_array_equal(batch["data"].reshape(IMAGES.shape), IMAGES)


@pytest.mark.parametrize("key", ["labels", "fine_labels"])
def test_reads_python2(key):
    images, labels = read_cifar_pickle(python2_pickle(IMAGES, LABELS, key), "batch")
    np.testing.assert_array_equal(images, IMAGES)
    np.testing.assert_array_equal(labels, LABELS)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("key", [b"labels", b"fine_labels"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_reads_python3(protocol, key, order):
    rows = np.asarray(IMAGES.reshape(3, -1), order=order)
    content = python3_pickle(rows, LABELS, protocol, key)
    images, labels = read_cifar_pickle(content, "batch")
    np.testing.assert_array_equal(images, IMAGES)
    np.testing.assert_array_equal(labels, LABELS)


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-(2**70), 2**70)
        | st.text(max_size=5)
        | st.binary(min_size=1, max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.tuples(inner, inner)
            | st.dictionaries(st.text(max_size=3), inner, max_size=3)
        ),
        max_leaves=10,
    ),
    st.integers(2, 5),
)
def test_plain_values_come_back(value, protocol):
    assert read_plain_pickle(pickle.dumps(value, protocol), "file") == value


class Hostile:
    def __init__(self, call, *arguments):
        self.call, self.arguments = call, arguments

    def __reduce__(self):
        return self.call, self.arguments


HOSTILE = {
    "os.system": Hostile(os.system, "touch {marker}"),
    "eval": Hostile(eval, "open('{marker}', 'w')"),
    "getattr": Hostile(getattr, "", "join"),
    "dtype of objects": np.array([object], dtype=object),
    "ordered": collections.OrderedDict(a=1),
    "floats": np.zeros((2, 3072)),
}


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("kind", HOSTILE)
def test_refuses_what_is_not_plain(tmp_path, monkeypatch, kind, protocol):
    monkeypatch.chdir(tmp_path)
    content = pickle.dumps({b"data": HOSTILE[kind], b"labels": [1]}, protocol)
    with pytest.raises(DamagedError, match="batch") as caught:
        read_cifar_pickle(content, "batch")
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("opcode", sorted({op.name for op in pickletools.opcodes}))
def test_every_instruction_alone_is_harmless(opcode):
    """Old instructions such as INST, OBJ, NEWOBJ, EXT1 and PERSID call things too."""
    code = {op.name: op.code.encode("latin1") for op in pickletools.opcodes}[opcode]
    for tail in (b"os\nsystem\n.", b"\x01\x00\x00\x00\x00\x00\x00\x00.", b"\x00."):
        content = b"\x80\x02(U\x02idq\x00" + code + tail
        try:
            value = read_plain_pickle(content, "file")
        except DamagedError:
            continue
        assert not callable(value)


@given(st.binary(max_size=60))
def test_noise_is_damaged_or_plain(noise):
    with suppress(DamagedError):
        read_plain_pickle(b"\x80\x02" + noise, "file")


@given(st.integers(0, 9000))
def test_cut_short_anywhere(length):
    content = python2_pickle(IMAGES, LABELS)
    with pytest.raises(DamagedError):
        read_cifar_pickle(content[: min(length, len(content) - 1)], "batch")


WRONG = {
    "not a dictionary": [1, 2],
    "no data": {b"labels": [1]},
    "short rows": {b"data": IMAGES.reshape(9, -1), b"labels": [1] * 9},
    "labels missing": {b"data": IMAGES.reshape(3, -1), b"labels": [1]},
    "labels are text": {b"data": IMAGES.reshape(3, -1), b"labels": ["1", "2", "3"]},
    "labels are not a list": {b"data": IMAGES.reshape(3, -1), b"labels": 3},
}


@pytest.mark.parametrize("kind", WRONG)
def test_refuses_a_plain_pickle_that_is_no_batch(kind):
    with pytest.raises(DamagedError, match="batch"):
        read_cifar_pickle(pickle.dumps(WRONG[kind], 2), "batch")
