"""What is to be predicted: read from images and arrays as training data is, and one line for anything else."""

import numpy as np
import pytest
import torch
from data_files import some_bytes
from PIL import Image

from nestling.data import DamagedError, DataError, MissingError, load
from nestling.data.inputs import normalised, read_inputs
from nestling.errors import NestlingError

GREY = {"shape": (1, 5, 6), "mean": [0.0], "std": [1.0]}
COLOUR = {"shape": (3, 5, 6), "mean": [0.0, 0.0, 0.0], "std": [1.0, 1.0, 1.0]}
VECTOR = {"shape": (4,), "mean": [0.0] * 4, "std": [1.0] * 4}


def write(path, pixels, mode=None):
    image = Image.fromarray(pixels)
    (image if mode is None else image.convert(mode)).save(path)
    return path


def refused(error, path, **options):
    """The one line with which inputs are refused."""
    with pytest.raises(error) as caught:
        read_inputs(path, **options)
    assert isinstance(caught.value, NestlingError)
    message = str(caught.value)
    assert str(path) in message
    assert "\n" not in message
    return message


def test_grey_image(tmp_path):
    pixels = some_bytes(5, 6)
    path = write(tmp_path / "a.png", pixels)
    names, x = read_inputs(path, **GREY)
    assert names == [str(path)]
    torch.testing.assert_close(x, torch.from_numpy(pixels)[None, None] / 255)


def test_colour_image_has_its_channels_first(tmp_path):
    pixels = some_bytes(5, 6, 3)
    _, x = read_inputs(write(tmp_path / "a.png", pixels), **COLOUR)
    torch.testing.assert_close(x, torch.from_numpy(pixels.transpose(2, 0, 1).copy())[None] / 255)


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "LA"])
def test_grey_network_reads_an_image_of_another_mode(tmp_path, mode):
    pixels = some_bytes(5, 6)
    _, x = read_inputs(write(tmp_path / "a.png", pixels, mode), **GREY)
    torch.testing.assert_close(x, torch.from_numpy(pixels)[None, None] / 255)


def test_colour_network_reads_a_grey_image(tmp_path):
    pixels = some_bytes(5, 6)
    _, x = read_inputs(write(tmp_path / "a.png", pixels), **COLOUR)
    torch.testing.assert_close(x, (torch.from_numpy(pixels) / 255).expand(1, 3, 5, 6))


def test_folder_is_read_in_the_order_of_its_names(tmp_path):
    pixels = some_bytes(3, 5, 6)
    (tmp_path / "b").mkdir()
    for name, own in zip(("b/z.png", "a.png", "b/k.png"), pixels, strict=True):
        write(tmp_path / name, own)
    (tmp_path / "notes.txt").write_text("not an image")
    names, x = read_inputs(tmp_path, **GREY)
    assert names == [str(tmp_path / name) for name in ("a.png", "b/k.png", "b/z.png")]
    torch.testing.assert_close(x[:, 0], torch.from_numpy(pixels[[1, 2, 0]]) / 255)


def test_path_may_be_text(tmp_path):
    path = write(tmp_path / "a.png", some_bytes(5, 6))
    assert read_inputs(str(path), **GREY)[0] == [str(path)]


def test_image_of_another_size_is_resized_only_when_asked(tmp_path):
    path = write(tmp_path / "a.png", np.full((10, 12), 51, np.uint8))
    message = refused(DataError, path, **GREY)
    assert "12 x 10" in message
    assert "6 x 5" in message
    assert "--resize" in message
    _, x = read_inputs(path, **GREY, resize=True)
    torch.testing.assert_close(x, torch.full((1, 1, 5, 6), 0.2))


def test_image_of_the_right_size_is_the_same_resized(tmp_path):
    path = write(tmp_path / "a.png", some_bytes(5, 6))
    assert torch.equal(read_inputs(path, **GREY)[1], read_inputs(path, **GREY, resize=True)[1])


