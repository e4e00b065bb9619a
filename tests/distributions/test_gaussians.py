"""Slopes of functions of Gaussians, against differences and draws; the functions themselves are in test_moments."""

import pytest
import torch

from nestling.distributions.gaussians import largest, rectified

F64 = torch.float64
STEP = 1e-6


def pairs(number):
    generator = torch.Generator().manual_seed(number)
    draw = lambda: torch.randn(50, dtype=F64, generator=generator)  # noqa: E731
    return [(draw(), draw().square() + 0.01) for _ in range(number)]


def test_the_slope_of_relu():
    ((mean, variance),) = pairs(1)
    difference = (rectified(mean + STEP, variance).mean - rectified(mean - STEP, variance).mean) / (2 * STEP)
    torch.testing.assert_close(rectified(mean, variance).slopes[0], difference, atol=1e-8, rtol=1e-6)


@pytest.mark.parametrize("number", [1, 2])
def test_the_slopes_of_the_largest_are_those_of_its_mean(number):
    parts = pairs(number)
    found = largest(parts)
    for place, (mean, variance) in enumerate(parts):
        ends = [largest([*parts[:place], (mean + step, variance), *parts[place + 1 :]]).mean for step in (STEP, -STEP)]
        torch.testing.assert_close(found.slopes[place], (ends[0] - ends[1]) / (2 * STEP), atol=1e-8, rtol=1e-6)


@pytest.mark.parametrize("number", [3, 4, 5, 9])
def test_the_slopes_of_the_largest_of_several_are_the_probabilities_that_each_is(number):
    """They add up to one. A larger of two is not a Gaussian, which costs a little where the variances are alike."""
    parts = [(mean, 0.5 + variance / 2) for mean, variance in pairs(number)]
    slopes = torch.stack(largest(parts).slopes)
    torch.testing.assert_close(slopes.sum(0), torch.ones(50, dtype=F64))
    noise = torch.randn(20_000, number, 50, dtype=F64, generator=torch.Generator().manual_seed(1))
    means, variances = (torch.stack(own) for own in zip(*parts, strict=True))
    chosen = (means + variances.sqrt() * noise).argmax(1)
    shares = torch.stack([(chosen == place).double().mean(0) for place in range(number)])
    assert (slopes - shares).abs().mean() < 0.02
