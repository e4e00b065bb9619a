"""Sums of divergences over many weights, in pieces and with their gradients at once; noise that follows a layout."""

import math

import pytest
import torch

from nestling.distributions import (
    bn3_refitted_regulariser,
    bn3_regulariser,
    hierarchical_kl,
    log_uniform_kl,
    molchanov_kl,
)
from nestling.distributions.layout import axes_in_memory, flat_in_memory, laid_out_as
from nestling.distributions.noise import normal_noise
from nestling.distributions.totals import total

DIVERGENCES = [log_uniform_kl, molchanov_kl, bn3_regulariser, bn3_refitted_regulariser, hierarchical_kl]
SHAPES = {
    "plain": lambda: torch.randn(70, 40, 5, 5),  # more than one piece
    "channels last": lambda: torch.randn(70, 40, 5, 5).to(memory_format=torch.channels_last),
    "one channel": lambda: torch.randn(4, 1, 3, 3).to(memory_format=torch.channels_last),
    "part of a tensor": lambda: torch.randn(20, 30)[:7, :11],
    "turned": lambda: torch.randn(20, 30).T,
    "one scale for all": lambda: torch.randn(()).expand(6, 5),
    "one scale a row": lambda: torch.randn(6, 1).expand(6, 5),
    "a number": lambda: torch.randn(()),
    "nothing": lambda: torch.randn(0, 3),
}


@pytest.mark.parametrize("divergence", DIVERGENCES, ids=lambda own: own.__name__)
@pytest.mark.parametrize("make", SHAPES.values(), ids=SHAPES)
def test_a_total_is_the_sum_with_its_gradient(make, divergence):
    torch.manual_seed(1)
    log_alpha = (4 * make().double()).requires_grad_()
    weight = torch.tensor(0.3, dtype=torch.float64)
    found = total(divergence, log_alpha)
    expected = divergence(log_alpha).sum()
    assert torch.allclose(found, expected, rtol=1e-12, atol=1e-12)
    gradients = (torch.autograd.grad(weight * value, log_alpha)[0] for value in (found, expected))
    assert torch.allclose(*gradients, rtol=1e-12, atol=1e-12)
    with torch.no_grad():
        assert torch.equal(total(divergence, log_alpha), found)


def test_a_graph_that_is_kept_gives_its_gradient_again():
    log_alpha = (3 * torch.randn(4, 5)).requires_grad_()
    found = total(log_uniform_kl, log_alpha)
    first, second = (
        torch.autograd.grad(found, log_alpha, scale, retain_graph=True)[0] for scale in torch.tensor([1.0, 2.0])
    )
    assert torch.equal(2 * first, second)


@pytest.mark.parametrize("divergence", DIVERGENCES, ids=lambda own: own.__name__)
def test_what_is_past_the_bounds_counts_as_if_at_them_and_has_no_gradient(divergence):
    log_alpha = torch.tensor([-9.0, -3.0, 0.5, 3.0, 8.0], dtype=torch.float64, requires_grad=True)
    found = total(divergence, log_alpha, (-4.0, 4.0))
    expected = divergence(log_alpha.clamp(-4.0, 4.0)).sum()
    assert torch.allclose(found, expected, rtol=1e-12)
    gradients = (torch.autograd.grad(value, log_alpha)[0] for value in (found, expected))
    assert torch.allclose(*gradients, rtol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_total_in_less_than_double_precision(dtype):
    torch.manual_seed(2)
    log_alpha = (4 * torch.randn(100_000)).to(dtype).requires_grad_()
    exact = log_alpha.detach().double().requires_grad_()
    found, expected = total(log_uniform_kl, log_alpha), log_uniform_kl(exact).sum()
    assert abs(float(found.detach()) / float(expected.detach()) - 1) < 1e-6
    own, true = torch.autograd.grad(found, log_alpha)[0], torch.autograd.grad(expected, exact)[0]
    assert own.dtype == dtype
    assert (own.double() - true).abs().max() < (2e-6 if dtype == torch.float32 else 4e-3)


def test_numbers_that_are_none_stay_so():
    """They are not taken for a place in the table."""
    found = log_uniform_kl(torch.tensor([math.nan, -math.inf, math.inf, -1e30, 1e30, 25.0, -25.0]))
    assert found[0].isnan()
    assert found[1] == math.inf
    assert (found[[2, 4, 5]].abs() < 1e-8).all()
    assert found[3] > 1e29
    assert abs(float(found[6]) - float(log_uniform_kl(torch.tensor(-25.0, dtype=torch.float64)))) < 4e-6


@pytest.mark.parametrize("make", SHAPES.values(), ids=SHAPES)
def test_flat_elements_are_those_of_the_tensor(make):
    tensor = make()
    flat = flat_in_memory(tensor)
    assert torch.equal(flat.sort().values, tensor.reshape(-1).sort().values)


def test_noise_is_laid_out_as_the_tensor_is():
    like = torch.empty(8, 5, 7, 6).to(memory_format=torch.channels_last)
    torch.manual_seed(3)
    noise = normal_noise(like)
    assert noise.stride() == like.stride()
    assert axes_in_memory(like) == [0, 2, 3, 1]
    torch.manual_seed(3)
    assert torch.equal(noise.permute(0, 2, 3, 1), torch.randn(8, 7, 6, 5))
    plain = normal_noise(like.contiguous(), torch.Generator().manual_seed(3))
    assert torch.equal(plain, torch.randn(8, 5, 7, 6, generator=torch.Generator().manual_seed(3)))
    assert normal_noise(torch.empty(5).expand(3, 5)).is_contiguous()


def test_a_gradient_takes_the_layout_of_its_tensor():
    tensor = torch.randn(4, 3, 2, 2).to(memory_format=torch.channels_last)
    gradient = torch.randn(4, 3, 2, 2)
    found = laid_out_as(tensor, gradient)
    assert torch.equal(found, gradient)
    assert found.stride() == tensor.stride()
    assert laid_out_as(tensor, tensor) is tensor
