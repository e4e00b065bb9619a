"""The residual networks for CIFAR with 6n + 2 weight layers: ResNet14 of the benchmarks, ResNet20 and deeper."""

from torch import Tensor, nn

from nestling.errors import ArgumentError
from nestling.models.convolution import conv_norm, conv_norm_relu
from nestling.models.multiplier import multiplied

_STAGE_CHANNELS = (16, 32, 64)


class ResNet(nn.Module):
    """Three stages of (depth - 2) / 6 residual layers each; between stages the shortcut is a 1x1 convolution.

    Args:
        depth: The number of weight layers: 6n + 2, such as 14, 20 or 56.
        num_classes: The number of logits.
        in_channels: Channels of an image.
        width: Multiplies the channels of the stages, 16, 32 and 64.

    Raises:
        ArgumentError: If the depth is not 6n + 2.

    Examples:
        >>> net = nl.models.ResNet(20, width=0.5)
        >>> tuple(net(torch.zeros(2, 3, 32, 32)).shape), len(net.blocks)
        ((2, 10), 9)
    """

    def __init__(self, depth: int = 20, *, num_classes: int = 10, in_channels: int = 3, width: float = 1.0) -> None:
        super().__init__()
        layers_per_stage = _layers_per_stage(depth)
        channels = multiplied(_STAGE_CHANNELS[0], width)
        self.stem = nn.Sequential(*conv_norm_relu(in_channels, channels))
        self.blocks = nn.Sequential()
        for stage, stage_channels in enumerate(_STAGE_CHANNELS):
            out_channels = multiplied(stage_channels, width)
            for index in range(layers_per_stage):
                stride = 2 if stage > 0 and index == 0 else 1
                self.blocks.append(_ResidualLayer(channels, out_channels, stride))
                channels = out_channels
        self.classifier = nn.Linear(channels, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Logits (B, num_classes)."""
        features: Tensor = self.blocks(self.stem(images))
        logits: Tensor = self.classifier(features.mean((2, 3)))
        return logits


def _layers_per_stage(depth: int) -> int:
    if depth < 8 or depth % 6 != 2:
        needed = "6n + 2 for some n of at least 1"
        raise ArgumentError("depth", depth, needed, "Take 8, 14, 20, 32, 44, 56 or 110, for example.")
    return depth // 6


class _ResidualLayer(nn.Module):
    """Two 3x3 convolutions added to the input, or to its projection where a stage begins."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Sequential(*conv_norm(in_channels, out_channels, stride=stride), nn.ReLU())
        self.second = nn.Sequential(*conv_norm(out_channels, out_channels))
        projection = conv_norm(in_channels, out_channels, 1, stride=stride) if stride > 1 else ()
        self.shortcut = nn.Sequential(*projection)

    def forward(self, features: Tensor) -> Tensor:
        """Features (B, out_channels, H / stride, W / stride)."""
        residual: Tensor = self.second(self.first(features))
        shortcut: Tensor = self.shortcut(features)
        return (shortcut + residual).relu()
