"""The Gaussian weight posterior by either scale: log alpha (noise in proportion to the weight) or log sigma^2."""

import torch
from torch import Tensor

from nestling.distributions.weights.posterior import LOG_ALPHA_BOUNDS, WeightPosterior, to_log_alpha


class MultiplicativeGaussian(WeightPosterior):
    """w = theta (1 + sqrt(alpha) eps) with log alpha free (BN3): read within the bounds, and no gradient past them."""

    log_alpha: Tensor

    def __init__(self, mean: Tensor, log_alpha: Tensor) -> None:
        super().__init__(mean, "log_alpha", log_alpha)

    def bounded_log_alpha(self) -> Tensor:
        """log alpha within its bounds."""
        return self.log_alpha.clamp(*LOG_ALPHA_BOUNDS)

    def variance(self) -> Tensor:
        """alpha theta^2."""
        return self.bounded_log_alpha().exp() * self.mean.square()

    def std(self) -> Tensor:
        """sqrt(alpha) |theta|."""
        return torch.exp(0.5 * self.bounded_log_alpha()) * self.mean.abs()


class AdditiveGaussian(WeightPosterior):
    """w = theta + sigma eps with log sigma^2 free (sparse VD): only the log alpha derived from it is bounded."""

    log_sigma2: Tensor

    def __init__(self, mean: Tensor, log_sigma2: Tensor) -> None:
        super().__init__(mean, "log_sigma2", log_sigma2)

    def bounded_log_alpha(self) -> Tensor:
        """log sigma^2 - log theta^2 within its bounds."""
        return to_log_alpha(self.mean, self.log_sigma2).clamp(*LOG_ALPHA_BOUNDS)

    def variance(self) -> Tensor:
        """sigma^2."""
        return self.log_sigma2.exp().expand_as(self.mean)

    def std(self) -> Tensor:
        """sigma."""
        return torch.exp(0.5 * self.log_sigma2).expand_as(self.mean)
