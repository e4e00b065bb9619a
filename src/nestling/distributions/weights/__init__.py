"""Weight posteriors: a Gaussian over each weight, N(theta, alpha theta^2)."""

from nestling.distributions.options import PosteriorName, Sampling
from nestling.distributions.weights.gaussian import AdditiveGaussian, MultiplicativeGaussian, NaturalGaussian
from nestling.distributions.weights.posterior import (
    LOG_ALPHA_BOUNDS,
    WeightPosterior,
    Worked,
    to_log_alpha,
    to_log_sigma2,
)

POSTERIORS: dict[str, type[WeightPosterior]] = {"gaussian": MultiplicativeGaussian, "ivon": NaturalGaussian}
"""The posteriors that ``nest`` can give weights, by name."""

__all__ = [
    "LOG_ALPHA_BOUNDS",
    "POSTERIORS",
    "AdditiveGaussian",
    "MultiplicativeGaussian",
    "NaturalGaussian",
    "PosteriorName",
    "Sampling",
    "WeightPosterior",
    "Worked",
    "to_log_alpha",
    "to_log_sigma2",
]
