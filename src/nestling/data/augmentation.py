"""Random crops and mirror images of a whole batch at once, on the bytes kept in memory.

A crop pads with ``PADDING`` black pixels on each side before the inputs are normalised, as the papers do: after
normalisation the border is ``-mean / std``, not zero. Masks are padded with background and move with their image.
"""

from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor
from torch.nn import functional

from nestling.errors import ArgumentError, ShapeError

Augment = Literal["none", "flip", "crop", "crop_flip"]

PADDING = 4


class Moves(NamedTuple):
    """How each image of a batch is moved: the corner of its crop in the padded image, and whether it is mirrored."""

    top: Tensor
    left: Tensor
    mirrored: Tensor

    def rows(self, rows: slice) -> "Moves":
        """The moves of some images of the batch."""
        return Moves(self.top[rows], self.left[rows], self.mirrored[rows])


def check_augment(augment: str, inputs: Tensor) -> None:
    """Check that ``augment`` is a known name, and that ``inputs`` are images if it moves pixels."""
    if augment not in get_args(Augment):
        raise ArgumentError("augment", repr(augment), f"one of {', '.join(get_args(Augment))}", "Check its spelling.")
    if augment != "none" and inputs.ndim != 4:
        given = f"{augment!r} for inputs of shape {tuple(inputs.shape)}"
        raise ShapeError("augment", given, "'none' where inputs are not images (N, C, H, W)", "Leave it out.")


def draw(augment: Augment, num_images: int, generator: torch.Generator) -> Moves:
    """Draw the moves of ``num_images`` images; draws the same amount of noise for every ``augment``."""
    corners = torch.randint(0, 2 * PADDING + 1, (2, num_images), generator=generator)
    mirrored = torch.rand(num_images, generator=generator) < 0.5
    if augment in ("none", "flip"):
        corners = torch.full_like(corners, PADDING)
    if augment in ("none", "crop"):
        mirrored = torch.zeros_like(mirrored)
    return Moves(corners[0], corners[1], mirrored)


def move(images: Tensor, moves: Moves) -> Tensor:
    """Crop and mirror ``images`` (B, C, H, W), each by its own move."""
    batch, channels, height, width = images.shape
    padded = functional.pad(images, (PADDING,) * 4).flatten(2)
    columns = torch.arange(width).expand(batch, width)
    columns = torch.where(moves.mirrored[:, None], width - 1 - columns, columns) + moves.left[:, None]
    rows = torch.arange(height) + moves.top[:, None]
    pixels = rows[:, :, None] * (width + 2 * PADDING) + columns[:, None, :]
    index = pixels.flatten(1)[:, None].expand(batch, channels, height * width)
    return padded.gather(2, index).view(batch, channels, height, width)
