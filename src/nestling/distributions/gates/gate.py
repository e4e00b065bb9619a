"""What every gate shares: a stochastic multiplier per unit, without an order among the units."""

from abc import ABC, abstractmethod
from copy import deepcopy
from typing import Self

import torch
from torch import Tensor, nn

from nestling.arguments import count
from nestling.distributions.learned import Learned
from nestling.distributions.temperature import Tempered


class Gate(Learned, ABC):
    """A stochastic multiplier for each of ``num_units`` units, without an order among the units.

    ``features`` (batch, num_units) are the activations of the units (of a convolution: their spatial mean). Only a gate
    that depends on its input reads their values; the other gates read the batch size, the dtype and the device.

    Attributes:
        num_units: The number of neurons or channels.

    Examples:
        >>> from nestling.distributions import BernoulliGate, Gate
        >>> gate = BernoulliGate(3, drop_prob=0.5)
        >>> isinstance(gate, Gate), tuple(gate.sample(torch.zeros(4, 3)).shape), gate.part(torch.tensor([0])).num_units
        (True, (4, 3), 1)
    """

    num_units: int

    def __init__(self, num_units: int) -> None:
        super().__init__()
        self.num_units = count("num_units", num_units, "how many neurons or channels to gate")

    @abstractmethod
    def sample(self, features: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Multipliers for training, differentiable in the gate's parameters.

        Args:
            features: Activations (batch, num_units).
            generator: Draws the noise; None for torch's own.

        Returns:
            A tensor that broadcasts to the features.
        """

    @abstractmethod
    def expectation(self, features: Tensor) -> Tensor:
        """Multipliers for use after training.

        Args:
            features: Activations (batch, num_units).

        Returns:
            A tensor that broadcasts to the features.
        """

    @abstractmethod
    def kl(self) -> Tensor:
        """Divergence from the gate's prior in nats: a sum over its units."""

    @abstractmethod
    def keep(self, threshold: float | None = None) -> Tensor:
        """Which units are kept.

        Args:
            threshold: On what the gate compares, such as its keep probability; None for the gate's default.

        Returns:
            Booleans (num_units,).
        """

    @abstractmethod
    def signal_to_noise(self) -> Tensor:
        """E[z] / std(z) (num_units,): the units with the smallest are the first that a target drops."""

    def keep_for(self, features: Tensor, threshold: float | None = None) -> Tensor:
        """Which units are kept, (num_units,), or (batch, num_units) for a gate that depends on its input."""
        return self.keep(threshold)

    def part(self, units: Tensor) -> Self:
        """A copy of this gate for some of its units.

        Args:
            units: Their numbers.

        Returns:
            A gate with as many units.
        """
        gate = deepcopy(self)
        gate.num_units = len(units)
        for tensor in (*gate.parameters(), *gate.buffers()):
            if tensor.shape[:1] == (self.num_units,):
                tensor.data = tensor.data[units.to(tensor.device)]
        return gate

    def extra_repr(self) -> str:
        """What ``print`` shows of the gate."""
        return f"num_units={self.num_units}"


class RelaxedGate(Tempered, Gate, ABC):
    """A gate that keeps or drops each unit, relaxed at a ``temperature`` while it is trained."""

    def __init__(self, num_units: int, temperature: float) -> None:
        super().__init__(num_units)
        self.temperature = temperature


def gates_of(module: nn.Module) -> dict[str, Gate]:
    """The gates of a module by path, without gates that are part of another gate."""
    gates: dict[str, Gate] = {}
    for path, submodule in module.named_modules():
        if isinstance(submodule, Gate) and not any(path.startswith(f"{other}.") for other in gates):
            gates[path] = submodule
    return gates