@pytest.mark.parametrize("damage", ["cut short", "empty", "text"])
def test_damaged_image(tmp_path, damage):
    path = write(tmp_path / "a.png", some_bytes(5, 6))
    content = path.read_bytes()
    path.write_bytes({"cut short": content[: len(content) // 2], "empty": b"", "text": b"hello"}[damage])
    refused(DamagedError, path, **GREY)


def test_one_damaged_image_in_a_folder_is_named(tmp_path):
    write(tmp_path / "a.png", some_bytes(5, 6))
    (tmp_path / "b.png").write_bytes(b"hello")
    assert str(tmp_path / "b.png") in refused(DamagedError, tmp_path, **GREY)


def test_nothing_there(tmp_path):
    refused(MissingError, tmp_path / "nowhere.png", **GREY)
    refused(MissingError, tmp_path, **GREY)


def test_image_for_a_network_of_vectors(tmp_path):
    path = write(tmp_path / "a.png", some_bytes(2, 2))
    with pytest.raises(DataError, match=r"\(4,\), which is no image"):
        read_inputs(path, **VECTOR)


@pytest.mark.parametrize("kind", ["npy", "npz"])
def test_array_of_numbers(tmp_path, kind):
    x = np.random.default_rng(0).normal(size=(3, 4))
    path = tmp_path / f"a.{kind}"
    if kind == "npy":
        np.save(path, x)
    else:
        np.savez(path, x=x)
    mean, std = [0.5, 0.0, -1.0, 2.0], [1.0, 2.0, 0.5, 3.0]
    names, found = read_inputs(path, shape=(4,), mean=mean, std=std)
    assert names == [f"a.{kind}[0]", f"a.{kind}[1]", f"a.{kind}[2]"]
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found.numpy(), (x - mean) / std, rtol=1e-5, atol=1e-6)


def test_array_of_bytes_is_between_zero_and_one(tmp_path):
    pixels = some_bytes(2, 3, 5, 6)
    np.save(tmp_path / "a.npy", pixels)
    _, x = read_inputs(tmp_path / "a.npy", shape=(3, 5, 6), mean=[0.1, 0.2, 0.3], std=[0.5, 1.0, 2.0])
    mean, std = (np.array(own).reshape(1, 3, 1, 1) for own in ([0.1, 0.2, 0.3], [0.5, 1.0, 2.0]))
    np.testing.assert_allclose(x.numpy(), (pixels / 255 - mean) / std, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["x", "images", "inputs", "x_test", "images_test"])
def test_npz_whose_inputs_have_one_of_the_names_of_training(tmp_path, name):
    np.savez(tmp_path / "a.npz", other=np.zeros(2), **{name: np.ones((2, 4))})
    assert read_inputs(tmp_path / "a.npz", **VECTOR)[1].shape == (2, 4)


def test_npz_without_inputs_names_what_it_has(tmp_path):
    np.savez(tmp_path / "a.npz", first=np.zeros(2), second=np.zeros(2))
    message = refused(DataError, tmp_path / "a.npz", **VECTOR)
    assert "first, second" in message


@pytest.mark.parametrize("shape", [(2, 5), (4,), (), (2, 4, 1)])
def test_array_of_another_shape(tmp_path, shape):
    np.save(tmp_path / "a.npy", np.zeros(shape))
    assert "(4,)" in refused(DataError, tmp_path / "a.npy", **VECTOR)


def test_array_that_holds_objects_is_never_unpickled(tmp_path):
    np.save(tmp_path / "a.npy", np.array([{}], dtype=object), allow_pickle=True)
    refused(DamagedError, tmp_path / "a.npy", **VECTOR)
    np.savez(tmp_path / "a.npz", x=np.array([{}], dtype=object))
    refused(DataError, tmp_path / "a.npz", **VECTOR)


@pytest.mark.parametrize("kind", ["npy", "npz"])
@pytest.mark.parametrize("content", [b"", b"hello"])
def test_file_that_is_no_array(tmp_path, kind, content):
    path = tmp_path / f"a.{kind}"
    path.write_bytes(content)
    refused(DamagedError, path, **VECTOR)


@pytest.mark.parametrize("shape", [(40, 5, 6), (40, 3, 5, 6)])
def test_inputs_are_what_training_saw(tmp_path, shape):
    """The same bytes give the same numbers, whether they come as training data or to be predicted."""
    pixels = some_bytes(*shape)
    np.savez(tmp_path / "mine.npz", x=pixels, y=np.arange(40) % 4)
    data = load(tmp_path / "mine.npz")
    seen = torch.cat([x for name in ("train", "validation", "test") for x, _ in data.batches(name, 16)])
    options = {"shape": data.input_shape, "mean": data.mean, "std": data.std}
    for place in (0, 7):
        image = pixels[place] if pixels.ndim == 3 else pixels[place].transpose(1, 2, 0)
        _, x = read_inputs(write(tmp_path / "a.png", image), **options)
        assert (seen - x).flatten(1).abs().amax(1).min() < 1e-5
    np.save(tmp_path / "all.npy", pixels.reshape(40, *data.input_shape))
    _, x = read_inputs(tmp_path / "all.npy", **options)
    torch.testing.assert_close(x.flatten(1).sum(1).sort().values, seen.flatten(1).sum(1).sort().values)


def test_normalised_by_channel_or_by_feature():
    images = torch.arange(24, dtype=torch.uint8).view(1, 2, 3, 4)
    found = normalised(images, [0.0, 0.5], [1.0, 2.0])
    torch.testing.assert_close(found[:, 0], images[:, 0] / 255)
    torch.testing.assert_close(found[:, 1], (images[:, 1] / 255 - 0.5) / 2)
    rows = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    torch.testing.assert_close(normalised(rows, [1.0, 2.0], [2.0, 1.0]), torch.tensor([[0.0, 0.0], [1.0, 2.0]]))
