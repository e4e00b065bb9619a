"""Structured Bayesian pruning: a truncated log-normal multiplier per unit, pruned if it is mostly noise."""

import torch
from torch import Tensor, nn

from nestling.arguments import finite_number
from nestling.distributions.divergences import truncated_log_normal_kl
from nestling.distributions.gates.gate import Gate
from nestling.distributions.noise import uniform_noise
from nestling.distributions.special import log_normal_interval, within
from nestling.tensor_arguments import unit_features


class LogNormalGate(Gate):
    """log z ~ N(mu, sigma^2) truncated to [``low``, ``high``] = [-20, 0], prior log-uniform there; one draw per batch.

    mu is clamped to [low, high] (outside, the mass sits at an edge, where the closed forms cancel) and log sigma to
    [-20, 5], as released.

    Args:
        num_units: The number of units.
        log_std: Where the logarithm of every sigma starts.

    Raises:
        RangeError: If the start is not finite.

    Examples:
        >>> from nestling.distributions import LogNormalGate
        >>> gate = LogNormalGate(4)
        >>> z = gate.sample(torch.zeros(2, 4))
        >>> tuple(z.shape), bool((z <= 1).all())
        ((4,), True)
    """

    low = -20.0
    high = 0.0
    log_std_bounds = (-20.0, 5.0)
    default_threshold = 1.0

    def __init__(self, num_units: int, *, log_std: float = -5.0) -> None:
        super().__init__(num_units)
        self.raw_mu = nn.Parameter(torch.zeros(num_units))
        self.raw_log_std = nn.Parameter(torch.full((num_units,), finite_number("log_std", log_std)))

    def mu(self) -> Tensor:
        """Centre of log z before truncation."""
        return within(self.raw_mu, self.low, self.high)

    def log_std(self) -> Tensor:
        """Logarithm of the standard deviation of log z before truncation."""
        return within(self.raw_log_std, *self.log_std_bounds)

    def sample(self, features: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Multipliers (num_units,), by inverting the distribution function."""
        unit_features(features, self.num_units)
        mu, std = self.mu(), self.log_std().exp()
        below, above = ((edge - mu) / std for edge in (self.low, self.high))
        start, stop = torch.special.ndtr(below), torch.special.ndtr(above)
        eps = torch.finfo(mu.dtype).eps
        level = (start + (stop - start) * uniform_noise(mu, generator)).clamp(eps, 1 - eps)
        log_z: Tensor = mu + std * torch.special.ndtri(level)
        return log_z.clamp(self.low, self.high).exp()

    def expectation(self, features: Tensor) -> Tensor:
        """E[z] (num_units,)."""
        return self.log_moment(1).exp()

    def log_moment(self, power: int) -> Tensor:
        """log E[z^power] (num_units,): power mu + (power sigma)^2 / 2 plus the log of the mass left by truncation."""
        mu, std = self.mu(), self.log_std().exp()
        below, above = ((edge - mu) / std for edge in (self.low, self.high))
        shift = power * std
        log_mass_ratio = log_normal_interval(below - shift, above - shift) - log_normal_interval(below, above)
        return power * mu + 0.5 * shift.square() + log_mass_ratio

    def signal_to_noise(self) -> Tensor:
        """E[z] / std(z) (num_units,)."""
        relative_variance = torch.expm1(self.log_moment(2) - 2 * self.log_moment(1))
        return torch.rsqrt(relative_variance.clamp_min(self._smallest_variance()))

    def kl(self) -> Tensor:
        """KL against the log-uniform on [low, high], summed."""
        return truncated_log_normal_kl(self.mu(), self.log_std(), self.low, self.high).sum()

    def keep(self, threshold: float | None = None) -> Tensor:
        """Units whose signal-to-noise ratio is at least the threshold, 1 in the paper."""
        return self.signal_to_noise() >= (self.default_threshold if threshold is None else threshold)

    def _smallest_variance(self) -> float:
        return torch.finfo(self.raw_mu.dtype).eps
