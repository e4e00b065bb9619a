"""Augmentation of a whole batch at once, on the bytes kept in memory: crops and mirror images, or the user's function.

A crop pads with ``PADDING`` black pixels on each side before the inputs are normalised, as the papers do: after
normalisation the border is ``-mean / std``, not zero. Masks are padded with background and move with their image.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, get_args

import torch
from torch import Tensor
from torch.nn import functional

from nestling.data.options import Augment
from nestling.errors import ArgumentError, ShapeError

Augmentation = Augment | Callable[..., Any]
"""A name, or a function of the inputs of a batch that returns them changed; with masks it has and returns both."""

PADDING = 4


class Moves(NamedTuple):
    """How each image of a batch is moved: the corner of its crop in the padded image, and whether it is mirrored."""

    top: Tensor
    left: Tensor
    mirrored: Tensor

    def rows(self, rows: slice) -> "Moves":
        """The moves of some images of the batch."""
        return Moves(self.top[rows], self.left[rows], self.mirrored[rows])


def check_augment(augment: Augmentation, inputs: Tensor | Mapping[str, Tensor]) -> None:
    """Check that ``augment`` is a function or a known name, and that ``inputs`` are images if it moves pixels."""
    if augment != "none" and not isinstance(inputs, Tensor):
        needed = "'none' where inputs are several tensors, as of texts"
        raise ArgumentError("augment", repr(augment), needed, "Change the texts themselves.")
    if callable(augment):
        return
    if augment not in get_args(Augment):
        needed = f"one of {', '.join(get_args(Augment))}, or a function"
        raise ArgumentError("augment", repr(augment), needed, "Check its spelling.")
    if augment != "none" and isinstance(inputs, Tensor) and inputs.ndim != 4:
        given = f"{augment!r} for inputs of shape {tuple(inputs.shape)}"
        raise ShapeError("augment", given, "'none' where inputs are not images (N, C, H, W)", "Leave it out.")


def draw(augment: Augmentation, num_images: int, generator: torch.Generator) -> Moves:
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


def changed(
    function: Callable[..., Any], inputs: Tensor, targets: Tensor, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Call a user's function on a batch, with torch's random state drawn from ``generator``, and check what it gives.

    It is called with the inputs, and with the targets too where those are masks, which have to move with their images.
    """
    has_masks = targets.ndim > 2
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(torch.randint(2**62, (), generator=generator)))
        result = function(inputs, targets) if has_masks else function(inputs)
    returned, needed = _kinds(result), _kinds((inputs, targets) if has_masks else inputs)
    if returned != needed:
        given = f"a function that returns {' and '.join(returned)}"
        advice = "Bytes stay bytes: inputs are scaled and normalised after it."
        raise ShapeError("augment", given, f"one that returns {' and '.join(needed)}", advice)
    augmented: tuple[Tensor, Tensor] = result if has_masks else (result, targets)
    return augmented


def _kinds(values: Any) -> list[str]:  # noqa: ANN401
    """The dtype and the shape of each tensor; the type of anything else."""
    listed = values if isinstance(values, tuple) else (values,)
    return [f"{v.dtype} {tuple(v.shape)}" if isinstance(v, Tensor) else type(v).__name__ for v in listed]
