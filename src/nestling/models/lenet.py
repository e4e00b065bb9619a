"""LeNet-5 in Caffe's sizes, 20-50-800-500: the convolutional network of the pruning papers."""

from torch import Tensor, nn

from nestling.models.multiplier import multiplied

_POSITIONS = 4 * 4
"""Positions left of a 28x28 image after two 5x5 convolutions without padding, each followed by a max-pool."""


class LeNet5Caffe(nn.Module):
    """Two 5x5 convolutions of 20 and 50 channels, then a hidden layer of 500 units that reads 800; images are 28x28."""

    def __init__(self, *, num_classes: int = 10, in_channels: int = 1, width: float = 1.0) -> None:
        super().__init__()
        first, second, hidden = (multiplied(size, width) for size in (20, 50, 500))
        self.features = nn.Sequential(
            nn.Conv2d(in_channels, first, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(first, second, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.head = nn.Sequential(nn.Linear(second * _POSITIONS, hidden), nn.ReLU(), nn.Linear(hidden, num_classes))

    def forward(self, images: Tensor) -> Tensor:
        """Logits (B, num_classes)."""
        logits: Tensor = self.head(self.features(images).flatten(1))
        return logits
