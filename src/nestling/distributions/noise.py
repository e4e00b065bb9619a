"""Standard noise in the shape, dtype and device of a tensor, from a generator on any device or torch's own state."""

import torch
from torch import Tensor

from nestling.distributions.layout import axes_in_memory


def exponential_noise(like: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Exp(1) noise, never exactly zero, so that its logarithm is finite."""
    noise = torch.empty(like.shape, dtype=like.dtype, device=_device(like, generator)).exponential_(generator=generator)
    return noise.clamp_min_(torch.finfo(like.dtype).tiny).to(like.device)


def gumbel_noise(like: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Standard Gumbel noise."""
    return -exponential_noise(like, generator).log_()


def logistic_noise(like: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Standard logistic noise, the logit of a uniform variable, drawn in no less than single precision.

    A zero counts as half the next number. Exponential noise would reach further into the tails, at six times the cost.
    """
    drawn = torch.promote_types(like.dtype, torch.float32)
    noise = torch.rand(like.shape, dtype=drawn, device=_device(like, generator), generator=generator)
    return noise.clamp_min_(torch.finfo(drawn).eps / 4).logit_().to(like)


def normal_noise(like: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Standard normal noise, its axes in memory in the order of the tensor's: channels that come last do so in both."""
    axes = axes_in_memory(like)
    shape = [like.shape[axis] for axis in axes]
    noise = torch.randn(shape, dtype=like.dtype, device=_device(like, generator), generator=generator)
    return noise.permute([axes.index(axis) for axis in range(like.ndim)]).to(like.device)


def uniform_noise(like: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Uniform noise on [0, 1)."""
    noise = torch.rand(like.shape, dtype=like.dtype, device=_device(like, generator), generator=generator)
    return noise.to(like.device)


def random_signs(like: Tensor) -> Tensor:
    """Plus or minus one, as likely."""
    return torch.randint(0, 2, like.shape, device=like.device).to(like.dtype).mul_(2).sub_(1)


def _device(like: Tensor, generator: torch.Generator | None) -> torch.device:
    """Where noise is drawn: where its generator is, so that one on the CPU gives the same numbers for any tensor."""
    return like.device if generator is None else generator.device
