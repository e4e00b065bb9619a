"""LeNet-5 in Caffe's sizes, 20-50-800-500: the convolutional network of the pruning papers."""

from torch import Tensor, nn

from nestling.models.multiplier import multiplied

_POSITIONS = 4 * 4
"""Positions left of a 28x28 image after two 5x5 convolutions without padding, each followed by a max-pool."""


class LeNet5Caffe(nn.Module):
    """LeNet-5 of the pruning papers: two 5x5 convolutions, then a hidden layer of 500 units; images are 28x28.

    Args:
        num_classes: The number of logits.
        in_channels: 1 for grey images, 3 for colour.
        width: Multiplies the channels (20 and 50) and the hidden units (500), to the next whole number.

    Examples:
        >>> net = nl.models.LeNet5Caffe()
        >>> tuple(net(torch.zeros(2, 1, 28, 28)).shape), sum(p.numel() for p in net.parameters())
        ((2, 10), 431080)
    """

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
