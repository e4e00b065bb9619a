"""Image files, decoded into one array of bytes of one size."""

import io
import math
import warnings
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from nestling.data.faults import DamagedError, DataError
from nestling.data.formats.archive import Tree
from nestling.data.formats.limits import check_expansion

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".pgm", ".ppm")
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM")
"""The formats that Pillow may try; some of its others start programs, such as Ghostscript."""
MOST_PIXELS = 89_478_485
"""An image with more pixels is refused; Pillow, whose limit this is, only warns."""
DEEP = ("I;16", "I;16L", "I;16B", "I;16N")
GREY = ("1", "L", "LA", "I", *DEEP)

Bytes = NDArray[np.uint8]
Size = tuple[int, int]


def is_image(name: str) -> bool:
    """Whether the name is the name of an image file that is not hidden."""
    return name.lower().endswith(SUFFIXES) and not any(part.startswith(".") for part in name.split("/"))


def has_colour(tree: Tree, names: Sequence[str]) -> bool:
    """Whether any of the images has colours."""
    return any(_opened(tree, name).mode not in GREY for name in names)


def read_images(
    tree: Tree, names: Sequence[str], colour: bool, size: Size | None = None, *, resize: bool = False
) -> Bytes:
    """The images (N, C, H, W): three channels if ``colour``, else one.

    All must have the size (height, width) of the network, or of the first image if it is None, unless ``resize``.
    """
    height, width = size or _opened(tree, names[0]).size[::-1]
    shape = (len(names), 3 if colour else 1, height, width)
    advice = "Check the images, or resize them to fewer pixels."
    check_expansion(tree.where(""), math.prod(shape), sum(map(tree.num_bytes, names)), advice)
    images = np.empty(shape, np.uint8)
    for number, name in enumerate(names):
        image = _opened(tree, name)
        if not resize and image.size != (width, height):
            needed = f"the network takes {width} x {height}" if size else f"{names[0]} has {width} x {height}"
            advice = "Resize them: --resize on the command line, resize= in Python."
            raise DataError(f"{tree.where(name)} has {image.width} x {image.height} pixels, but {needed}. {advice}")
        images[number] = _pixels(image, tree.where(name), colour, (height, width))
    return images


def decoded_image(content: bytes, colour: bool, size: Size, *, most_pixels: int = MOST_PIXELS) -> Bytes:
    """The pixels (C, H, W) of an image file's ``content``, resized to ``size`` (height, width)."""
    return _pixels(_header(content, _SENT, most_pixels), _SENT, colour, size)


_SENT = "the image"


def _opened(tree: Tree, name: str) -> Image.Image:
    return _header(tree.read(name), tree.where(name))


def _header(content: bytes, where: str, most_pixels: int = MOST_PIXELS) -> Image.Image:
    """An image of which only the header was read, of a size that can be decoded."""
    fewer = f"Save it with at most {most_pixels:,} pixels, or remove it."
    try:
        with warnings.catch_warnings(action="ignore", category=Image.DecompressionBombWarning):
            image = Image.open(io.BytesIO(content), formats=FORMATS)
    except Image.DecompressionBombError:
        raise DataError(f"{where} has too many pixels to be read. {fewer}") from None
    except (OSError, ValueError, SyntaxError) as fault:
        raise DamagedError(f"{where} is not an image that can be read. Replace or remove it.") from fault
    if image.width * image.height > most_pixels:
        raise DataError(f"{where} has {image.width} x {image.height} pixels, too many. {fewer}")
    if image.mode in ("I", "F") and not _is_deep(image):
        raise DataError(f"{where} has pixels of 32 bits, whose scale no file tells. Save it with 8 or 16.")
    return image


def _is_deep(image: Image.Image) -> bool:
    """Whether an image has 16 bits of grey, for which Pillow has several modes."""
    return image.mode in DEEP or (image.mode == "I" and image.format in ("PNG", "PPM"))


def _pixels(image: Image.Image, where: str, colour: bool, size: Size) -> Bytes:
    """The pixels (C, H, W) of an image; of 16 bits of grey the upper 8."""
    try:
        if _is_deep(image):
            image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
        image = image.convert("RGB" if colour else "L")
    except (OSError, ValueError, SyntaxError) as fault:
        raise DamagedError(f"{where} is damaged: {fault}. Replace or remove it.") from fault
    if image.size != size[::-1]:
        image = image.resize(size[::-1], Image.Resampling.BILINEAR)
    pixels = np.asarray(image)
    return pixels.transpose(2, 0, 1) if colour else pixels[None]
