"""Image files of one size, decoded into one array of bytes."""

import io
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from nestling.data.faults import DamagedError, DataError
from nestling.data.formats.archive import Tree

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".pgm", ".ppm")
GREY = ("1", "L")


def is_image(name: str) -> bool:
    """Whether the name is the name of an image file."""
    return name.lower().endswith(SUFFIXES)


def has_colour(tree: Tree, names: Sequence[str]) -> bool:
    """Whether any of the images has colours."""
    return any(_mode(tree, name) not in GREY for name in names)


def read_images(tree: Tree, names: Sequence[str], colour: bool) -> NDArray[np.uint8]:
    """The images (N, C, H, W): three channels if ``colour``, else one."""
    first = _decoded(tree, names[0], colour)
    images = np.empty((len(names), *first.shape), np.uint8)
    for number, name in enumerate(names):
        image = _decoded(tree, name, colour)
        if image.shape != first.shape:
            sizes = [f"{tree.where(file)} is {_size(pixels)}" for file, pixels in ((names[0], first), (name, image))]
            raise DataError(f"images must be of one size, but {' and '.join(sizes)}. Resize them first.")
        images[number] = image
    return images.transpose(0, 3, 1, 2)


def _decoded(tree: Tree, name: str, colour: bool) -> NDArray[np.uint8]:
    with _open(tree, name) as image:
        try:
            pixels = np.asarray(image.convert("RGB" if colour else "L"))
        except (OSError, ValueError, SyntaxError) as fault:
            raise DamagedError(f"{tree.where(name)} is damaged: {fault}. Replace or remove it.") from fault
    return pixels if colour else pixels[:, :, None]


def _mode(tree: Tree, name: str) -> str:
    with _open(tree, name) as image:
        return image.mode


def _open(tree: Tree, name: str) -> Image.Image:
    try:
        return Image.open(io.BytesIO(tree.read(name)))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as fault:
        raise DamagedError(f"{tree.where(name)} is not an image that can be read. Replace or remove it.") from fault


def _size(image: NDArray[np.uint8]) -> str:
    return f"{image.shape[1]}x{image.shape[0]}"
