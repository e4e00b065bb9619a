"""The trainings of the papers' sizes take one step on small files of the official layouts."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import nestling as nl

sys.path.append(str(Path(__file__).parents[2] / "experiments"))
sys.path.append(str(Path(__file__).parents[1] / "data"))
import full_size
from data_files import cifar_records, png, some_bytes

NUMBER = 4
"""Images of a part, or of a class."""
WHOLE = ("bn3_vgg11_cifar10",)
"""Trained at its full size; the others have a quarter of the channels here, for the time it takes."""


def write_cifar(folder, num_classes):
    folder.mkdir()
    names = ["train", "test"] if num_classes == 100 else [*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"]
    for name in names:
        (folder / f"{name}.bin").write_bytes(2 * cifar_records(NUMBER, num_classes)[0])  # two images per class


def write_tiny_imagenet(folder):
    """Two classes, as the archive unpacks."""
    classes = ("n01443537", "n01629819")
    for name in classes:
        images = folder / "train" / name / "images"
        images.mkdir(parents=True)
        for number in range(NUMBER):
            (images / f"{name}_{number}.JPEG").write_bytes(png(some_bytes(64, 64, 3, seed=number), "JPEG"))
    (folder / "wnids.txt").write_text("\n".join(classes))
    (folder / "val" / "images").mkdir(parents=True)
    lines = []
    for number in range(NUMBER):
        (folder / "val" / "images" / f"val_{number}.JPEG").write_bytes(png(some_bytes(64, 64, 3, seed=number), "JPEG"))
        lines.append(f"val_{number}.JPEG\t{classes[number % 2]}\t0\t0\t62\t62")
    (folder / "val" / "val_annotations.txt").write_text("\n".join(lines))


def write_imagenet(folder):
    for part in ("train", "val"):
        for name in ("n01440764", "n01443537"):
            (folder / part / name).mkdir(parents=True)
            for number in range(NUMBER):
                picture = png(some_bytes(80, 60, 3, seed=number), "JPEG")
                (folder / part / name / f"{name}_{number}.JPEG").write_bytes(picture)


def write_lidc(folder):
    folder.mkdir()
    masks = (some_bytes(6, 4, 128, 128, seed=1) > 200).astype(np.uint8)
    ids = np.stack([np.arange(6), np.zeros(6), np.arange(6)], 1).astype(np.int16)
    np.savez(folder / "lidc.npz", images=some_bytes(6, 128, 128), masks=masks, ids=ids)


@pytest.fixture
def small_data(tmp_path, monkeypatch):
    """Loads any of these sets with a few images."""
    write_cifar(tmp_path / "cifar10", 10)
    write_cifar(tmp_path / "cifar100", 100)
    write_tiny_imagenet(tmp_path / "tiny_imagenet")
    write_imagenet(tmp_path / "imagenet")
    write_lidc(tmp_path / "lidc")
    load = nl.data.load

    def load_small(name, **options):
        if name == "imagenet":
            return load(tmp_path / name, validation=2, **options | {"resize": 64})
        return load(name, root=tmp_path, verify=False, download=False, validation=2, **options)

    monkeypatch.setattr(nl.data, "load", load_small)


@pytest.mark.parametrize("name", full_size.TRAININGS)
def test_one_step(name, small_data):
    training = full_size.TRAININGS[name]()
    if name not in WHOLE:
        training = replace(training, options=training.options | {"width": 0.25})
    data = training.load()
    train = data.split("train")
    data = replace(data, train=train.drawn(2))
    quick = {"epochs": 1, "batch_size": 2, "cuts": (1.0,), "samples": 1, "recalibration_batches": 1}
    if training.pruning is not None:
        own = {key: value.but(**quick) for key, value in training.pruning.items() if isinstance(value, nl.Recipe)}
        training = replace(training, pruning=training.pruning | own)
        assert training.run(data, None, **quick).after.params > 0
        return
    run = training.run(data, None, **quick)
    assert [line["epoch"] for line in run.log] == [1]
    assert run.log[0]["loss"] > 0


def test_the_papers_sizes():
    """A few figures of the papers, by hand."""
    vgg = full_size.bn3_vgg11_cifar10()
    assert (vgg.recipe.epochs, vgg.recipe.milestones, vgg.options) == (600, (0.25, 0.5, 0.75), {"width": 1.5})
    convs = [m for m in nl.models.VGG11(width=1.5).modules() if hasattr(m, "out_channels")]
    assert [m.out_channels for m in convs] == [96, 192, 384, 384, 768, 768, 768, 768]
    assert full_size.bn3_unet_lidc().nesting["num_always"] == 6
    assert full_size.fn3_paths_cifar10().recipe.milestones == (0.5, 0.75)
