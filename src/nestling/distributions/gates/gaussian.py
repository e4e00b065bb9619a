"""The Gaussian gate of variational Bayesian dropout: a noisy scale per unit, pruned if it is mostly noise."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from nestling.distributions.divergences import hierarchical_kl
from nestling.distributions.gates.gate import Gate
from nestling.distributions.noise import normal_noise
from nestling.distributions.weights import AdditiveGaussian
from nestling.tensor_arguments import unit_features


class GaussianGate(Gate):
    """z ~ N(theta, alpha theta^2) for each unit and example; the ``divergence`` makes it VBD or sparse VD.

    Args:
        num_units: The number of units.
        divergence: A function of log alpha; ``log_uniform_kl`` makes it sparse VD.
        log_sigma2: Where log sigma^2 of every unit starts; theta starts at 1.

    Examples:
        >>> from nestling.distributions import GaussianGate
        >>> gate = GaussianGate(4)
        >>> gate.keep().tolist(), gate.expectation(torch.zeros(2, 4)).tolist()
        ([True, True, True, True], [1.0, 1.0, 1.0, 1.0])
    """

    default_threshold = 3.0

    def __init__(
        self, num_units: int, *, divergence: Callable[[Tensor], Tensor] = hierarchical_kl, log_sigma2: float = -9.0
    ) -> None:
        super().__init__(num_units)
        self.divergence = divergence
        self.posterior = AdditiveGaussian(
            nn.Parameter(torch.ones(num_units)), nn.Parameter(torch.full((num_units,), log_sigma2))
        )

    def sample(self, features: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Multipliers (batch, num_units), one noise value per example and unit."""
        unit_features(features, self.num_units)
        return self.posterior.mean + self.posterior.std() * normal_noise(features, generator)

    def expectation(self, features: Tensor) -> Tensor:
        """theta (num_units,)."""
        return self.posterior.mean

    def kl(self) -> Tensor:
        """The divergence of log alpha, summed."""
        return self.divergence(self.posterior.bounded_log_alpha()).sum()

    def signal_to_noise(self) -> Tensor:
        """1 / sqrt(alpha) (num_units,)."""
        return torch.exp(-self.posterior.bounded_log_alpha() / 2)

    def keep(self, threshold: float | None = None) -> Tensor:
        """Units with log alpha below the threshold, by default 3 (a drop rate of 0.95)."""
        limit = self.default_threshold if threshold is None else threshold
        return self.posterior.bounded_log_alpha() < limit
