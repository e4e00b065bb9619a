"""Data sets by name, from small files in the official layouts."""

import pickle
import zipfile
from dataclasses import replace

import numpy as np
import pytest
import torch
from data_files import (
    cifar_records,
    png,
    python2_pickle,
    python3_pickle,
    some_bytes,
    write_idx_set,
    write_tar,
)
from scipy.io import savemat
from torch.nn import functional

from nestling.data import DamagedError, DataError, MissingError, found, load, names, readers
from nestling.data.checksums import MD5
from nestling.data.sources import SOURCES


@pytest.fixture
def open_load(tmp_path):
    """Load from the temporary folder, whatever the checksums, never from a network."""
    return lambda name, **options: load(name, root=tmp_path, verify=False, download=False, validation=0, **options)


def test_names():
    images = "digits cluttered_digits mnist fashion_mnist kmnist cifar10 cifar100 svhn lidc tiny_imagenet"
    assert names() == (*images.split(), "sst2", "ag_news")


@pytest.mark.parametrize("gz", [True, False])
@pytest.mark.parametrize("name", ["mnist", "fashion_mnist", "kmnist"])
def test_idx_sets(tmp_path, open_load, name, gz):
    written = write_idx_set(tmp_path / name, gz=gz)
    data = open_load(name)
    for part, (images, labels) in written.items():
        np.testing.assert_array_equal(data.split(part).inputs.numpy(), images[:, None])
        np.testing.assert_array_equal(data.split(part).targets.numpy(), labels)
    assert (data.num_outputs, len(data.classes), data.augment, data.validation) == (10, 10, "none", None)


def test_a_part_alone_needs_only_its_files(tmp_path, open_load):
    write_idx_set(tmp_path / "kmnist", {"test": 20})
    data = open_load("kmnist", splits=("test",))
    assert list(data.splits) == ["test"]
    for splits in [("train",), ("validation",), ("train", "test")]:
        with pytest.raises(MissingError, match="train part of kmnist"):
            open_load("kmnist", splits=splits)


def test_mixed_gz_and_plain(tmp_path, open_load):
    write_idx_set(tmp_path / "mnist", gz=True)
    write_idx_set(tmp_path / "mnist", gz=False)
    (tmp_path / "mnist" / "train-images-idx3-ubyte.gz").unlink()
    (tmp_path / "mnist" / "train-labels-idx1-ubyte").unlink()
    assert len(open_load("mnist").train) == 40


def cifar_files(num_classes):
    parts = {"train": [f"data_batch_{k}" for k in range(1, 6)], "test": ["test_batch"]}
    files = parts if num_classes == 10 else {"train": ["train"], "test": ["test"]}
    return {
        part: {name: cifar_records(num_classes, num_classes, seed=len(part) + place) for place, name in enumerate(some)}
        for part, some in files.items()
    }


def write_cifar(folder, num_classes, layout, files):
    top = {10: ("cifar-10-batches-bin", "cifar-10-batches-py"), 100: ("cifar-100-binary", "cifar-100-python")}
    kind, where = layout.split()
    members = {}
    for some in files.values():
        for name, (content, images, labels) in some.items():
            if kind == "binary":
                members[f"{top[num_classes][0]}/{name}.bin"] = content
            elif kind == "python2":
                key = "labels" if num_classes == 10 else "fine_labels"
                members[f"{top[num_classes][1]}/{name}"] = python2_pickle(images, labels, key)
            else:
                key = b"labels" if num_classes == 10 else b"fine_labels"
                members[f"{top[num_classes][1]}/{name}"] = python3_pickle(images, labels, int(kind[-1]), key)
    if where == "tar":
        write_tar(folder / f"cifar-{num_classes}-{'binary' if kind == 'binary' else 'python'}.tar.gz", members)
        return
    for name, content in members.items():
        path = folder / (name if where == "folder" else name.split("/")[1])
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


LAYOUTS = [
    "binary loose",
    "binary folder",
    "binary tar",
    "python2 tar",
    "python2 folder",
    "pickle4 loose",
    "pickle5 tar",
]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("num_classes", [10, 100])
def test_cifar(tmp_path, open_load, num_classes, layout):
    files = cifar_files(num_classes)
    write_cifar(tmp_path / f"cifar{num_classes}", num_classes, layout, files)
    data = open_load(f"cifar{num_classes}")
    for part, some in files.items():
        np.testing.assert_array_equal(data.split(part).inputs.numpy(), np.concatenate([f[1] for f in some.values()]))
        np.testing.assert_array_equal(data.split(part).targets.numpy(), np.concatenate([f[2] for f in some.values()]))
    assert (data.num_outputs, len(set(data.classes)), data.augment) == (num_classes, num_classes, "crop_flip")


