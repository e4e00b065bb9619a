"""Beta-Bernoulli dropout: a keep probability per unit, learned under a prior that favours few kept units."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nestling.arguments import finite_number, positive_number
from nestling.distributions.divergences import kumaraswamy_beta_kl
from nestling.distributions.gates.gate import RelaxedGate
from nestling.distributions.noise import exponential_noise, logistic_noise
from nestling.distributions.special import log1mexp, log_beta, logit_from_log, within
from nestling.tensor_arguments import unit_features

SOFTPLUS_OF_ONE = 0.5413
"""softplus(0.5413) = 1, the initial b of the released code."""


class BetaBernoulli(RelaxedGate):
    """z ~ Bernoulli(pi), pi ~ Kumaraswamy(a, b), prior Beta(``concentration``, 1) with concentration = alpha / K (BB).

    a = softplus(max(raw_a, -10)) and b = softplus(clip(raw_b, -10, 50)) as released. pi is drawn once per batch, the
    concrete relaxation of z at ``temperature`` once per example.

    Args:
        num_units: The number of units.
        concentration: The prior's shape; a small one favours few kept units.
        temperature: Of the relaxation of z; towards 0 its draws tend to zeros and ones.
        raw_a: Where every unit's ``raw_a`` starts.

    Raises:
        RangeError: If a number is not positive or finite.

    Examples:
        >>> from nestling.distributions import BetaBernoulli
        >>> gate = BetaBernoulli(5)
        >>> z = gate.sample(torch.zeros(7, 5))
        >>> tuple(z.shape), bool(((0 <= z) & (z <= 1)).all()), gate.kl().ndim
        ((7, 5), True, 0)
    """

    default_threshold = 1e-2

    def __init__(
        self, num_units: int, *, concentration: float = 1e-4, temperature: float = 0.1, raw_a: float = -1.0
    ) -> None:
        super().__init__(num_units, temperature)
        self.concentration = positive_number("concentration", concentration)
        self.raw_a = nn.Parameter(torch.full((num_units,), finite_number("raw_a", raw_a)))
        self.raw_b = nn.Parameter(torch.full((num_units,), SOFTPLUS_OF_ONE))

    def a(self) -> Tensor:
        """First shape of the posterior."""
        return F.softplus(within(self.raw_a, -10, math.inf))

    def b(self) -> Tensor:
        """Second shape of the posterior."""
        return F.softplus(within(self.raw_b, -10, 50))

    def sample_log_pi(self, generator: torch.Generator | None = None) -> Tensor:
        """Logarithm of one draw (num_units,) of the keep probabilities."""
        return kumaraswamy_log_sample(self.a(), self.b(), generator)

    def sample(self, features: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Relaxed Bernoulli multipliers (batch, num_units)."""
        unit_features(features, self.num_units)
        log_pi = self.sample_log_pi(generator)
        return relaxed_bernoulli(log_pi, logistic_noise(features, generator), self.temperature)

    def expectation(self, features: Tensor) -> Tensor:
        """E[pi] (num_units,)."""
        return self.mean()

    def mean(self) -> Tensor:
        """E[pi] (num_units,), the same for every input."""
        return kumaraswamy_mean(self.a(), self.b())

    def kl(self) -> Tensor:
        """KL(Kumaraswamy(a, b) || Beta(c, 1)), summed."""
        return kumaraswamy_beta_kl(self.a(), self.b(), self.concentration).sum()

    def signal_to_noise(self) -> Tensor:
        """sqrt(pi / (1 - pi)) (num_units,) at the mean of pi."""
        return torch.sqrt(self.mean() / (1 - self.mean()))

    def keep(self, threshold: float | None = None) -> Tensor:
        """E[pi] above the threshold: 1e-2 in the paper (erratum E35), 1e-3 in its code."""
        return self.mean() > (self.default_threshold if threshold is None else threshold)


def kumaraswamy_mean(a: Tensor, b: Tensor) -> Tensor:
    """E[pi] = b B(1 + 1/a, b) of pi ~ Kumaraswamy(a, b) (BB eq. 14).

    Args:
        a: The first shape, above zero.
        b: The second one, broadcastable to the first.

    Returns:
        The mean of each entry, between 0 and 1.

    Examples:
        >>> from nestling.distributions import kumaraswamy_mean
        >>> round(kumaraswamy_mean(torch.tensor(1.0), torch.tensor(1.0)).item(), 4)  # uniform
        0.5
    """
    return torch.exp(b.log() + log_beta(1 + 1 / a, b))


def kumaraswamy_log_sample(a: Tensor, b: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """log pi of pi = (1 - u^(1/b))^(1/a), with -log u drawn directly so that nothing rounds to 0 or 1.

    For small b, pi can be closer to 1 than floats resolve even in logarithms: it is clamped where the logit is finite.
    """
    info = torch.finfo(b.dtype)
    return (log1mexp(-exponential_noise(b, generator) / b) / a).clamp_max(-info.tiny / info.eps)


def relaxed_bernoulli(log_prob: Tensor, logistic: Tensor, temperature: float) -> Tensor:
    """Concrete relaxation sigmoid((logit p + logit u) / temperature) of a Bernoulli, by log p and logit u (eq. 15)."""
    return torch.sigmoid((logit_from_log(log_prob) + logistic) / temperature)
