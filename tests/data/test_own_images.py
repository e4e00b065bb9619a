"""A user's own images: augmented as asked, resized, grey and colour, and among files that are no images."""

import json
import shutil

import numpy as np
import pytest
import torch
from data_files import some_bytes, write_image
from PIL import Image

import nestling as nl
from nestling import commands
from nestling.data import load, read_inputs
from nestling.errors import ArgumentError, NestlingError, RangeError, RunError
from nestling.network import Nesting
from nestling.training import Recipe

FEW = Nesting(num_blocks=4, num_always=1, weights="plain")
QUICK = Recipe(epochs=1, batch_size=16, samples=1, cuts=(0.5, 1.0))


@pytest.fixture
def pets(tmp_path):
    """Images of two classes, of sizes that differ, grey and colour, with the files that other programs leave behind."""
    folder = tmp_path / "pets"
    for number in range(60):
        height, width = 8 + number % 5, 12 - number % 7
        shape = (height, width) if number % 3 else (height, width, 3)
        write_image(folder / ("cat", "dog")[number % 2] / f"{number}.png", some_bytes(*shape, seed=number))
    (folder / "cat" / "notes.txt").write_text("fluffy")
    (folder / "cat" / ".DS_Store").write_bytes(b"\0\0\0\1Bud1")
    (folder / "cat" / "._0.png").write_bytes(b"\0\5\26\7")
    (folder / "dog" / "Thumbs.db").write_bytes(b"\xd0\xcf")
    (folder / "LICENSE").write_text("free")
    write_image(folder / "cover.png", some_bytes(8, 8))
    return folder


def saved_data(run):
    return json.loads((run / "recipe.json").read_text())["data"]


def test_images_of_sizes_that_differ_are_resized(pets):
    with pytest.raises(NestlingError, match="--resize"):
        load(pets)
    assert load(pets, resize=9).input_shape == (3, 9, 9)
    data = load(pets, resize=(6, 10))
    assert data.input_shape == (3, 6, 10)
    assert sum(map(len, data.splits.values())) == 60


def test_an_image_is_resized_as_to_predict(tmp_path):
    for number in range(8):
        write_image(tmp_path / "a" / f"{number}.png", np.full((8, 12), 30 * number, np.uint8))
    write_image(tmp_path / "a" / "x.png", some_bytes(16, 9, seed=1))
    data = load(tmp_path, resize=(8, 8), validation=0)
    _, (image,) = read_inputs(
        tmp_path / "a" / "x.png", shape=data.input_shape, mean=data.mean, std=data.std, resize=True
    )
    seen = torch.cat([x for name in ("train", "test") for x, _ in data.batches(name, 9)])
    assert (seen - image).flatten(1).abs().amax(1).min() < 1e-5


def test_other_files_are_skipped_and_counted(pets):
    data = load(pets, resize=8)
    names = {name.removeprefix(f"{pets}/") for name in data.skipped}
    assert names == {"cat/notes.txt", "cat/.DS_Store", "cat/._0.png", "dog/Thumbs.db", "LICENSE", "cover.png"}
    assert data.classes == ("cat", "dog")


@pytest.mark.parametrize("suffix", ["png", "pgm", "tif"])
def test_grey_images_of_16_bits_keep_their_scale(tmp_path, suffix):
    levels = np.linspace(0, 65535, 16, dtype=np.uint16).reshape(4, 4)
    for number in range(5):
        (tmp_path / "a").mkdir(exist_ok=True)
        Image.fromarray(levels).save(tmp_path / "a" / f"{number}.{suffix}")
    data = load(tmp_path, validation=0)
    assert data.input_shape == (1, 4, 4)
    assert data.train.inputs[0].flatten().tolist() == (levels >> 8).flatten().tolist()


def test_augmentation_is_the_user_s_choice(pets):
    assert load(pets, resize=8).augment == "none"
    assert load(pets, resize=8, augment="crop_flip").augment == "crop_flip"
    assert load("digits", augment="flip").augment == "flip"
    with pytest.raises(ArgumentError, match=r"augment: got 'rotate', but it must be one of none, flip"):
        load(pets, resize=8, augment="rotate")


def test_pixels_without_a_scale_are_refused(tmp_path):
    (tmp_path / "a").mkdir()
    Image.fromarray(np.ones((4, 4), np.float32)).save(tmp_path / "a" / "0.tif")
    with pytest.raises(NestlingError, match="pixels of 32 bits, whose scale no file tells"):
        load(tmp_path)


@pytest.mark.parametrize("size", [0, -1, (3,) * 3, 2.5, "64", True, (10**6, 10**6), ()])
def test_no_size_to_resize_to(pets, size):
    with pytest.raises(RangeError, match="resize"):
        load(pets, resize=size)


def test_only_images_of_a_folder_are_resized(tmp_path):
    np.savez(tmp_path / "mine.npz", x=some_bytes(20, 4, 4), y=np.arange(20) % 2)
    for source in ("digits", tmp_path / "mine.npz"):
        with pytest.raises(ArgumentError, match="a folder of images"):
            load(source, resize=8)


def test_a_run_on_own_images_is_evaluated_searched_and_predicts_as_it_was_trained(pets, tmp_path, capsys):
    run = tmp_path / "run"
    options = {"augment": "flip", "resize": (8,)}
    commands.train(str(pets), "mlp", run, FEW, QUICK, model_options=["hidden=[16]"], **options)
    assert "pets: 6 other files skipped, such as " in capsys.readouterr().out
    assert {key: saved_data(run)["loaded_with"][key] for key in ("augment", "resize")} == {
        "augment": "flip",
        "resize": [8, 8],
    }
    others = shutil.copytree(pets, tmp_path / "others")
    assert "AUROC" in commands.evaluate(run, (0.3, 1.0), samples=0, ood=str(others))
    commands.search(run, "macs")
    answer = commands.predict(run, pets, 1.0, 0, 0.8)
    assert len(answer.splitlines()) == 2 + 61


def test_a_run_says_if_it_was_augmented_otherwise(pets, tmp_path):
    words = (str(pets), "mlp", tmp_path / "run", FEW, QUICK)
    commands.train(*words, model_options=["hidden=[16]"], resize=(8,), augment="flip")
    with pytest.raises(RunError, match=r"data\.loaded_with\.augment"):
        commands.train(*words, model_options=["hidden=[16]"], resize=(8,), augment="crop")


def darker(images):
    return images // 2


def test_a_function_of_the_user_s_augments_a_run(pets, tmp_path):
    data = load(pets, resize=8, augment=darker)
    nested = nl.nest(nl.models.build("mlp", hidden=[8], in_features=192, num_classes=2), torch.zeros(2, 3, 8, 8))
    (augmented, plain) = (next(iter(data.batches("train", 5, augment=a)))[0] for a in (data.augment, "none"))
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (data.mean, data.std))
    pixels, wanted = ((255 * (x * std + mean)).round() for x in (augmented, plain))
    assert torch.equal(pixels, wanted // 2)
    nl.train(nested, data, QUICK, out=tmp_path / "run", quiet=True)
    about = saved_data(tmp_path / "run")
    assert about["augment"].endswith("test_own_images:darker")
    with pytest.raises(RunError, match=r"with a function, of yours.*nl\.evaluate"):
        commands.evaluate(tmp_path / "run", (1.0,))
