"""What every gate shares: a stochastic multiplier for each unit, without an order among them."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from nestling.errors import RangeError


class Gate(nn.Module, ABC):
    """A multiplier for each of ``num_units`` units.

    ``features`` (batch, num_units) are the units' own activations (of a convolution: their spatial mean). Only a gate
    that depends on its input reads their values; the others read the batch size, the dtype and the device.
    """

    num_units: int

    def __init__(self, num_units: int) -> None:
        super().__init__()
        if num_units < 1:
            raise RangeError("num_units", num_units, "at least 1", "Give the number of neurons or channels to gate.")
        self.num_units = num_units

    @abstractmethod
    def sample(self, features: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Train-time multipliers, broadcastable to ``features`` and differentiable in the gate's parameters."""

    @abstractmethod
    def expectation(self, features: Tensor) -> Tensor:
        """Test-time multipliers, broadcastable to ``features``."""

    @abstractmethod
    def kl(self) -> Tensor:
        """Divergence from the gate's prior in nats: a sum over its units."""

    @abstractmethod
    def keep(self, threshold: float | None = None) -> Tensor:
        """Which units (num_units,) are worth keeping at a threshold; None takes the gate's own."""

    def extra_repr(self) -> str:
        """What ``print`` shows of the gate."""
        return f"num_units={self.num_units}"