@pytest.mark.parametrize("fault", ["cut", "label", "empty"])
def test_damaged_cifar(tmp_path, open_load, fault):
    write_cifar(tmp_path / "cifar10", 10, "binary loose", cifar_files(10))
    path = tmp_path / "cifar10" / "data_batch_3.bin"
    content = path.read_bytes()
    path.write_bytes({"cut": content[:-1], "label": b"\x0a" + content[1:], "empty": b""}[fault])
    with pytest.raises(DamagedError, match="data_batch"):
        open_load("cifar10")


def test_archive_without_its_members(tmp_path, open_load):
    write_tar(tmp_path / "cifar10" / "cifar-10-binary.tar.gz", {"other/data_batch_1.bin": b"abc"})
    with pytest.raises(DamagedError, match=r"cifar-10-batches-bin/data_batch_1\.bin"):
        open_load("cifar10")


def test_archive_is_never_unpacked(tmp_path, open_load):
    content = cifar_records(10, 10)[0]
    members = {f"cifar-10-batches-bin/data_batch_{k}.bin": content for k in range(1, 6)}
    members |= {"cifar-10-batches-bin/test_batch.bin": content}
    evil = {"../evil": b"x", str(tmp_path / "evil"): b"x", "cifar-10-batches-bin/../../evil": b"x"}
    write_tar(tmp_path / "cifar10" / "cifar-10-binary.tar.gz", evil | members)
    assert len(open_load("cifar10").train) == 50
    assert [path.name for path in tmp_path.rglob("*")] == ["cifar10", "cifar-10-binary.tar.gz"]


@pytest.mark.parametrize("length", [0, 10, 200, 100000])
def test_archive_cut_short(tmp_path, open_load, length):
    write_cifar(tmp_path / "cifar10", 10, "binary tar", cifar_files(10))
    path = tmp_path / "cifar10" / "cifar-10-binary.tar.gz"
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(DamagedError, match=r"cifar-10-binary\.tar\.gz"):
        open_load("cifar10")


def test_hostile_batch_in_an_archive(tmp_path, open_load):
    hostile = b"cos\nsystem\n(S'touch evil'\ntR."
    members = {f"cifar-100-python/{part}": hostile for part in ("train", "test")}
    write_tar(tmp_path / "cifar100" / "cifar-100-python.tar.gz", members)
    with pytest.raises(DamagedError, match=r"os\.system"):
        open_load("cifar100")


@pytest.mark.parametrize("kind", ["mat", "npz"])
def test_svhn(tmp_path, open_load, kind):
    folder = tmp_path / "svhn"
    folder.mkdir()
    written = {}
    for place, part in enumerate(("train", "test")):
        images, labels = some_bytes(20, 32, 32, 3, seed=place), np.arange(20) % 10
        written[part] = (images, labels)
        if kind == "mat":
            y = np.where(labels == 0, 10, labels).astype(np.uint8)[:, None]
            savemat(folder / f"{part}_32x32.mat", {"X": images.transpose(1, 2, 3, 0), "y": y})
        else:
            np.savez(folder / f"{part}_32x32.npz", X=images, y=labels.astype(np.uint8))
    data = open_load("svhn")
    for part, (images, labels) in written.items():
        np.testing.assert_array_equal(data.split(part).inputs.numpy(), images.transpose(0, 3, 1, 2))
        np.testing.assert_array_equal(data.split(part).targets.numpy(), labels)
    assert data.augment == "crop"


@pytest.mark.parametrize("content", [b"", b"not matlab at all", b"MATLAB 5.0 MAT-file" + bytes(200)])
def test_damaged_mat(tmp_path, open_load, content):
    (tmp_path / "svhn").mkdir()
    (tmp_path / "svhn" / "test_32x32.mat").write_bytes(content)
    with pytest.raises(DamagedError, match=r"test_32x32\.mat") as caught:
        open_load("svhn", splits=("test",))
    assert "\n" not in str(caught.value)


