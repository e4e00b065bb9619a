"""A user's own data: what is read, and the one line that each mistake gives."""

import numpy as np
import pytest
import torch
from data_files import some_bytes, write_image
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from nestling.data import DamagedError, DataError, MissingError, load
from nestling.errors import ArgumentError, NestlingError

LABELS = np.arange(40) % 4


def save(path, **arrays):
    np.savez(path, **arrays)
    return path


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((40, 6, 7), (1, 6, 7)),
        ((40, 3, 6, 7), (3, 6, 7)),
        ((40, 6, 7, 3), (3, 6, 7)),
        ((40, 6, 7, 1), (1, 6, 7)),
        ((40, 5), (5,)),
    ],
)
@pytest.mark.parametrize("names", [("x", "y"), ("images", "labels"), ("inputs", "targets")])
def test_npz_of_the_whole(tmp_path, shape, expected, names):
    x = some_bytes(*shape)
    data = load(save(tmp_path / "mine.npz", **{names[0]: x, names[1]: LABELS}))
    assert (data.name, data.task, data.num_outputs, data.input_shape) == ("mine", "classification", 4, expected)
    assert {name: len(split) for name, split in data.splits.items()} == {"train": 29, "validation": 3, "test": 8}
    channels_last = x.ndim == 4 and expected[0] == x.shape[3]
    known = {row.tobytes() for row in (x.transpose(0, 3, 1, 2) if channels_last else x).reshape(40, -1)}
    assert {row.numpy().tobytes() for split in data.splits.values() for row in split.inputs} == known


def test_npz_with_splits_of_its_own(tmp_path):
    arrays = {f"{key}_{part}": value for part in ("train", "val", "test") for key, value in parts(part).items()}
    data = load(str(save(tmp_path / "mine.npz", **arrays)))
    for part, split in (("train", data.train), ("val", data.validation), ("test", data.test)):
        np.testing.assert_array_equal(split.inputs.numpy(), parts(part)["x"])
    assert data.num_outputs == 4


def parts(name):
    number = {"train": 12, "val": 8, "test": 4}[name]
    return {"x": some_bytes(number, 3, 4, 4, seed=number), "y": np.arange(number, dtype=np.int32) % 4}


def test_npz_with_train_and_test_gets_a_validation_split(tmp_path):
    arrays = {f"{key}_{part}": value for part in ("train", "test") for key, value in parts(part).items()}
    data = load(save(tmp_path / "mine.npz", **arrays), validation=4)
    assert [len(split) for split in data.splits.values()] == [8, 4, 4]


def test_regression_per_feature_statistics(tmp_path):
    x = np.random.default_rng(0).normal(3, 2, (50, 4))
    x[:, 3] = 7
    data = load(save(tmp_path / "mine.npz", x=x, y=x[:, 0] * 2))
    assert (data.task, data.num_outputs, data.classes) == ("regression", 1, ())
    assert data.train.targets.shape == (36, 1)
    rows = torch.cat([data.train.inputs, data.validation.inputs]).double()
    assert data.mean == pytest.approx(rows.mean(0).tolist())
    assert data.std == pytest.approx([*rows[:, :3].std(0, correction=0).tolist(), 1.0])


@pytest.mark.parametrize("shape", [(20, 8, 8), (20, 3, 8, 8)])
def test_segmentation(tmp_path, shape):
    masks = some_bytes(*shape) > 100
    data = load(save(tmp_path / "mine.npz", images=some_bytes(20, 8, 8), masks=masks))
    assert (data.task, data.num_outputs) == ("segmentation", 2)
    assert data.train.targets.shape[1:] == (shape[1] if len(shape) == 4 else 1, 8, 8)
    assert data.train.targets.dtype == torch.uint8


