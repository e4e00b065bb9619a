"""Files of a run: whole or not there, and one line about anything that is not one of them."""

import json
import os

import pytest
import safetensors.torch
import torch
from small_networks import normal, same_tensors

from nestling.errors import RunError
from nestling.storage import files
from nestling.storage.files import read_json, read_tensors, write_json, write_tensors, write_whole

TENSORS = {
    "double": normal(3, 2, dtype=torch.float64),
    "half": normal(4).bfloat16(),
    "number": torch.tensor(2.5),
    "whole": torch.tensor([[1, -(2**60)]]),
    "flag": torch.tensor([True, False, True]),
    "empty": torch.zeros(0, 3),
    "bytes": torch.arange(5, dtype=torch.uint8),
    "odd": torch.tensor([float("nan"), float("inf"), -0.0]),
}
RECORD = {"cuts": [{"0": 2}], "score": 0.1 + 0.2, "text": "ü\n", "nothing": None}


def refused(read, path):
    """The one line with which a file is refused."""
    with pytest.raises(RunError) as caught:
        read(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    return message


def test_tensors_and_back(tmp_path):
    write_tensors(tmp_path / "a", TENSORS, RECORD)
    tensors, record = read_tensors(tmp_path / "a")
    assert record == RECORD
    assert tensors.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert (tensors[name].dtype, tensors[name].shape) == (tensor.dtype, tensor.shape)
        bits = [own.reshape(-1).view(torch.uint8).tolist() for own in (tensors[name], tensor)]
        assert bits[0] == bits[1]


def test_tensors_that_are_not_dense_or_need_gradients(tmp_path):
    base = normal(4, 6)
    given = {
        "turned": base.T,
        "part": base.clone()[:, 1:4],
        "same": base[:1].expand(3, 6),
        "grad": base.requires_grad_(),
    }
    given["turned"] = given["turned"].clone(memory_format=torch.preserve_format)
    write_tensors(tmp_path / "a", given, {})
    assert same_tensors(read_tensors(tmp_path / "a")[0], {name: own.detach() for name, own in given.items()})


def test_no_tensors_at_all(tmp_path):
    write_tensors(tmp_path / "a", {}, {"state": 1})
    assert read_tensors(tmp_path / "a") == ({}, {"state": 1})


def test_json_and_back(tmp_path):
    write_json(tmp_path / "a", RECORD)
    assert read_json(tmp_path / "a") == RECORD


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_numbers_that_json_has_not_are_never_written(tmp_path, number):
    write_json(tmp_path / "a", {"x": 1})
    for write in (
        lambda: write_json(tmp_path / "a", {"x": number}),
        lambda: write_tensors(tmp_path / "a", {}, {"x": number}),
    ):
        with pytest.raises(ValueError, match="JSON"):
            write()
    assert read_json(tmp_path / "a") == {"x": 1}


@pytest.mark.parametrize("function", ["replace", "fsync"])
@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()], ids=["OSError", "KeyboardInterrupt"])
def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, function, error):
    path = tmp_path / "a"
    write_tensors(path, {"x": torch.zeros(3)}, {})
    before = path.read_bytes()

    def fail(*_):
        raise error

    raised = RunError if isinstance(error, OSError) else type(error)
    with monkeypatch.context() as patch:
        patch.setattr(files.os, function, fail)
        with pytest.raises(raised):
            write_tensors(path, {"x": torch.ones(3)}, {})
        with pytest.raises(raised):
            write_json(tmp_path / "new", {})
    assert path.read_bytes() == before
    assert [own.name for own in tmp_path.iterdir()] == ["a"]
    write_tensors(path, {"x": torch.ones(3)}, {})
    assert torch.equal(read_tensors(path)[0]["x"], torch.ones(3))


def test_content_is_on_disk_before_it_takes_its_place(tmp_path, monkeypatch):
    events = []
    real_sync, real_replace = os.fsync, os.replace
    monkeypatch.setattr(files.os, "fsync", lambda own: events.append("sync") or real_sync(own))
    monkeypatch.setattr(files.os, "replace", lambda *own: events.append("replace") or real_replace(*own))
    write_whole(tmp_path / "a", b"content")
    assert events[:2] == ["sync", "replace"]
    assert (tmp_path / "a").read_bytes() == b"content"


@pytest.mark.skipif(os.name != "posix", reason="permissions of another system")
def test_files_have_the_permissions_of_any_other(tmp_path):
    write_whole(tmp_path / "a", b"")
    (tmp_path / "b").write_bytes(b"")
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "b").stat().st_mode


@pytest.fixture
def good(tmp_path):
    write_tensors(tmp_path / "a", {"x": normal(3), "y": torch.arange(2)}, {"cuts": []})
    return tmp_path / "a"


def test_a_file_cut_off_anywhere(good):
    content = good.read_bytes()
    for length in [*range(64), *range(64, len(content), 7), len(content) - 1]:
        good.write_bytes(content[:length])
        refused(read_tensors, good)
    good.write_bytes(content + b"\0")
    refused(read_tensors, good)


def test_a_bit_flipped_anywhere(good):
    content = good.read_bytes()
    for place in range(len(content)):
        damaged = bytearray(content)
        damaged[place] ^= 1 << place % 8
        good.write_bytes(damaged)
        refused(read_tensors, good)


