"""What every weight posterior N(theta, alpha theta^2) shares, whichever of its two scales is the free parameter."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from nestling.arguments import floating_tensor, real_tensor
from nestling.distributions.holding import hold
from nestling.distributions.noise import normal_noise
from nestling.errors import ShapeError

LOG_ALPHA_BOUNDS = (-20.0, 20.0)
"""log alpha is read within these bounds: past them a weight is a constant, or nothing but noise, in float32."""


class WeightPosterior(nn.Module, ABC):
    """A Gaussian over each weight with mean theta and variance alpha theta^2."""

    mean: Tensor

    def __init__(self, mean: Tensor, scale_name: str, scale: Tensor) -> None:
        super().__init__()
        real_tensor("mean", mean)
        real_tensor(scale_name, scale)
        if not _spreads_over(scale.shape, mean.shape):
            given = f"shape {tuple(scale.shape)} for a mean of shape {tuple(mean.shape)}"
            raise ShapeError(
                scale_name, given, "broadcastable to the mean", "Give one scale per weight, or one for all."
            )
        hold(self, "mean", mean)
        hold(self, scale_name, scale)

    @abstractmethod
    def bounded_log_alpha(self) -> Tensor:
        """log alpha within ``LOG_ALPHA_BOUNDS``, which divergences and keep decisions read."""

    @abstractmethod
    def variance(self) -> Tensor:
        """Variance of each weight."""

    @abstractmethod
    def std(self) -> Tensor:
        """Standard deviation of each weight."""

    def sample(self, shape: tuple[int, ...] = (), generator: torch.Generator | None = None) -> Tensor:
        """Draw weights (*shape, *mean.shape), differentiable in the parameters."""
        mean = self.mean.expand(*shape, *self.mean.shape)
        return mean + self.std() * normal_noise(mean, generator)

    def drop_rate(self) -> Tensor:
        """alpha / (1 + alpha): the rate of the dropout whose noise has the same strength."""
        return torch.sigmoid(self.bounded_log_alpha())


def to_log_sigma2(mean: Tensor, log_alpha: Tensor) -> Tensor:
    """log sigma^2 = log alpha + log theta^2, exact for any weight but zero (see ``_log_square``)."""
    return log_alpha + _log_square(mean)


def to_log_alpha(mean: Tensor, log_sigma2: Tensor) -> Tensor:
    """log alpha = log sigma^2 - log theta^2, exact for any weight but zero, and not yet held to any bounds."""
    return log_sigma2 - _log_square(mean)


def _log_square(mean: Tensor) -> Tensor:
    """log theta^2, which stops at the smallest normal number so that it is finite at zero, with zero gradient there."""
    return 2 * floating_tensor("mean", mean).abs().clamp_min(torch.finfo(mean.dtype).tiny).log()


def _spreads_over(shape: torch.Size, target: torch.Size) -> bool:
    tail = target[len(target) - len(shape) :]
    return len(shape) <= len(target) and all(size in (1, whole) for size, whole in zip(shape, tail, strict=True))
