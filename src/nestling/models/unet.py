"""The U-Net 32-64-128-192, with which BN3 segments."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from nestling.errors import ShapeError
from nestling.models.convolution import conv_norm_relu
from nestling.models.multiplier import multiplied


class UNet(nn.Module):
    """Two convolutions per level, max-pools down, transposed convolutions up, skips concatenated at each level.

    Args:
        channels: Channels of each level, from the finest to the coarsest.
        in_channels: Channels of an image.
        out_channels: Logits per pixel: 1 for one class against the rest.
        width: Multiplies the channels.

    Raises:
        ShapeError: On use, if a side of the images can't be halved at every level.

    Examples:
        >>> net = nl.models.UNet((4, 8, 8))
        >>> tuple(net(torch.zeros(2, 1, 16, 24)).shape)
        (2, 1, 16, 24)
    """

    def __init__(
        self,
        channels: Sequence[int] = (32, 64, 128, 192),
        *,
        in_channels: int = 1,
        out_channels: int = 1,
        width: float = 1.0,
    ) -> None:
        super().__init__()
        sizes = [multiplied(size, width) for size in channels]
        *encoders, bottom = (_level(above, size) for above, size in pairwise([in_channels, *sizes]))
        self.encoders = nn.ModuleList(encoders)
        self.pool = nn.MaxPool2d(2)
        self.bottom = bottom
        upward = list(pairwise(reversed(sizes)))
        self.ups = nn.ModuleList(nn.ConvTranspose2d(below, size, 2, stride=2) for below, size in upward)
        self.decoders = nn.ModuleList(_level(2 * size, size) for _, size in upward)
        self.head = nn.Conv2d(sizes[0], out_channels, 1)

    def forward(self, images: Tensor) -> Tensor:
        """Logits (B, out_channels, H, W) of images (B, in_channels, H, W)."""
        _check_divisible(images, 2 ** len(self.ups))
        features, skips = images, []
        for encoder in self.encoders:
            skips.append(encoder(features))
            features = self.pool(skips[-1])
        features = self.bottom(features)
        for up, decoder, skip in zip(self.ups, self.decoders, reversed(skips), strict=True):
            features = decoder(torch.cat((skip, up(features)), 1))
        logits: Tensor = self.head(features)
        return logits


def _level(in_channels: int, out_channels: int) -> nn.Sequential:
    return nn.Sequential(*conv_norm_relu(in_channels, out_channels), *conv_norm_relu(out_channels, out_channels))


def _check_divisible(images: Tensor, divisor: int) -> None:
    height, width = images.shape[-2:]
    if height % divisor or width % divisor:
        needed = f"images whose sides are multiples of {divisor}"
        raise ShapeError("images", f"shape {tuple(images.shape)}", needed, "Pad or crop them.")
