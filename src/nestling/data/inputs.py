"""Reads inputs to predict on, from image files or arrays, in the form that a network was trained on."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from nestling.data.arrays import finite_numbers
from nestling.data.faults import DataError, MissingError
from nestling.data.formats.archive import FolderTree
from nestling.data.formats.images import is_image, read_images
from nestling.data.formats.limits import plain_file
from nestling.data.formats.npz import read_npy, read_npz

ARRAYS = ("x", "images", "inputs", "x_test", "images_test")


def read_inputs(
    path: Path | str,
    *,
    shape: Sequence[int],
    mean: Sequence[float],
    std: Sequence[float],
    as_bytes: bool = True,
    resize: bool = False,
) -> tuple[list[str], Tensor]:
    """Names and normalised inputs (N, *shape) from an image, a folder of images, an .npy or an .npz file.

    ``as_bytes`` says that the network was trained on bytes, so that the scale of an image's pixels is known.
    """
    source = Path(path)
    if not source.exists():
        raise MissingError(f"{source} does not exist. Pass an image, a folder of images, an .npy or an .npz file.")
    if source.suffix in (".npy", ".npz"):
        array = _with_channels(_numbers(_array(source), source), shape)
        if array.shape[1:] != tuple(shape):
            raise DataError(f"{source} has inputs of shape {array.shape[1:]}, but the network takes {tuple(shape)}.")
        names = [f"{source.name}[{number}]" for number in range(len(array))]
    else:
        tree = FolderTree(source if source.is_dir() else source.parent)
        files = list(filter(is_image, tree.names())) if source.is_dir() else [source.name]
        if not files:
            raise MissingError(f"{source} has no images. Pass a folder with .png or .jpg files.")
        names = [tree.where(file) for file in files]
        array = _images(tree, files, shape, resize)
    if array.dtype == np.uint8 and not as_bytes:
        advice = "Pass an .npy file of floats on the scale of the training data."
        raise DataError(
            f"{source} has bytes, but the network was trained on floats, whose scale no image tells. {advice}"
        )
    return names, normalised(torch.from_numpy(np.ascontiguousarray(array)), mean, std)


def normalised(inputs: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Inputs as a network gets them: (x - mean) / std, where bytes x are first scaled to [0, 1]."""
    values = inputs.float() / 255 if inputs.dtype == torch.uint8 else inputs.float()
    shape = (1, -1) + (1,) * (inputs.ndim - 2)
    center, scale = (torch.tensor(numbers, dtype=torch.float32).view(shape) for numbers in (mean, std))
    return (values - center) / scale


def _with_channels(array: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """Images with the channel axis in front, if they have none or have it at the end."""
    if len(shape) == 3 and array.shape[1:] == tuple(shape[1:]) and shape[0] == 1:
        return array[:, None]
    if len(shape) == 3 and array.shape[1:] == (*shape[1:], shape[0]):
        return np.moveaxis(array, -1, 1)
    return array


def _numbers(array: np.ndarray, path: Path) -> np.ndarray:
    """Bytes as they are, other numbers as float32."""
    if array.dtype.kind not in "uifb" or not array.size:
        raise DataError(f"{path} has inputs that are {array.dtype} of shape {array.shape}. Save numbers, at least one.")
    return array if array.dtype == np.uint8 else finite_numbers(array, f"{path}: inputs")


def _array(path: Path) -> np.ndarray:
    if path.suffix == ".npz":
        arrays = read_npz(path)
        name = next((name for name in ARRAYS if name in arrays), None)
        if name is None:
            raise DataError(f"{path} has the arrays {', '.join(arrays)}. Name the inputs x.")
        return arrays[name]
    try:
        with plain_file(path).open("rb") as file:
            return read_npy(file, path.stat().st_size, str(path))
    except OSError as fault:
        raise DataError(f"{path} cannot be read: {fault.strerror or fault}. Check that you may read it.") from fault


def _images(tree: FolderTree, files: Sequence[str], shape: Sequence[int], resize: bool) -> np.ndarray:
    if len(shape) != 3 or shape[0] not in (1, 3):
        raise DataError(f"the network takes inputs of shape {tuple(shape)}, which is no image. Pass an .npy file.")
    return read_images(tree, files, shape[0] == 3, (shape[1], shape[2]), resize=resize)
