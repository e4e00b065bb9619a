"""Files that a stranger made: refused with one line, before they are waited for, believed, run or taken into memory."""

import os
import pickle
import struct
import zipfile
import zlib
from threading import Thread

import numpy as np
import pytest
from data_files import some_bytes, write_image
from numpy.lib import format as npy
from PIL import Image

from effort import PATIENCE
from nestling.commands import load_weights
from nestling.data import load, read_inputs
from nestling.data.formats.cifar_pickle import read_cifar_pickle
from nestling.errors import NestlingError
from nestling.report import text_table

GREY = {"shape": (1, 5, 6), "mean": [0.0], "std": [1.0]}


def refusal(read, *args, **options):
    """The one line with which a file is refused, in time."""
    caught = []

    def attempt():
        try:
            read(*args, **options)
        except Exception as error:
            caught.append(error)

    thread = Thread(target=attempt, daemon=True)  # which a test that fails leaves behind
    thread.start()
    thread.join(PATIENCE)
    assert not thread.is_alive(), "it waits"
    (error,) = caught
    assert isinstance(error, NestlingError), repr(error)
    assert str(error).isprintable()
    return str(error)


def blank_png(side):
    """A PNG of black pixels, far smaller than they are."""

    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    rows = zlib.compressobj(9)
    content = b"".join(rows.compress(bytes(1 + side)) for _ in range(side)) + rows.flush()
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", content) + chunk(b"IEND", b"")


def image_folder(folder, content, name="9.png"):
    """A class folder with a good image, and one of that content."""
    write_image(folder / "a" / "0.png", some_bytes(5, 6))
    (folder / "a" / name).write_bytes(content)
    return folder


POSTSCRIPT = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 6 5\n%%EndComments\nshowpage\n%%EOF\n"


def test_no_other_program_reads_an_image(tmp_path, monkeypatch):
    """Pillow gives an EPS, whatever its name, to Ghostscript."""
    monkeypatch.setattr("subprocess.check_call", lambda *_, **__: pytest.fail("a program was started"))
    monkeypatch.setattr("subprocess.Popen", lambda *_, **__: pytest.fail("a program was started"))
    image_folder(tmp_path, POSTSCRIPT)
    assert "9.png is not an image" in refusal(load, tmp_path)
    assert "9.png is not an image" in refusal(read_inputs, tmp_path / "a" / "9.png", **GREY)


def test_an_image_of_far_too_many_pixels(tmp_path, recwarn):
    image_folder(tmp_path, blank_png(13_000))
    for read, *given in ((load, tmp_path), (read_inputs, tmp_path / "a" / "9.png"), (read_inputs, tmp_path)):
        options = GREY | {"resize": True} if read is read_inputs else {"resize": 8}
        assert "13000 x 13000 pixels, too many" in refusal(read, *given, **options)
    assert not recwarn.list


def test_many_images_that_are_large_together(tmp_path):
    content = blank_png(9000)
    (tmp_path / "a").mkdir()
    for number in range(40):
        (tmp_path / "a" / f"{number}.png").write_bytes(content)
    line = refusal(load, tmp_path)
    assert "would take 3,240,000,000 bytes of memory" in line


def header(shape, dtype="<f4"):
    from io import BytesIO

    out = BytesIO()
    npy.write_array_header_1_0(out, {"descr": dtype, "fortran_order": False, "shape": shape})
    return out.getvalue()


def write_npz(path, **members):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name.replace("_npy", ".npy"), content)
    return path


