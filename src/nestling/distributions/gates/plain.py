"""Dropout gates to compare the Bayesian gates with: Bernoulli, Gaussian and concrete dropout."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nestling.arguments import inner_probability, probability
from nestling.distributions.divergences import bernoulli_kl
from nestling.distributions.gates.gate import Gate, RelaxedGate
from nestling.distributions.noise import logistic_noise, normal_noise, uniform_noise
from nestling.errors import RangeError
from nestling.tensor_arguments import unit_features


class _FixedGate(Gate):
    """A gate with mean one and fixed ``drop_prob`` p: nothing is learned and every unit is kept."""

    def __init__(self, num_units: int, drop_prob: float = 0.5) -> None:
        super().__init__(num_units)
        self.drop_prob = _drop_prob(drop_prob)

    def expectation(self, features: Tensor) -> Tensor:
        """Ones (num_units,)."""
        return features.new_ones(self.num_units)

    def kl(self) -> Tensor:
        """Zero: nothing is learned."""
        return torch.zeros(())

    def signal_to_noise(self) -> Tensor:
        """sqrt((1 - p) / p) (num_units,), the same for every unit."""
        odds = (1 - self.drop_prob) / self.drop_prob if self.drop_prob else math.inf
        return torch.full((self.num_units,), odds).sqrt()

    def keep(self, threshold: float | None = None) -> Tensor:
        """Every unit, at any threshold."""
        return torch.ones(self.num_units, dtype=torch.bool)


class BernoulliGate(_FixedGate):
    """z = m / (1 - p), m ~ Bernoulli(1 - p) with ``drop_prob`` p (erratum E28): ordinary dropout.

    Args:
        num_units: The number of units.
        drop_prob: The probability of a zero, below 1.

    Raises:
        RangeError: If it is no such probability.

    Examples:
        >>> from nestling.distributions import BernoulliGate
        >>> sorted(set(BernoulliGate(100, 0.5).sample(torch.zeros(1, 100)).flatten().tolist()))
        [0.0, 2.0]
    """

    def sample(self, features: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Multipliers (batch, num_units), 0 or 1 / (1 - p)."""
        unit_features(features, self.num_units)
        return (uniform_noise(features, generator) >= self.drop_prob).to(features.dtype) / (1 - self.drop_prob)


class GaussianDropoutGate(_FixedGate):
    """z ~ N(1, p / (1 - p)): the Gaussian noise with the variance of dropout at ``drop_prob`` p.

    Args:
        num_units: The number of units.
        drop_prob: The probability whose variance it has, below 1.

    Raises:
        RangeError: If it is no such probability.

    Examples:
        >>> from nestling.distributions import GaussianDropoutGate
        >>> GaussianDropoutGate(3, 0.2).signal_to_noise()  # sqrt((1 - p) / p)
        tensor([2., 2., 2.])
    """

    def sample(self, features: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Multipliers (batch, num_units)."""
        unit_features(features, self.num_units)
        return 1 + math.sqrt(self.drop_prob / (1 - self.drop_prob)) * normal_noise(features, generator)


class ConcreteGate(RelaxedGate):
    """Concrete dropout: one drop probability for the layer, learned through a relaxed mask.

    The KL is that of the masks from fair coins, log 2 - H(p) per unit: the entropy term of the method. The other term,
    the squared weights times 1 - p, belongs to the layer that reads the gated units.

    Args:
        num_units: The number of units.
        drop_prob: Where the probability starts.
        temperature: Of the relaxation; towards 0 its draws tend to zeros and ones.

    Raises:
        RangeError: If the probability is not strictly between 0 and 1.

    Examples:
        >>> from nestling.distributions import ConcreteGate
        >>> gate = ConcreteGate(4, drop_prob=0.5)
        >>> round(gate.kl().item(), 6), gate.drop_logit.requires_grad
        (0.0, True)
    """

    def __init__(self, num_units: int, drop_prob: float = 0.1, *, temperature: float = 0.1) -> None:
        super().__init__(num_units, temperature)
        start = inner_probability("drop_prob", drop_prob)
        self.drop_logit = nn.Parameter(torch.tensor(math.log(start) - math.log1p(-start)))

    def sample(self, features: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Relaxed multipliers (batch, num_units) whose mean tends to one as the temperature falls."""
        unit_features(features, self.num_units)
        keep = torch.sigmoid((logistic_noise(features, generator) - self.drop_logit) / self.temperature)
        return keep * (1 + self.drop_logit.exp())

    def expectation(self, features: Tensor) -> Tensor:
        """Ones (num_units,)."""
        return features.new_ones(self.num_units)

    def kl(self) -> Tensor:
        """num_units (log 2 - H(p))."""
        return self.num_units * bernoulli_kl(self.drop_logit, 0.5)

    def signal_to_noise(self) -> Tensor:
        """sqrt((1 - p) / p) (num_units,), the same for every unit."""
        return torch.exp(-self.drop_logit / 2).expand(self.num_units)

    def keep(self, threshold: float | None = None) -> Tensor:
        """Every unit, or none if the layer's keep probability is below the threshold (0 by default)."""
        kept = F.sigmoid(-self.drop_logit) >= (0.0 if threshold is None else threshold)
        return kept.expand(self.num_units)


def _drop_prob(value: float) -> float:
    if probability("drop_prob", value) == 1.0:
        raise RangeError("drop_prob", value, "below 1", "A gate that drops everything leaves nothing to rescale.")
    return value