def write_lidc(folder, **changes):
    folder.mkdir()
    patients = np.repeat(np.arange(12), [1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 5, 6])
    number = len(patients)
    masks = (some_bytes(number, 4, 16, 16) > 200).astype(np.uint8)
    ids = np.stack([patients, np.zeros(number), np.arange(number)], axis=1).astype(np.int16)
    arrays = {"images": some_bytes(number, 16, 16), "masks": masks, "ids": ids} | changes
    np.savez_compressed(folder / "lidc.npz", **{key: array for key, array in arrays.items() if array is not None})
    return arrays


def test_lidc_is_split_by_patient(tmp_path):
    arrays = write_lidc(tmp_path / "lidc")
    data = load("lidc", root=tmp_path)
    patient = {image.tobytes(): int(row[0]) for image, row in zip(arrays["images"], arrays["ids"], strict=True)}
    homes = [{patient[image.numpy().tobytes()] for image in split.inputs} for split in data.splits.values()]
    assert sum(map(len, homes)) == 12 == len(set().union(*homes))
    assert sum(len(split) for split in data.splits.values()) == len(arrays["images"])
    assert list(data.splits) == ["train", "validation", "test"]
    assert (data.task, data.num_outputs, data.input_shape) == ("segmentation", 2, (1, 16, 16))
    assert data.train.targets.shape[1:] == (4, 16, 16)
    (batch,) = data.batches("train", 1000, grader="random", augment=data.augment)
    assert batch[1].shape == (len(data.train), 16, 16)


@pytest.mark.parametrize(
    "changes",
    [{"masks": None}, {"images": np.zeros((3, 16, 16), np.uint8)}, {"masks": np.full((42, 4, 16, 16), 2, np.uint8)}],
)
def test_damaged_lidc(tmp_path, changes):
    write_lidc(tmp_path / "lidc", **changes)
    with pytest.raises(DamagedError, match=r"lidc\.npz"):
        load("lidc", root=tmp_path)


@pytest.mark.parametrize("layout", ["zip", "folder", "inner folder"])
def test_tiny_imagenet(tmp_path, open_load, layout):
    wnids = ["n02", "n01", "n03"]
    files = {"tiny-imagenet-200/wnids.txt": "\n".join(wnids).encode()}
    pixels = {}
    for wnid in wnids:
        for place in range(2):
            name = f"tiny-imagenet-200/train/{wnid}/images/{wnid}_{place}.JPEG"
            image = np.full((64, 64, 3), 40 * len(pixels), np.uint8)
            pixels[name], files[name] = image, png(image, "JPEG")
    rows = []
    for place, wnid in enumerate(["n03", "n01"]):
        files[f"tiny-imagenet-200/val/images/val_{place}.JPEG"] = png(np.full((64, 64), 99, np.uint8), "JPEG")
        rows.append(f"val_{place}.JPEG\t{wnid}\t0\t0\t63\t63\n")
    files["tiny-imagenet-200/val/val_annotations.txt"] = "".join(rows).encode()
    folder = tmp_path / "tiny_imagenet"
    folder.mkdir()
    if layout == "zip":
        with zipfile.ZipFile(folder / "tiny-imagenet-200.zip", "w") as archive:
            for name, content in files.items():
                archive.writestr(name, content)
    else:
        for name, content in files.items():
            path = folder / (name if layout == "inner folder" else name.removeprefix("tiny-imagenet-200/"))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    data = open_load("tiny_imagenet")
    assert data.classes == ("n01", "n02", "n03")
    assert data.train.targets.tolist() == [0, 0, 1, 1, 2, 2]
    assert data.test.targets.tolist() == [2, 0]
    assert data.input_shape == (3, 64, 64)
    in_order = [pixels[name] for name in sorted(pixels)]
    np.testing.assert_allclose(data.train.inputs.numpy(), np.stack(in_order).transpose(0, 3, 1, 2), atol=3)


def test_checksums_are_compared(tmp_path):
    write_idx_set(tmp_path / "mnist")
    with pytest.raises(DamagedError, match="f68b3c2dcbeaaa9fbdd348bbdeb94873") as caught:
        load("mnist", root=tmp_path)
    assert "train-images-idx3-ubyte.gz" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_every_file_that_is_fetched_has_a_checksum():
    for source in SOURCES.values():
        for files in source.downloads.values():
            assert all(len(MD5[source.name][file]) == 32 for file in files)


