"""Closed forms of Gaussians that are independent of each other, each by its mean and its variance."""

import math

import torch
from torch import Tensor

Pair = tuple[Tensor, Tensor]
"""The means and the variances of some elements."""
_DENSITY = 0.5 / math.sqrt(math.pi)
"""What makes the density of ``_above_zero`` one."""


def rectified(mean: Tensor, variance: Tensor) -> Pair:
    """ReLU of each element: exact mean and variance."""
    above, density, spread = _above_zero(mean, variance)
    first = torch.mul(mean, above).addcmul_(spread, density, value=_DENSITY)
    # E x^2 - (E x)^2 with E x^2 = variance * above + mean * E x
    return first, torch.mul(variance, above).addcmul_(mean - first, first).clamp_min_(0)


def largest(parts: list[Pair]) -> Pair:
    """The largest of several, two at a time."""
    while len(parts) > 1:
        odd = parts[len(parts) // 2 * 2 :]
        parts = [_larger(*pair) for pair in zip(parts[::2], parts[1::2], strict=False)] + odd
    return parts[0]


def _larger(one: Pair, other: Pair) -> Pair:
    """The larger of two independent Gaussians (Clark 1961): exact mean and variance."""
    (mean, variance), (base, varied) = one, other
    apart = mean - base
    first, density, spread = _above_zero(apart, variance + varied)
    # around the mean of the second, so that nothing large cancels
    gain = torch.mul(apart, first).addcmul_(spread, density, value=_DENSITY)
    square = torch.addcmul(varied, variance - varied, first)
    square.addcmul_(apart, gain).addcmul_(gain, gain, value=-1)
    return base + gain, square.clamp_min_(0)


def _above_zero(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """That a Gaussian is above zero: its probability; the density at zero but for constants; and root 2 times the std.

    The mean of what is above zero is mean * probability + ``_DENSITY`` * spread * density.
    """
    spread = variance.clamp_min(torch.finfo(variance.dtype).tiny).sqrt_().mul_(math.sqrt(2))
    ratio = mean / spread
    density = ratio.square().neg_().exp_()
    return ratio.erf_().mul_(0.5).add_(0.5), density, spread
