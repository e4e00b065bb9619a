"""Closed forms of Gaussians that are independent of each other, each by its mean and its variance.

A function of them comes with its slopes, the means of its derivatives: what the function does to a small shift of a
mean, and the best line through it for inputs so distributed.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

Pair = tuple[Tensor, Tensor]
"""The means and the variances of some elements."""
_DENSITY = 0.5 / math.sqrt(math.pi)
"""What makes the density of ``_above_zero`` one."""


class Sloped(NamedTuple):
    """The mean and the variance of a function of some elements, and its slope in the mean of each of them."""

    mean: Tensor
    variance: Tensor
    slopes: list[Tensor]

    def left_over(self, variances: list[Tensor]) -> Tensor:
        """The variance that the slopes do not account for, given those of the elements."""
        squares = [slope.square() for slope in self.slopes]
        rest = torch.addcmul(self.variance, squares[0], variances[0], value=-1)
        for square, variance in zip(squares[1:], variances[1:], strict=True):
            rest.addcmul_(square, variance, value=-1)
        return rest.clamp_min_(0)


def rectified(mean: Tensor, variance: Tensor) -> Sloped:
    """ReLU of each element: exact."""
    above, density, spread = _above_zero(mean, variance)
    first = torch.mul(mean, above).addcmul_(spread, density, value=_DENSITY)
    # E x^2 - (E x)^2 with E x^2 = variance * above + mean * E x
    second = torch.mul(variance, above).addcmul_(mean - first, first).clamp_min_(0)
    return Sloped(first, second, [above])


def largest(parts: list[Pair]) -> Sloped:
    """The largest of several, two at a time: exact for two, each of which is taken for a Gaussian from there on."""
    found = [Sloped(mean, variance, []) for mean, variance in parts]
    while len(found) > 1:
        odd = found[len(found) // 2 * 2 :]
        found = [_larger(*pair) for pair in zip(found[::2], found[1::2], strict=False)] + odd
    alone = found[0]
    return alone._replace(slopes=alone.slopes or [torch.ones_like(alone.mean)])


def _larger(one: Sloped, other: Sloped) -> Sloped:
    """The larger of two independent Gaussians (Clark 1961)."""
    apart = one.mean - other.mean
    first, density, spread = _above_zero(apart, one.variance + other.variance)
    # around the mean of the second, so that nothing large cancels
    gain = torch.mul(apart, first).addcmul_(spread, density, value=_DENSITY)
    square = torch.addcmul(other.variance, one.variance - other.variance, first)
    square.addcmul_(apart, gain).addcmul_(gain, gain, value=-1)
    slopes = [first * own for own in one.slopes] or [first]
    rest = 1 - first
    return Sloped(other.mean + gain, square.clamp_min_(0), slopes + ([rest * own for own in other.slopes] or [rest]))


def _above_zero(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """That a Gaussian is above zero: its probability; the density at zero but for constants; and root 2 times the std.

    The mean of what is above zero is mean * probability + ``_DENSITY`` * spread * density.
    """
    spread = variance.clamp_min(torch.finfo(variance.dtype).tiny).mul_(2).sqrt_()
    ratio = mean / spread
    density = torch.addcmul(ratio.new_zeros(()), ratio, ratio, value=-1).exp_()
    return ratio.erf_().mul_(0.5).add_(0.5), density, spread