def test_images_and_labels_of_different_number(tmp_path, open_load):
    write_idx_set(tmp_path / "mnist", {"test": 20})
    labels = (tmp_path / "mnist" / "t10k-labels-idx1-ubyte.gz").read_bytes()
    write_idx_set(tmp_path / "mnist", {"test": 30})
    (tmp_path / "mnist" / "t10k-labels-idx1-ubyte.gz").write_bytes(labels)
    with pytest.raises(DamagedError, match="30 images and 20 labels"):
        open_load("mnist", splits=("test",))


def test_found(tmp_path):
    write_idx_set(tmp_path / "kmnist", {"test": 20})
    write_lidc(tmp_path / "lidc")
    records = {record.name: record for record in found(tmp_path)}
    assert list(records) == list(names())
    assert records["digits"].splits == ("train", "validation", "test")
    assert records["digits"].num_examples == 1797
    assert (records["kmnist"].splits, records["kmnist"].where) == (("test",), tmp_path / "kmnist")
    assert "train-images-idx3-ubyte.gz" in records["kmnist"].how
    assert (records["lidc"].num_examples, records["lidc"].how) == (42, "")
    assert records["cifar10"].splits == ()
    assert "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz" in records["cifar10"].how


def test_fingerprint_changes_with_a_byte_and_with_the_split(tmp_path, open_load):
    write_idx_set(tmp_path / "mnist", gz=False)
    first = open_load("mnist").fingerprint
    assert first == open_load("mnist").fingerprint
    assert len(first) == 64
    assert first != load("mnist", root=tmp_path, verify=False).fingerprint
    path = tmp_path / "mnist" / "t10k-images-idx3-ubyte"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert first != open_load("mnist").fingerprint


def test_fingerprint_knows_which_split_is_which():
    data = load("digits", splits=("test",))
    assert data.fingerprint != replace(data, train=data.test, test=None).fingerprint


def test_the_splits_of_digits_are_the_same_for_everyone():
    """Results on digits can be compared only as long as this holds."""
    assert load("digits").fingerprint.startswith("1988b387e9368369")


def test_digits_in_clutter_are_the_same_for_everyone():
    data = load("cluttered_digits")
    assert data.fingerprint.startswith("d3fe5e9fe63c85b7")
    assert data.input_shape == (1, 32, 32)


def test_digits_in_clutter_show_the_digit_that_their_label_says():
    """Somewhere in an image nearly all bright pixels of the digit, twice as large, are bright."""
    part, plain = readers.cluttered_digits([]), readers.digits([]).split
    kernels = (plain.inputs > 230).double().repeat_interleave(2, 2).repeat_interleave(2, 3)
    assert torch.equal(part.split.targets, plain.targets[part.groups])
    for number in range(0, len(part.split), 97):
        kernel = kernels[part.groups[number]][None]
        dark = (part.split.inputs[number] < 100).double()[None]
        assert float(functional.conv2d(dark, kernel).min() / kernel.sum()) < 0.02


def test_no_digit_in_clutter_is_in_two_splits():
    part, data = readers.cluttered_digits([]), load("cluttered_digits")
    digit = {image.numpy().tobytes(): int(own) for image, own in zip(part.split.inputs, part.groups, strict=True)}
    seen = [{digit[image.numpy().tobytes()] for image in split.inputs} for split in data.splits.values()]
    assert sum(map(len, seen)) == len(set.union(*seen)) == 1797


def test_strange_data_is_normalised_like_ones_own():
    data = load("digits")
    other = load("digits", hold_out=(1,)).normalised_like(data)
    assert (other.mean, other.std) == (data.mean, data.std)


def test_a_split_that_was_not_loaded():
    with pytest.raises(DataError, match="without a split 'train'; it has test"):
        load("digits", splits=("test",)).batches("train", 4)


def test_statistics_of_digits():
    data = load("digits")
    pixels = torch.cat([data.train.inputs, data.validation.inputs]).double() / 255
    assert data.mean == pytest.approx((float(pixels.mean()),))
    assert data.std == pytest.approx((float(pixels.std(correction=0)),))


def test_pickles_of_the_tests_are_the_real_thing(tmp_path):
    _, images, labels = cifar_records(10, 10)
    assert pickle.loads(python3_pickle(images, labels, 5))[b"labels"] == labels.tolist()
