"""Standard noise in the shape, dtype and device of a tensor, from an explicit generator or torch's own seeded state."""

import torch
from torch import Tensor


def exponential_noise(like: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Exp(1) noise, never exactly zero, so that its logarithm is finite."""
    noise = torch.empty(like.shape, dtype=like.dtype, device=like.device).exponential_(generator=generator)
    return noise.clamp_min_(torch.finfo(like.dtype).tiny)


def gumbel_noise(like: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Standard Gumbel noise."""
    return -exponential_noise(like, generator).log_()


def logistic_noise(like: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Standard logistic noise, the logit of a uniform variable: the difference of two Gumbels."""
    return gumbel_noise(like, generator) - gumbel_noise(like, generator)


def normal_noise(like: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Standard normal noise."""
    return torch.randn(like.shape, dtype=like.dtype, device=like.device, generator=generator)


def uniform_noise(like: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Uniform noise on [0, 1)."""
    return torch.rand(like.shape, dtype=like.dtype, device=like.device, generator=generator)
