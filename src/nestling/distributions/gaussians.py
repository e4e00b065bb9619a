"""Closed forms for functions of independent Gaussians, each of which is given by its mean and its variance.

A function comes with its slopes, the means of its derivatives: they say how its mean changes with a small shift of an
input's mean, and are the best linear fit to the function for such inputs.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

Pair = tuple[Tensor, Tensor]
"""The means and the variances of some elements."""
_LOG_DENSITY = math.log(0.5 / math.sqrt(math.pi))
"""The logarithm of the density at zero of a Gaussian whose sqrt(2) times its std is 1 / sqrt(2), halved."""


class Sloped(NamedTuple):
    """The mean and the variance of a function of some elements, and its slope for the mean of each element."""

    mean: Tensor
    variance: Tensor
    slopes: list[Tensor]

    def left_over(self, variances: list[Tensor]) -> Tensor:
        """The variance that a linear function with these slopes does not explain, given the elements' variances."""
        squares = [slope.square() for slope in self.slopes]
        remaining = torch.addcmul(self.variance, squares[0], variances[0], value=-1)
        for square, variance in zip(squares[1:], variances[1:], strict=True):
            remaining.addcmul_(square, variance, value=-1)
        return remaining.clamp_min_(0)


def rectified(mean: Tensor, variance: Tensor, std: Tensor | None = None) -> Sloped:
    """ReLU of each element, exactly; ``std`` is the root of twice the variance, if it is known already."""
    above, density, scaled_std = _above_zero(mean, variance, std)
    first = torch.mul(mean, above).addcmul_(scaled_std, density)
    # E x^2 - (E x)^2 with E x^2 = variance * above + mean * E x
    second = torch.mul(variance, above).addcmul_(mean - first, first).clamp_min_(0)
    return Sloped(first, second, [above])


def largest(parts: list[Pair]) -> Sloped:
    """The largest of several elements, two at a time: exact for two, whose maximum is then treated as a Gaussian."""
    remaining = [Sloped(mean, variance, []) for mean, variance in parts]
    while len(remaining) > 1:
        odd = remaining[len(remaining) // 2 * 2 :]
        remaining = [larger(*pair) for pair in zip(remaining[::2], remaining[1::2], strict=False)] + odd
    alone = remaining[0]
    return alone._replace(slopes=alone.slopes or [torch.ones_like(alone.mean)])


def larger(first: Sloped, second: Sloped, std: Tensor | None = None) -> Sloped:
    """The larger of two independent Gaussians (Clark 1961).

    ``std`` is the root of twice the variance of their difference, if it is known already.
    """
    difference = first.mean - second.mean
    variance = first.variance + second.variance if std is None else first.variance
    probability, density, scaled_std = _above_zero(difference, variance, std)
    # relative to the mean of the second, to avoid cancellation of large numbers
    gain = torch.mul(difference, probability).addcmul_(scaled_std, density)
    square = torch.addcmul(second.variance, first.variance - second.variance, probability)
    square.addcmul_(difference - gain, gain)
    slopes = [probability * slope for slope in first.slopes] or [probability]
    complement = 1 - probability
    slopes += [complement * slope for slope in second.slopes] or [complement]
    return Sloped(second.mean + gain, square.clamp_min_(0), slopes)


def _above_zero(mean: Tensor, variance: Tensor, scaled_std: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """The probability that a Gaussian is above zero, its density at zero up to a factor, and sqrt(2) times its std.

    The mean of its ReLU is mean * probability + scaled_std * density.
    """
    if scaled_std is None:
        scaled_std = variance.clamp_min(torch.finfo(variance.dtype).tiny).mul_(2).sqrt_()
    ratio = mean / scaled_std
    density = torch.sub(_LOG_DENSITY, ratio * ratio).exp_()
    return ratio.erf_().mul_(0.5).add_(0.5), density, scaled_std
