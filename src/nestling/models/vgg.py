"""The VGG networks for small images: VGG11 of BN3, and the VGG-like one of the pruning papers with 13 convolutions."""

from collections.abc import Sequence

from torch import Tensor, nn

from nestling.models.convolution import conv_norm_relu
from nestling.models.multiplier import multiplied

# The channels of the convolutions, one tuple per stage; a 2x2 max-pool ends each stage.
_VGG11_STAGES = ((64,), (128,), (256, 256), (512, 512), (512, 512))
_VGG16_STAGES = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))


class VGG11(nn.Module):
    """Eight convolutions and two dense layers; ``width=1.5`` is the network that BN3 trains.

    The dense layer has 256 units at every width: BN3 neither widens nor nests it.

    Args:
        num_classes: The number of logits.
        in_channels: Channels of an image, whose sides are 32 or more.
        width: Multiplies the channels of the convolutions.

    Examples:
        >>> tuple(nl.models.VGG11(width=0.125)(torch.zeros(2, 3, 32, 32)).shape)
        (2, 10)
    """

    def __init__(self, *, num_classes: int = 10, in_channels: int = 3, width: float = 1.0) -> None:
        super().__init__()
        stages = _multiplied_stages(_VGG11_STAGES, width)
        self.features = _features(in_channels, stages)
        self.head = _head(stages[-1][-1], 256, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Logits (B, num_classes) of images of 32x32 or larger."""
        logits: Tensor = self.head(self.features(images))
        return logits


class VGG16Like(nn.Module):
    """Thirteen convolutions and two dense layers, the first of 512 units times ``width``.

    Args:
        num_classes: The number of logits.
        in_channels: Channels of an image, whose sides are 32 or more.
        width: Multiplies the channels of the convolutions and the units of the dense layer.

    Examples:
        >>> tuple(nl.models.VGG16Like(width=0.125)(torch.zeros(2, 3, 32, 32)).shape)
        (2, 10)
    """

    def __init__(self, *, num_classes: int = 10, in_channels: int = 3, width: float = 1.0) -> None:
        super().__init__()
        stages = _multiplied_stages(_VGG16_STAGES, width)
        self.features = _features(in_channels, stages)
        self.head = _head(stages[-1][-1], multiplied(512, width), num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Logits (B, num_classes) of images of 32x32 or larger."""
        logits: Tensor = self.head(self.features(images))
        return logits


def _multiplied_stages(stages: Sequence[Sequence[int]], width: float) -> list[list[int]]:
    return [[multiplied(channels, width) for channels in stage] for stage in stages]


def _features(in_channels: int, stages: Sequence[Sequence[int]]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for stage in stages:
        for channels in stage:
            layers += conv_norm_relu(in_channels, channels)
            in_channels = channels
        layers.append(nn.MaxPool2d(2))
    # Five halvings leave one position of a 32x32 image; of a larger one (Tiny-ImageNet) the mean is taken.
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())


def _head(channels: int, hidden: int, num_classes: int) -> nn.Sequential:
    dense = nn.Linear(channels, hidden, bias=False)
    return nn.Sequential(dense, nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, num_classes))