NAN = np.array([[1.0, np.nan]] * 40)
BAD = {
    "objects": ({"x": np.array([{}, None] * 20, dtype=object), "y": LABELS}, "'x' has Python objects"),
    "unknown keys": ({"a": LABELS, "b": LABELS}, "has the arrays a, b"),
    "no arrays": ({}, "has the arrays none"),
    "a stray": ({"x": some_bytes(40, 5), "y": LABELS, "x_test": some_bytes(4, 5)}, "x_test without"),
    "whole and split": (
        {"x": LABELS[:, None], "y": LABELS, "x_test": LABELS[:, None], "y_test": LABELS},
        "Save inputs",
    ),
    "mismatched": ({"x": some_bytes(39, 5), "y": LABELS}, "39 inputs and 40 targets"),
    "nan": ({"x": NAN, "y": LABELS}, "inputs have 40 entries of 80 that are NaN"),
    "nan targets": ({"x": some_bytes(40, 5), "y": NAN}, "targets have 40 entries"),
    "text": ({"x": np.array(["a"] * 40), "y": LABELS}, "must be numbers"),
    "negative": ({"x": some_bytes(40, 5), "y": LABELS - 1}, "labels go down to -1"),
    "identifiers": ({"x": some_bytes(40, 5), "y": LABELS + 10**6}, "Number classes from 0"),
    "masks of 0 and 255": ({"images": some_bytes(40, 5, 5), "masks": 255 * some_bytes(40, 5, 5).clip(0, 1)}, "0, 255"),
    "one-hot": ({"x": some_bytes(40, 5), "y": np.eye(4, dtype=int)[LABELS]}, r"int64 of shape \(40, 4\)"),
    "empty": ({"x": np.zeros((0, 5)), "y": np.zeros(0, int)}, "no examples"),
    "flat": ({"x": np.zeros(40), "y": LABELS}, r"shape \(40,\)"),
    "unlike": (
        {"x_train": some_bytes(40, 5), "y_train": LABELS, "x_test": some_bytes(40, 6), "y_test": LABELS},
        "differ",
    ),
}


@pytest.mark.parametrize("fault", BAD)
def test_a_bad_npz_is_one_clear_line(tmp_path, fault):
    arrays, message = BAD[fault]
    with pytest.raises(DataError, match=message) as caught:
        load(save(tmp_path / "mine.npz", **arrays))
    assert "\n" not in str(caught.value)
    assert "mine" in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 cut", b"\x93NUMPY\x01\x00v\x00", b"text"])
def test_a_file_that_is_no_npz(tmp_path, content):
    (tmp_path / "mine.npz").write_bytes(content)
    with pytest.raises(DamagedError, match=r"mine\.npz"):
        load(tmp_path / "mine.npz")


def test_an_npz_cut_short(tmp_path):
    path = save(tmp_path / "mine.npz", x=some_bytes(40, 50), y=LABELS)
    whole = path.read_bytes()
    for length in range(0, len(whole), 97):
        path.write_bytes(whole[:length])
        with pytest.raises(DamagedError):
            load(path)


def test_an_altered_npz(tmp_path):
    path = save(tmp_path / "mine.npz", x=some_bytes(40, 50), y=LABELS)
    content = bytearray(path.read_bytes())
    content[500] ^= 1
    path.write_bytes(content)
    with pytest.raises(DamagedError):
        load(path)


def write_folder(root, splits=("",), channels=None, size=(6, 5)):
    written = {}
    for split in splits:
        for label in ("cat", "dog"):
            for number in range(10):
                shape = size if channels is None else (*size, channels)
                name = f"{split}/{label}/{number}.png".lstrip("/")
                written[name] = some_bytes(*shape, seed=len(written))
                write_image(root / name, written[name])
    return written


@pytest.mark.parametrize("channels", [None, 3])
def test_image_folder(tmp_path, channels):
    written = write_folder(tmp_path / "pets", channels=channels)
    (tmp_path / "pets" / "notes.txt").write_text("not an image")
    (tmp_path / "pets" / "cat" / ".hidden.png").write_bytes(b"not an image")
    data = load(tmp_path / "pets")
    assert (data.name, data.classes, data.input_shape) == ("pets", ("cat", "dog"), (channels or 1, 6, 5))
    assert sum(len(split) for split in data.splits.values()) == 20
    label = {np.atleast_3d(image).transpose(2, 0, 1).tobytes(): name.split("/")[0] for name, image in written.items()}
    for split in data.splits.values():
        assert [data.classes[number] for number in split.targets] == [label[x.numpy().tobytes()] for x in split.inputs]


