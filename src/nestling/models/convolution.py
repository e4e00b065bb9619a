"""A convolution followed by a batch norm, from which all networks with norms are built."""

from torch import nn


def conv_norm(
    in_channels: int, out_channels: int, kernel_size: int = 3, *, stride: int = 1, groups: int = 1
) -> tuple[nn.Conv2d, nn.BatchNorm2d]:
    """A convolution with an odd kernel, which keeps the size of images except for ``stride``, and its norm.

    The convolution has no bias, because the norm would subtract it.
    """
    padding = kernel_size // 2
    conv = nn.Conv2d(in_channels, out_channels, kernel_size, stride, padding, groups=groups, bias=False)
    return conv, nn.BatchNorm2d(out_channels)


def conv_norm_relu(in_channels: int, out_channels: int) -> tuple[nn.Conv2d, nn.BatchNorm2d, nn.ReLU]:
    """A 3x3 convolution, its norm and a ReLU."""
    return *conv_norm(in_channels, out_channels), nn.ReLU()
