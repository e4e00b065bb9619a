"""ResNeXt for CIFAR, ResNeXt-29 8x64d: FN3 orders the 8 paths of each of the 9 bottlenecks, and the bottlenecks."""

from torch import Tensor, nn

from nestling.models.convolution import conv_norm, conv_norm_relu
from nestling.models.multiplier import multiplied

_STEM_CHANNELS = 64
_STAGE_CHANNELS = (256, 512, 1024)
_BOTTLENECKS_PER_STAGE = 3


class ResNeXtCifar(nn.Module):
    """Three stages of three bottlenecks, whose paths have ``base_width`` channels, doubled at each new stage.

    Args:
        cardinality: The number of parallel paths in each bottleneck, which can be cut as a group of kind ``"path"``.
        base_width: Channels of a path in the first stage.
        num_classes: The number of logits.
        in_channels: Channels of an image.
        width: Multiplies the channels of a path.
        stream: Multiplies the channels of the residual stream between the bottlenecks.

    Examples:
        >>> net = nl.models.ResNeXtCifar(cardinality=2, base_width=4, stream=0.125)
        >>> tuple(net(torch.zeros(2, 3, 32, 32)).shape), len(net.blocks)
        ((2, 10), 9)
    """

    def __init__(
        self,
        *,
        cardinality: int = 8,
        base_width: int = 64,
        num_classes: int = 10,
        in_channels: int = 3,
        width: float = 1.0,
        stream: float = 1.0,
    ) -> None:
        super().__init__()
        channels = multiplied(_STEM_CHANNELS, stream)
        self.stem = nn.Sequential(*conv_norm_relu(in_channels, channels))
        self.blocks = nn.Sequential()
        for stage, full_channels in enumerate(_STAGE_CHANNELS):
            out_channels = multiplied(full_channels, stream)
            path_width = multiplied(base_width * 2**stage, width)
            for index in range(_BOTTLENECKS_PER_STAGE):
                stride = 2 if stage > 0 and index == 0 else 1
                self.blocks.append(_Bottleneck(channels, out_channels, cardinality, path_width, stride))
                channels = out_channels
        self.classifier = nn.Linear(channels, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Logits (B, num_classes)."""
        features: Tensor = self.blocks(self.stem(images))
        logits: Tensor = self.classifier(features.mean((2, 3)))
        return logits


class _Bottleneck(nn.Module):
    """Parallel paths 1x1, 3x3, 1x1, written as one grouped convolution, added to the input or its projection."""

    def __init__(self, in_channels: int, out_channels: int, cardinality: int, path_width: int, stride: int) -> None:
        super().__init__()
        hidden = cardinality * path_width
        self.reduce = nn.Sequential(*conv_norm(in_channels, hidden, 1), nn.ReLU())
        self.paths = nn.Sequential(*conv_norm(hidden, hidden, stride=stride, groups=cardinality), nn.ReLU())
        self.merge = nn.Sequential(*conv_norm(hidden, out_channels, 1))
        projection = conv_norm(in_channels, out_channels, 1, stride=stride) if in_channels != out_channels else ()
        self.shortcut = nn.Sequential(*projection)

    def forward(self, features: Tensor) -> Tensor:
        """Features (B, out_channels, H / stride, W / stride)."""
        merged: Tensor = self.merge(self.paths(self.reduce(features)))
        shortcut: Tensor = self.shortcut(features)
        return (shortcut + merged).relu()
