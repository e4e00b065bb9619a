"""Weight posteriors: moments of their samples, conversion between their two scales, bounds and gradients."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import gradcheck

from nestling.distributions import (
    LOG_ALPHA_BOUNDS,
    AdditiveGaussian,
    MultiplicativeGaussian,
    WeightPosterior,
    log_uniform_kl,
    to_log_alpha,
    to_log_sigma2,
)
from nestling.errors import DtypeError, NonFiniteError, ShapeError

F32, F64 = torch.float32, torch.float64
KINDS = pytest.mark.parametrize("kind", [MultiplicativeGaussian, AdditiveGaussian])


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def tensor(values, dtype=F64) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype)


MEANS = [0.5, -2.0, 1e-3, 3.0]
SCALES = [-1.0, 0.7, -4.0, 2.0]


def true_variance(kind: type[WeightPosterior]) -> list[float]:
    if kind is MultiplicativeGaussian:
        return [math.exp(s) * m**2 for m, s in zip(MEANS, SCALES, strict=True)]
    return [math.exp(s) for s in SCALES]


@KINDS
def test_moments_of_samples_are_those_of_the_closed_form(kind):
    """10^5 draws: means within 5 standard errors, variances within 5 of theirs, var sqrt(2 / n)."""
    posterior = kind(tensor(MEANS), tensor(SCALES))
    variance = tensor(true_variance(kind))
    assert torch.allclose(posterior.variance(), variance, rtol=1e-14, atol=0)
    assert torch.allclose(posterior.std(), variance.sqrt(), rtol=1e-14, atol=0)
    draws = posterior.sample((100_000,), seeded(1))
    assert draws.shape == (100_000, 4)
    assert ((draws.mean(0) - tensor(MEANS)).abs() < 5 * (variance / 100_000).sqrt()).all()
    assert ((draws.var(0) / variance - 1).abs() < 5 * math.sqrt(2 / 100_000)).all()
    third = ((draws - posterior.mean) / posterior.std()).pow(3).mean(0)
    assert (third.abs() < 5 * math.sqrt(15 / 100_000)).all()


@KINDS
def test_drop_rate_is_the_rate_of_the_dropout_with_the_same_noise(kind):
    """Dropout at rate p multiplies by noise of variance p / (1 - p); here that is variance / mean^2 = alpha."""
    posterior = kind(tensor(MEANS), tensor(SCALES))
    rate = posterior.drop_rate()
    alpha = [v / m**2 for v, m in zip(true_variance(kind), MEANS, strict=True)]
    assert (rate / (1 - rate)).tolist() == pytest.approx(alpha, rel=1e-8)
    assert torch.sigmoid(tensor(3.0)).item() == pytest.approx(0.9526, abs=5e-5)  # the pruning threshold of sparse VD


def test_the_two_parameterisations_are_one_distribution():
    mean, log_alpha = tensor(MEANS), tensor(SCALES)
    multiplicative = MultiplicativeGaussian(mean, log_alpha)
    additive = AdditiveGaussian(mean, to_log_sigma2(mean, log_alpha))
    assert torch.allclose(multiplicative.variance(), additive.variance(), rtol=1e-14, atol=0)
    assert torch.allclose(multiplicative.bounded_log_alpha(), additive.bounded_log_alpha(), rtol=0, atol=1e-14)
    assert torch.allclose(multiplicative.drop_rate(), additive.drop_rate(), rtol=1e-14, atol=0)


def test_conversion_against_its_definition():
    for weight in (1e-20, -1e-3, 40.0):
        log_square = 2 * math.log(abs(weight))
        assert to_log_sigma2(tensor(weight), tensor(-1.0)).item() == pytest.approx(-1 + log_square, abs=1e-13)
        assert to_log_alpha(tensor(weight), tensor(-1.0)).item() == pytest.approx(-1 - log_square, abs=1e-13)
    assert to_log_sigma2(tensor(-0.5), tensor(2.0)).item() == pytest.approx(math.log(math.exp(2.0) * 0.25), abs=1e-15)
    assert to_log_alpha(tensor(-0.5), tensor(2.0)).item() == pytest.approx(math.log(math.exp(2.0) / 0.25), abs=1e-15)


weights = st.floats(1e-30, 1e30).flatmap(lambda w: st.sampled_from([w, -w]))


@given(weights, st.floats(-60, 60))
def test_conversion_there_and_back_is_exact_to_rounding(weight, log_alpha):
    """Two roundings of numbers up to 200: 6e-14."""
    mean = tensor(weight)
    assert to_log_alpha(mean, to_log_sigma2(mean, tensor(log_alpha))).item() == pytest.approx(log_alpha, abs=6e-14)
    assert to_log_sigma2(mean, to_log_alpha(mean, tensor(log_alpha))).item() == pytest.approx(log_alpha, abs=6e-14)


@pytest.mark.parametrize("dtype", [F32, F64])
@pytest.mark.parametrize("weight", [0.0, -0.0, 1e-45, 1e-38, -1e-30])
def test_a_weight_of_zero_is_finite_with_finite_gradients(weight, dtype):
    for kind in (MultiplicativeGaussian, AdditiveGaussian):
        posterior = kind(torch.nn.Parameter(tensor([weight], dtype)), torch.nn.Parameter(tensor([-5.0], dtype)))
        log_alpha = posterior.bounded_log_alpha()
        assert LOG_ALPHA_BOUNDS[0] <= log_alpha.item() <= LOG_ALPHA_BOUNDS[1]
        total = log_uniform_kl(log_alpha).sum() + posterior.sample((3,), seeded(2)).sum() + posterior.variance().sum()
        total.backward()
        assert total.isfinite()
        assert all(p.grad.isfinite().all() for p in posterior.parameters())
    for convert in (to_log_alpha, to_log_sigma2):
        mean = tensor([weight], dtype).requires_grad_()
        value = convert(mean, tensor([0.0], dtype))
        (grad,) = torch.autograd.grad(value.sum(), mean)
        assert value.isfinite().all()
        assert grad.isfinite().all()


def test_a_weight_of_zero_under_additive_noise_counts_as_pure_noise():
    posterior = AdditiveGaussian(tensor([0.0]), tensor([-10.0]))
    assert posterior.bounded_log_alpha().item() == LOG_ALPHA_BOUNDS[1]
    assert posterior.drop_rate().item() == pytest.approx(1, abs=1e-8)
    assert posterior.variance().item() == pytest.approx(math.exp(-10), rel=1e-14)


@pytest.mark.parametrize("kind", [MultiplicativeGaussian, AdditiveGaussian])
@pytest.mark.parametrize(("scale", "bound"), [(-60.0, -20.0), (60.0, 20.0)])
def test_log_alpha_is_read_within_its_bounds_and_has_no_gradient_past_them(kind, scale, bound):
    assert LOG_ALPHA_BOUNDS == (-20.0, 20.0)
    posterior = kind(tensor([1.0]), torch.nn.Parameter(tensor([scale])))
    log_alpha = posterior.bounded_log_alpha()
    assert log_alpha.item() == bound
    log_alpha.sum().backward()
    (parameter,) = posterior.parameters()
    assert parameter.grad.item() == 0
    assert parameter.item() == scale  # read within the bounds, not overwritten


def test_bounds_hold_the_variance_of_multiplicative_noise_only():
    assert MultiplicativeGaussian(tensor([2.0]), tensor([60.0])).variance().item() == pytest.approx(4 * math.exp(20))
    assert AdditiveGaussian(tensor([2.0]), tensor([60.0])).variance().item() == pytest.approx(math.exp(60))


@KINDS
def test_a_scale_may_be_shared(kind):
    mean = torch.randn(3, 4, dtype=F64, generator=seeded(3))
    for scale in (tensor(-1.0), tensor([-1.0]), torch.full((4,), -1.0, dtype=F64), torch.full((3, 1), -1.0, dtype=F64)):
        posterior, whole = kind(mean, scale), kind(mean, torch.full_like(mean, -1.0))
        for shared, own in (
            (posterior.variance(), whole.variance()),
            (posterior.std(), whole.std()),
            (posterior.bounded_log_alpha().expand_as(mean), whole.bounded_log_alpha()),
            (posterior.sample((2,), seeded(4)), whole.sample((2,), seeded(4))),
        ):
            assert shared.shape == own.shape
            assert torch.allclose(shared, own, rtol=1e-15, atol=0)


@KINDS
def test_gradcheck(kind):
    mean, scale = tensor(MEANS).requires_grad_(), tensor(SCALES).requires_grad_()
    for of in (
        lambda p: p.sample((2,), seeded(5)),
        lambda p: p.variance(),
        lambda p: p.std(),
        lambda p: p.drop_rate(),
        lambda p: log_uniform_kl(p.bounded_log_alpha()),
    ):
        assert gradcheck(lambda m, s, of=of: of(kind(m, s)), (mean, scale))


def test_samples_are_reproducible_and_of_the_dtype_of_the_mean():
    for dtype in (F32, F64):
        posterior = MultiplicativeGaussian(tensor(MEANS, dtype), tensor(SCALES, dtype))
        draws = posterior.sample((5, 2), seeded(6))
        assert draws.shape == (5, 2, 4)
        assert draws.dtype == dtype
        assert torch.equal(draws, posterior.sample((5, 2), seeded(6)))
        assert posterior.sample().shape == (4,)


def test_errors_name_the_scale():
    with pytest.raises(ShapeError, match=r"log_alpha: got shape \(2,\) for a mean of shape \(3,\)"):
        MultiplicativeGaussian(torch.zeros(3), torch.zeros(2))
    with pytest.raises(ShapeError, match=r"log_sigma2: got shape \(2, 3\) for a mean of shape \(3,\)"):
        AdditiveGaussian(torch.zeros(3), torch.zeros(2, 3))
    with pytest.raises(ShapeError, match="broadcastable to the mean"):
        AdditiveGaussian(torch.zeros(()), torch.zeros(1))
    with pytest.raises(DtypeError, match=r"mean: got a tensor of torch.int64"):
        AdditiveGaussian(torch.ones(3, dtype=torch.long), torch.zeros(3))
    with pytest.raises(NonFiniteError, match=r"log_sigma2: got 1 of 3 entries NaN"):
        AdditiveGaussian(torch.ones(3), tensor([0.0, math.nan, 0.0], F32))
    with pytest.raises(DtypeError, match=r"mean: got a tensor of torch.int64"):
        to_log_alpha(torch.tensor([1]), torch.tensor([0.0]))