@pytest.mark.parametrize("validation", ["val", "validation"])
def test_image_folder_with_splits(tmp_path, validation):
    written = write_folder(tmp_path, ("train", validation, "test"))
    data = load(tmp_path)
    for folder, split in (("train", data.train), (validation, data.validation), ("test", data.test)):
        mine = [image for name, image in sorted(written.items()) if name.startswith(f"{folder}/")]
        np.testing.assert_array_equal(split.inputs.numpy()[:, 0], np.stack(mine))
        assert split.targets.tolist() == [0] * 10 + [1] * 10


def test_image_folder_without_validation(tmp_path):
    write_folder(tmp_path, ("train", "test"))
    assert [len(split) for split in load(tmp_path, validation=4).splits.values()] == [16, 4, 20]
    assert list(load(tmp_path, splits=("test",)).splits) == ["test"]


def test_grey_and_colour_together_are_colour(tmp_path):
    write_folder(tmp_path)
    grey = some_bytes(6, 5)
    write_image(tmp_path / "dog" / "colour.png", some_bytes(6, 5, 3))
    write_image(tmp_path / "cat" / "0.png", grey)
    assert load(tmp_path).input_shape == (3, 6, 5)


def test_bad_folders(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(MissingError, match="empty has no images"):
        load(tmp_path / "empty")
    write_image(tmp_path / "flat" / "1.png", some_bytes(4, 4))
    with pytest.raises(MissingError, match="none in a folder of its class"):
        load(tmp_path / "flat")
    write_folder(tmp_path / "unequal")
    write_image(tmp_path / "unequal" / "dog" / "x.png", some_bytes(6, 6))
    with pytest.raises(DataError, match=r"x\.png has 6 x 6 pixels, but cat/0\.png has 5 x 6.*--resize"):
        load(tmp_path / "unequal")
    write_folder(tmp_path / "broken")
    (tmp_path / "broken" / "dog" / "y.png").write_bytes(b"\x89PNG no")
    with pytest.raises(DamagedError, match=r"y\.png"):
        load(tmp_path / "broken")
    whole = (tmp_path / "broken" / "dog" / "1.png").read_bytes()
    (tmp_path / "broken" / "dog" / "y.png").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DamagedError, match=r"y\.png"):
        load(tmp_path / "broken")
    write_folder(tmp_path / "strange", ("train", "test"))
    write_image(tmp_path / "strange" / "test" / "cow" / "1.png", some_bytes(6, 5))
    with pytest.raises(DataError, match="cow"):
        load(tmp_path / "strange")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("minst", "Did you mean 'mnist'"),
        ("cifar-10", "Did you mean 'cifar10'"),
        ("FashionMNIST", "Did you mean 'fashion_mnist'"),
        ("qqqqqq", "The names are digits, cluttered_digits, mnist"),
        ("some/where", "does not exist"),
        ("mine.npz", "does not exist"),
        ("~nobody_here/mine.npz", "does not exist"),
    ],
)
def test_what_is_not_there(source, message):
    with pytest.raises(MissingError, match=message):
        load(source)


def test_a_file_of_another_kind(tmp_path):
    (tmp_path / "data.parquet").write_text("1,2")
    with pytest.raises(DataError, match=r"data\.parquet is none of these"):
        load(tmp_path / "data.parquet")


@pytest.mark.parametrize("splits", [(), ("train", "dev"), "test"])
def test_wrong_splits(splits):
    with pytest.raises(ArgumentError, match="splits"):
        load("digits", splits=splits)


class Squares(Dataset):
    def __init__(self, number):
        self.number = number

    def __len__(self):
        return self.number

    def __getitem__(self, place):
        return torch.full((3,), float(place)), place % 2


def test_datasets():
    data = load((Squares(20), Squares(4)), validation=0)
    assert (data.task, data.num_outputs, data.validation) == ("classification", 2, None)
    assert torch.equal(data.train.inputs[:, 0], torch.arange(20.0))
    assert len(load(Squares(20)).test) == 4
    assert [len(split) for split in load([Squares(9), Squares(8), Squares(7)]).splits.values()] == [9, 8, 7]


class Endless(IterableDataset):
    def __iter__(self):
        return iter([])


@pytest.mark.parametrize(
    "source", [(), (1, 2), [Squares(3)] * 4, Endless(), TensorDataset(torch.zeros(3, 2)), (Squares(0), Squares(0))]
)
def test_wrong_datasets(source):
    with pytest.raises(NestlingError) as caught:
        load(source)
    assert "\n" not in str(caught.value)
