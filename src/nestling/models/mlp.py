"""Fully connected networks: FN3's 784-512-128-10 and the two LeNets without convolutions of the pruning papers."""

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn

from nestling.models.multiplier import multiplied


class MLP(nn.Module):
    """Linear layers with ReLUs between them; an input of any shape is flattened to ``in_features`` values.

    Args:
        hidden: The number of units of each hidden layer; those of FN3 by default.
        in_features: The number of values of one input.
        num_classes: The number of outputs: logits, or numbers.
        width: Multiplies the hidden units.

    Examples:
        >>> net = nl.models.MLP((64, 32), in_features=64)
        >>> tuple(net(torch.zeros(5, 1, 8, 8)).shape)
        (5, 10)
    """

    def __init__(
        self, hidden: Sequence[int] = (512, 128), *, in_features: int = 784, num_classes: int = 10, width: float = 1.0
    ) -> None:
        super().__init__()
        sizes = [in_features, *(multiplied(size, width) for size in hidden)]
        layers = [layer for fan_in, fan_out in pairwise(sizes) for layer in (nn.Linear(fan_in, fan_out), nn.ReLU())]
        self.layers = nn.Sequential(nn.Flatten(), *layers, nn.Linear(sizes[-1], num_classes))

    def forward(self, images: Tensor) -> Tensor:
        """Logits (B, num_classes)."""
        logits: Tensor = self.layers(images)
        return logits


def LeNet300(*, in_features: int = 784, num_classes: int = 10, width: float = 1.0) -> MLP:
    """LeNet-300-100, from the tables of weight pruning.

    Args:
        in_features: The number of values of one input.
        num_classes: The number of logits.
        width: Multiplies the hidden units.

    Returns:
        An ``MLP`` with hidden layers of 300 and 100 units.

    Examples:
        >>> sum(p.numel() for p in nl.models.LeNet300().parameters())
        266610
    """
    return MLP((300, 100), in_features=in_features, num_classes=num_classes, width=width)


def LeNet500(*, in_features: int = 784, num_classes: int = 10, width: float = 1.0) -> MLP:
    """LeNet-500-300, from the tables of neuron pruning.

    Args:
        in_features: The number of values of one input.
        num_classes: The number of logits.
        width: Multiplies the hidden units.

    Returns:
        An ``MLP`` with hidden layers of 500 and 300 units.

    Examples:
        >>> [layer.out_features for layer in nl.models.LeNet500().layers if isinstance(layer, torch.nn.Linear)]
        [500, 300, 10]
    """
    return MLP((500, 300), in_features=in_features, num_classes=num_classes, width=width)
