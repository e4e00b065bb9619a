"""Weight posteriors: a Gaussian over each weight, N(theta, alpha theta^2)."""

from nestling.distributions.weights.gaussian import AdditiveGaussian, MultiplicativeGaussian, NaturalGaussian
from nestling.distributions.weights.posterior import (
    LOG_ALPHA_BOUNDS,
    WeightPosterior,
    Worked,
    to_log_alpha,
    to_log_sigma2,
)

__all__ = [
    "LOG_ALPHA_BOUNDS",
    "AdditiveGaussian",
    "MultiplicativeGaussian",
    "NaturalGaussian",
    "WeightPosterior",
    "Worked",
    "to_log_alpha",
    "to_log_sigma2",
]
