"""One reader per official layout: takes the paths of its files and returns a checked part."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from nestling.data.faults import DamagedError
from nestling.data.formats.archive import FolderTree, Tree, ZipTree, read_tar
from nestling.data.formats.cifar_binary import read_cifar_binary
from nestling.data.formats.cifar_pickle import read_cifar_pickle
from nestling.data.formats.idx import read_idx
from nestling.data.formats.images import is_image, read_images
from nestling.data.formats.mat import read_mat
from nestling.data.formats.npz import read_npz
from nestling.data.parts import Part, as_tensor, labelled
from nestling.data.split import Split

TINY_TOP = "tiny-imagenet-200/"


def digits(paths: Sequence[Path]) -> Part:
    """The digits that come with scikit-learn, 8x8, with grey levels 0..16 scaled to 0..255."""
    images, labels = _digits()
    return labelled(np.round(images * 255).astype(np.uint8)[:, None], labels, 10, "digits")


CLUTTER_COPIES, CLUTTER_PIECES, CLUTTER_NOISE, CLUTTER_SIZE = 3, 2, 0.15, 32
"""Images per digit, pieces of other digits per image, standard deviation of the pixel noise, and side length."""


def cluttered_digits(paths: Sequence[Path]) -> Part:
    """The same digits, twice as large, each at three random positions among pieces of other digits, with noise.

    The images are the same in every call. The images of one digit are a group, so that no digit is the subject of both
    training and test images; pieces come from all digits.
    """
    images, labels = _digits()
    images = images.repeat(2, axis=1).repeat(2, axis=2)
    random = np.random.RandomState(0)  # numpy guarantees that the numbers of this class never change
    scenes = [_scene(images, number, random) for _ in range(CLUTTER_COPIES) for number in range(len(images))]
    inputs = np.round(np.stack(scenes).clip(0, 1) * 255).astype(np.uint8)[:, None]
    part = labelled(inputs, np.tile(labels, CLUTTER_COPIES), 10, "cluttered_digits")
    return replace(part, groups=torch.arange(len(images)).repeat(CLUTTER_COPIES))


def _scene(images: NDArray[np.float64], number: int, random: np.random.RandomState) -> NDArray[np.float64]:
    """One digit of (N, S, S) among quarters of other digits; where they overlap, the brighter pixel is taken."""
    scene = np.zeros((CLUTTER_SIZE, CLUTTER_SIZE))
    side = images.shape[1]
    for _ in range(CLUTTER_PIECES):
        row, column = random.randint(side // 2 + 1, size=2)
        other = images[random.randint(len(images))]
        _put(scene, other[row : row + side // 2, column : column + side // 2], random)
    _put(scene, images[number], random)
    noise: NDArray[np.float64] = CLUTTER_NOISE * random.standard_normal(scene.shape)
    return scene + noise


def _put(scene: NDArray[np.float64], piece: NDArray[np.float64], random: np.random.RandomState) -> None:
    """Put a square piece at a random position of a scene."""
    side = len(piece)
    row, column = random.randint(CLUTTER_SIZE - side + 1, size=2)
    window = scene[row : row + side, column : column + side]
    np.maximum(window, piece, out=window)


def _digits() -> tuple[NDArray[np.float64], NDArray[Any]]:
    """The digits that come with scikit-learn, in [0, 1], and their labels."""
    from sklearn.datasets import load_digits  # slow to import, and used only here

    bunch = load_digits()
    return bunch.images / 16, bunch.target


def idx_pair(paths: Sequence[Path]) -> Part:
    """A file of images and one of labels."""
    return labelled(read_idx(paths[0], 3)[:, None], read_idx(paths[1], 1), 10, str(paths[0]))


def cifar_binary(contents: Sequence[bytes], where: str, num_classes: int) -> Part:
    """Binary batches, one after the other."""
    batches = [read_cifar_binary(content, where, 2 if num_classes == 100 else 1) for content in contents]
    return _cifar([images for images, _ in batches], [labels for _, labels in batches], where, num_classes)


def cifar_python(contents: Sequence[bytes], where: str, num_classes: int) -> Part:
    """Batches of the Python version, one after the other."""
    batches = [read_cifar_pickle(content, where) for content in contents]
    return _cifar([images for images, _ in batches], [labels for _, labels in batches], where, num_classes)


def from_files(paths: Sequence[Path], names: Sequence[str]) -> list[bytes]:
    """The contents of separate files."""
    return [path.read_bytes() for path in paths]


def from_tar(paths: Sequence[Path], names: Sequence[str]) -> list[bytes]:
    """The contents of the files called ``names`` in the archive that is the only path."""
    return read_tar(paths[0], names)


def svhn_mat(paths: Sequence[Path]) -> Part:
    """The official .mat: X (32, 32, 3, N), and y in 1..10, where 10 is the digit 0."""
    images, labels = read_mat(paths[0], ("X", "y"))
    if images.ndim != 4 or images.dtype != np.uint8:
        raise DamagedError(f"{paths[0]}: X must be bytes (32, 32, 3, N), but is {images.shape}. Fetch it again.")
    return labelled(images.transpose(3, 2, 0, 1), labels.reshape(-1) % 10, 10, str(paths[0]))


def svhn_npz(paths: Sequence[Path]) -> Part:
    """The same digits as .npz: X (N, 32, 32, 3), and y in 0..10, where both 0 and 10 are the digit 0."""
    arrays = read_npz(paths[0])
    images, labels = (arrays.get(key, np.empty(0)) for key in ("X", "y"))
    if images.ndim != 4 or images.dtype != np.uint8:
        raise DamagedError(f"{paths[0]}: X must be bytes (N, 32, 32, 3), but is {images.shape}. Replace it.")
    return labelled(images.transpose(0, 3, 1, 2), labels.reshape(-1) % 10, 10, str(paths[0]))


def lidc(paths: Sequence[Path]) -> Part:
    """Lung CT crops with the masks of four graders; the first column of ``ids`` is the patient."""
    arrays = read_npz(paths[0])
    images, masks, ids = (arrays.get(key, np.empty(0)) for key in ("images", "masks", "ids"))
    alike = images.ndim == 3 and masks.ndim == 4 and masks.shape[2:] == images.shape[1:] and ids.ndim == 2
    if not alike or not len(images) == len(masks) == len(ids) or {images.dtype, masks.dtype} != {np.dtype(np.uint8)}:
        needed = "byte images (N, H, W), byte masks (N, R, H, W) and ids (N, 3), patient first"
        raise DamagedError(f"{paths[0]} must have {needed}. Replace it.")
    if masks.size and masks.max() > 1:
        raise DamagedError(f"{paths[0]}: masks must be 0 or 1, but go up to {masks.max()}. Replace it.")
    patients = torch.from_numpy(ids[:, 0].astype(np.int64))
    return Part(Split(as_tensor(images[:, None]), as_tensor(masks)), patients)


def tiny_folder(paths: Sequence[Path], part: str) -> Part:
    """Tiny ImageNet as its archive unpacks; the last path is ``wnids.txt``, and the parts are in the same folder."""
    return _tiny(FolderTree(paths[-1].parent), part)


def tiny_zip(paths: Sequence[Path], part: str) -> Part:
    """Tiny ImageNet in its archive."""
    return _tiny(ZipTree(paths[0], TINY_TOP), part)


def _tiny(tree: Tree, part: str) -> Part:
    classes = sorted(tree.read("wnids.txt").decode().split())
    labels = _tiny_val(tree) if part == "test" else _tiny_train(tree)
    if not labels or not set(labels.values()) <= set(classes):
        given = "no images" if not labels else f"images of the class {(set(labels.values()) - set(classes)).pop()}"
        raise DamagedError(f"{tree.where(part)}: {given}, which wnids.txt does not list. Fetch it again.")
    images = read_images(tree, list(labels), colour=True)
    numbers = np.array([classes.index(name) for name in labels.values()])
    return replace(labelled(images, numbers, len(classes), tree.where(part)), classes=tuple(classes))


def _tiny_train(tree: Tree) -> dict[str, str]:
    names = [name for name in tree.names() if name.startswith("train/") and is_image(name)]
    return {name: name.split("/")[1] for name in names}


def _tiny_val(tree: Tree) -> dict[str, str]:
    lines = tree.read("val/val_annotations.txt").decode().splitlines()
    fields = [line.split("\t") for line in lines if line]
    if any(len(line) < 2 for line in fields):
        raise DamagedError(f"{tree.where('val/val_annotations.txt')} is damaged: a line has no class. Fetch it again.")
    return {f"val/images/{line[0]}": line[1] for line in fields}


def _cifar(images: list[np.ndarray], labels: list[np.ndarray], where: str, num_classes: int) -> Part:
    return labelled(np.concatenate(images), np.concatenate(labels), num_classes, where)