def test_an_npz_that_expands_to_gigabytes(tmp_path):
    rows = 22 * 10**8 // 4096
    with (
        zipfile.ZipFile(tmp_path / "x.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("x.npy", "w", force_zip64=True) as file,
    ):
        file.write(header((rows, 4096), "|u1"))
        for _ in range(0, rows, 2**13):
            file.write(bytes(4096 * 2**13))
    for read, options in ((load, {}), (read_inputs, GREY)):
        assert "of memory for" in refusal(read, tmp_path / "x.npz", **options)


@pytest.mark.parametrize("shape", [(10**12, 28, 28), (10**12,), (10**30, 2), (-5, 4), (2**62, 2**62)])
def test_shapes_that_no_file_holds(tmp_path, shape):
    write_npz(tmp_path / "x.npz", x_npy=header(shape), y_npy=header((3,), "<i8") + bytes(24))
    (tmp_path / "x.npy").write_bytes(header(shape) + bytes(16))
    assert "'x'" in refusal(load, tmp_path / "x.npz")
    assert "'x'" in refusal(read_inputs, tmp_path / "x.npz", **GREY)
    assert "x.npy" in refusal(read_inputs, tmp_path / "x.npy", **GREY)


@pytest.mark.parametrize("content", [b"hello", b"", b"\x93NUMPY\x01\x00v\x00", header((2,), "|O") + b"x" * 16])
def test_members_that_are_no_arrays(tmp_path, content):
    write_npz(tmp_path / "x.npz", x_npy=content, y=content)
    assert "the array 'x'" in refusal(load, tmp_path / "x.npz")
    assert "the array 'x'" in refusal(read_inputs, tmp_path / "x.npz", **GREY)


@pytest.mark.parametrize("label", [10**30, -(10**30), 2**64 - 1, 1e300])
def test_labels_beyond_all_numbers(tmp_path, label, recwarn):
    labels = np.array([label] + [0] * 9, dtype=np.uint64 if label == 2**64 - 1 else None)
    np.savez(tmp_path / "x.npz", x=some_bytes(10, 4), y=labels, allow_pickle=True)
    refusal(load, tmp_path / "x.npz")
    assert not recwarn.list
    if isinstance(label, int):
        batch = {"data": some_bytes(2, 3072), "labels": [0, label]}
        refusal(read_cifar_pickle, pickle.dumps(batch, 2), "a batch")


@pytest.mark.parametrize("x", [["a"] * 4, [1j] * 4, [np.nan] * 4, [1e300] * 4, []], ids=str)
def test_inputs_that_are_no_numbers(tmp_path, x, recwarn):
    np.save(tmp_path / "x.npy", np.array([x]))
    assert "x.npy" in refusal(read_inputs, tmp_path / "x.npy", shape=(4,), mean=[0.0] * 4, std=[1.0] * 4)
    assert not recwarn.list


def test_numbers_of_another_byte_order_are_read(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(4, dtype=">f8")[None])
    _, x = read_inputs(tmp_path / "x.npy", shape=(4,), mean=[0.0] * 4, std=[1.0] * 4)
    assert x.tolist() == [[0, 1, 2, 3]]


@pytest.mark.parametrize("kind", ["a pipe", "a device", "nothing"])
def test_what_is_no_plain_file_is_not_waited_for(tmp_path, kind):
    def place(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        if kind == "a pipe":
            os.mkfifo(path)
        else:
            path.symlink_to("/dev/zero" if kind == "a device" else tmp_path / "gone")
        return path

    write_image(tmp_path / "pets" / "a" / "0.png", some_bytes(5, 6))
    place(tmp_path / "pets" / "a" / "1.png")
    assert "1.png" in refusal(load, tmp_path / "pets")
    assert "1.png" in refusal(read_inputs, tmp_path / "pets", **GREY)
    for name in ("x.npy", "x.npz", "x.png"):
        assert name in refusal(read_inputs, place(tmp_path / name), **GREY)
    assert "x.npz" in refusal(load, tmp_path / "x.npz")
    assert "w.safetensors" in refusal(load_weights, None, place(tmp_path / "w.safetensors"))


def test_names_of_a_stranger_do_not_reach_the_terminal(tmp_path):
    name = "cat\x1b]0;owned\x07\x1b[2J\u202e"
    for split, label in (("train", "dog"), ("train", name), ("test", name + "s")):
        write_image(tmp_path / split / label / "0.png", some_bytes(5, 6))
    assert r"cat\x1b]0;owned\x07\x1b[2J\u202es" in refusal(load, tmp_path)
    (line,) = text_table(["class"], [[name]]).splitlines()[2:]
    assert line == r"cat\x1b]0;owned\x07\x1b[2J\u202e"


@pytest.mark.parametrize(
    "wrong", [{"seed": -1}, {"seed": "a"}, {"hold_out": 0}, {"hold_out": 3}, {"hold_out": ["a"]}, {"hold_out": "1"}]
)
def test_arguments_that_a_run_folder_may_hold(wrong):
    with pytest.raises(NestlingError, match=next(iter(wrong))):
        load("digits", **wrong)


def test_an_image_is_still_read(tmp_path):
    """What the limits are not for: a large photograph, and a set that is well compressed."""
    (tmp_path / "x.png").write_bytes(blank_png(6000))
    assert read_inputs(tmp_path / "x.png", **GREY, resize=True)[1].shape == (1, 1, 5, 6)
    Image.fromarray(some_bytes(5, 6)).save(tmp_path / "y.gif")
    assert read_inputs(tmp_path / "y.gif", **GREY)[1].shape == (1, 1, 5, 6)
    np.savez_compressed(tmp_path / "x.npz", x=np.zeros((1000, 100, 100), np.uint8), y=np.arange(1000) % 2)
    assert len(load(tmp_path / "x.npz").train) == 720
