"""Dependent beta-Bernoulli dropout: which units are kept depends on the input, within a learned beta-Bernoulli gate."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nestling.distributions.divergences import gaussian_kl
from nestling.distributions.gates.beta_bernoulli import SOFTPLUS_OF_ONE, BetaBernoulli, relaxed_bernoulli
from nestling.distributions.gates.gate import Gate
from nestling.distributions.noise import logistic_noise, normal_noise
from nestling.tensor_arguments import unit_features

PRIOR_STD = math.sqrt(5)
"""Standard deviation of the prior over beta, as released (the paper's text calls sqrt(10) a variance: erratum E36)."""


class DependentBetaBernoulli(Gate):
    """z ~ Bernoulli(pi phi(x)), phi(x) = clamp(gamma (x - mu) / sigma + beta, eps, 1 - eps), beta ~ N(eta, kappa^2).

    Training only the other parameters keeps pi fixed, as the paper's second stage does. x is detached and standardised
    by its running mean and variance.

    Args:
        gate: The beta-Bernoulli gate of the first stage.

    Examples:
        >>> from nestling.distributions import BetaBernoulli, DependentBetaBernoulli
        >>> gate = DependentBetaBernoulli(BetaBernoulli(5)).eval()
        >>> tuple(gate.keep_for(torch.randn(7, 5)).shape)  # each input keeps units of its own
        (7, 5)
    """

    eps = 1e-6
    momentum = 0.01

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, gate: BetaBernoulli) -> None:
        super().__init__(gate.num_units)
        like = gate.raw_a.detach()
        self.gate = gate
        self.gamma = nn.Parameter(torch.ones_like(like))
        self.eta = nn.Parameter(torch.ones_like(like))
        self.raw_kappa = nn.Parameter(torch.full_like(like, SOFTPLUS_OF_ONE))
        self.register_buffer("running_mean", torch.zeros_like(like))
        self.register_buffer("running_var", torch.ones_like(like))

    def sample(self, features: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Relaxed Bernoulli multipliers (batch, num_units) of the product of both probabilities (erratum E37)."""
        unit_features(features, self.num_units)
        if self.training:
            self.observe(features)
        beta = self.eta + self.kappa() * normal_noise(self.eta, generator)
        log_prob = self.gate.sample_log_pi(generator) + self.dependence(features, beta).log()
        return relaxed_bernoulli(log_prob, logistic_noise(log_prob, generator), self.gate.temperature)

    def expectation(self, features: Tensor) -> Tensor:
        """E[pi] phi(x) (batch, num_units), with beta at its mean."""
        return self.gate.mean() * self.dependence(features, self.eta)

    def dependence(self, features: Tensor, beta: Tensor) -> Tensor:
        """phi(x) (batch, num_units): the part of the keep probability that the input decides."""
        unit_features(features, self.num_units)
        scale = self.gamma * torch.rsqrt(self.running_var + self.eps)
        return (scale * (features.detach() - self.running_mean) + beta).clamp(self.eps, 1 - self.eps)

    @torch.no_grad()
    def observe(self, features: Tensor) -> None:
        """Move the running mean and variance a step towards those of ``features`` (batch, num_units)."""
        values = features.to(self.running_mean.dtype)  # under autocast ``features`` may be in half precision
        if len(values) > 1:
            self.running_var.lerp_(values.var(0), self.momentum)
        self.running_mean.lerp_(values.mean(0), self.momentum)

    def kappa(self) -> Tensor:
        """Standard deviation of beta."""
        return F.softplus(self.raw_kappa)

    def kl(self) -> Tensor:
        """KL of pi plus KL of beta against N(0, 5), summed."""
        return self.gate.kl() + gaussian_kl(self.eta, 2 * self.kappa().log(), PRIOR_STD).sum()

    def signal_to_noise(self) -> Tensor:
        """That of the first-stage gate (num_units,)."""
        return self.gate.signal_to_noise()

    def keep(self, threshold: float | None = None) -> Tensor:
        """Units that some input may keep: those of the first-stage gate."""
        return self.gate.keep(threshold)

    def keep_for(self, features: Tensor, threshold: float | None = None) -> Tensor:
        """Which units (batch, num_units) each input keeps."""
        return self.expectation(features) > (self.gate.default_threshold if threshold is None else threshold)
