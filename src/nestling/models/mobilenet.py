"""MobileNetV2 for CIFAR: ImageNet's channels per stage with two strides of 2 fewer, as FN3 and BN3 nest it."""

from torch import Tensor, nn

from nestling.models.convolution import conv_norm
from nestling.models.multiplier import multiplied

# (expansion, channels, number of layers, stride of the first layer): Sandler et al. 2018, table 2,
# where the second row's stride and the stem's are 2.
_STAGES = ((1, 16, 1, 1), (6, 24, 2, 1), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
_STEM_CHANNELS = 32
_LAST_CHANNELS = 1280


class MobileNetV2(nn.Module):
    """A stem, 17 inverted residual layers and a 1x1 convolution, then the mean over positions and a classifier.

    It is the network of ImageNet with two strides of 2 fewer, for images of 32x32.

    Args:
        num_classes: The number of logits.
        in_channels: Channels of an image.
        width: Multiplies the channels of every layer.

    Examples:
        >>> net = nl.models.MobileNetV2(width=0.25).eval()
        >>> tuple(net(torch.zeros(1, 3, 32, 32)).shape)
        (1, 10)
    """

    def __init__(self, *, num_classes: int = 10, in_channels: int = 3, width: float = 1.0) -> None:
        super().__init__()
        channels, last = multiplied(_STEM_CHANNELS, width), multiplied(_LAST_CHANNELS, width)
        self.stem = nn.Sequential(*conv_norm(in_channels, channels), nn.ReLU6())
        self.blocks = nn.Sequential()
        for expansion, stage_channels, num_layers, stride in _STAGES:
            out_channels = multiplied(stage_channels, width)
            for index in range(num_layers):
                first = index == 0
                self.blocks.append(
                    _InvertedResidual(channels, out_channels, expansion, stride if first else 1, adds_input=not first)
                )
                channels = out_channels
        self.last = nn.Sequential(*conv_norm(channels, last, 1), nn.ReLU6())
        self.classifier = nn.Linear(last, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Logits (B, num_classes)."""
        features: Tensor = self.last(self.blocks(self.stem(images)))
        logits: Tensor = self.classifier(features.mean((2, 3)))
        return logits


class _InvertedResidual(nn.Module):
    """Expand by a 1x1 convolution, filter each hidden channel, project; later layers of a stage add their input."""

    def __init__(self, in_channels: int, out_channels: int, expansion: int, stride: int, *, adds_input: bool) -> None:
        super().__init__()
        hidden = expansion * in_channels
        expand = (*conv_norm(in_channels, hidden, 1), nn.ReLU6()) if expansion > 1 else ()
        self.expand = nn.Sequential(*expand)
        self.depthwise = nn.Sequential(*conv_norm(hidden, hidden, stride=stride, groups=hidden), nn.ReLU6())
        self.project = nn.Sequential(*conv_norm(hidden, out_channels, 1))
        self.adds_input = adds_input

    def forward(self, features: Tensor) -> Tensor:
        """Features (B, out_channels, H / stride, W / stride)."""
        projected: Tensor = self.project(self.depthwise(self.expand(features)))
        return features + projected if self.adds_input else projected