def test_numbers_that_were_exchanged_are_noticed(good):
    content = bytearray(good.read_bytes())
    content[-1], content[-9] = content[-9], content[-1]
    content[-16], content[-8] = content[-8], content[-16]
    good.write_bytes(content)
    assert "checksum" in refused(read_tensors, good)


METADATA = {
    "none": None,
    "foreign": {"format": "pt"},
    "newer": {"format": files.FORMAT + 1, "record": "{}", "sha256": ""},
    "older": {"format": 0, "record": "{}", "sha256": ""},
    "a text": {"format": str(files.FORMAT), "record": "{}", "sha256": ""},
    "no record": {"format": files.FORMAT, "sha256": ""},
    "no checksum": {"format": files.FORMAT, "record": "{}"},
    "other checksum": {"format": files.FORMAT, "record": "{}", "sha256": "0" * 64},
}


@pytest.mark.parametrize("metadata", METADATA.values(), ids=METADATA.keys())
def test_foreign_tensors(tmp_path, metadata):
    head = metadata if metadata in (None, METADATA["foreign"]) else {"nestling": json.dumps(metadata)}
    safetensors.torch.save_file({"x": torch.zeros(2)}, tmp_path / "a", head)
    message = refused(read_tensors, tmp_path / "a")
    assert ("Update nestling" in message) == (metadata is METADATA["newer"])


@pytest.mark.parametrize("record", ["{", '{"x": NaN}', "[" * 100_000, ""], ids=lambda own: own[:10])
def test_records_that_are_no_json(tmp_path, record):
    tensors = {"x": torch.zeros(2)}
    digest = files._checksum(tensors, record)
    head = json.dumps({"format": files.FORMAT, "record": record, "sha256": digest})
    safetensors.torch.save_file(tensors, tmp_path / "a", {"nestling": head})
    refused(read_tensors, tmp_path / "a")


def test_a_header_longer_than_the_file(tmp_path):
    for length in (2**20, 2**40, 2**63, 2**64 - 1):
        (tmp_path / "a").write_bytes(length.to_bytes(8, "little") + b"{}" * 50)
        refused(read_tensors, tmp_path / "a")


NO_JSON = {
    "empty": b"",
    "half": b'{"format": 1',
    "NaN": b'{"lr": NaN}',
    "Infinity": b"[-Infinity]",
    "deep": b"[" * 1_000_000,
    "deep objects": b'{"a":' * 200_000,
    "bytes": b"\x80\x81\xff",
    "two": b"{}{}",
    "pickle": b"\x80\x04}.",
    "digits": b"1" * 10_000,
    "too large": b'{"lr": 1e999}',
    "no object": b"[]",
    "no format": b"{}",
    "no checksum": b'{"format": 1}',
    "a wrong checksum": b'{"format": 1, "sha256": "0"}',
    "a checksum of another kind": b'{"format": 1, "sha256": [3]}',
}


@pytest.mark.parametrize("content", NO_JSON.values(), ids=NO_JSON.keys())
def test_what_is_no_json(tmp_path, content):
    (tmp_path / "a").write_bytes(content)
    refused(read_json, tmp_path / "a")


def test_json_with_a_bit_flipped_anywhere(tmp_path):
    write_json(tmp_path / "a", {"lr": 0.25, "names": ["x", "ü"], "none": None})
    content = (tmp_path / "a").read_bytes()
    for place in range(len(content)):
        damaged = bytearray(content)
        damaged[place] ^= 1 << place % 8
        (tmp_path / "a").write_bytes(damaged)
        if damaged.translate(None, b" \n\r\t") != content.translate(None, b" \n\r\t"):
            refused(read_json, tmp_path / "a")


@pytest.mark.skipif(os.name != "posix", reason="pipes of another system")
@pytest.mark.parametrize("read", [read_json, read_tensors])
def test_a_pipe_is_not_waited_for(tmp_path, read):
    os.mkfifo(tmp_path / "a")
    assert "not a plain file" in refused(read, tmp_path / "a")


def test_a_huge_file_is_not_read(tmp_path, monkeypatch):
    with open(tmp_path / "a", "wb") as file:
        file.truncate(2**34)
    monkeypatch.setattr(files.Path, "read_bytes", lambda _: pytest.fail("it was read"))
    refused(read_json, tmp_path / "a")


@pytest.mark.parametrize("read", [read_json, read_tensors])
def test_no_file_and_a_folder(tmp_path, read):
    assert "is not there" in refused(read, tmp_path / "a")
    (tmp_path / "folder").mkdir()
    refused(read, tmp_path / "folder")
    (tmp_path / "file").write_text("")
    refused(read, tmp_path / "file" / "a")


def test_a_folder_where_tensors_should_be(tmp_path):
    assert "None" not in refused(read_tensors, tmp_path)


def test_two_writers_do_not_meet(tmp_path):
    """A file that is being written has a name of its own, and what is left of a killed writer is in no one's way."""
    (tmp_path / ".a.other.part").write_bytes(b"half")
    write_json(tmp_path / "a", {"x": 1})
    assert read_json(tmp_path / "a") == {"x": 1}
    assert (tmp_path / ".a.other.part").read_bytes() == b"half"
