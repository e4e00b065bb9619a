"""Nothing is inf or nan, in value or gradient, for log alpha and logits to 60, temperatures to 1e3 and K to 4,096."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from nestling.distributions import (
    AdditiveGaussian,
    BernoulliChain,
    BetaBernoulli,
    ConcreteGate,
    DependentBetaBernoulli,
    Downhill,
    GaussianGate,
    Geometric,
    LogNormalGate,
    MultiplicativeGaussian,
    Uniform,
    bernoulli_kl,
    bn3_refitted_regulariser,
    bn3_regulariser,
    expected_loss,
    gaussian_kl,
    hierarchical_kl,
    kl,
    log_uniform_kl,
    molchanov_kl,
)

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
TEMPERATURES = (1e-3, 0.05, 1.0, 30.0, 1e3)
SIZES = (1, 2, 33, 4096)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def assert_finite(value: Tensor, *parameters: Tensor) -> None:
    """Value, and the gradient of its sum with respect to each parameter that it depends on."""
    assert value.isfinite().all()
    grads = torch.autograd.grad(value.sum(), parameters, allow_unused=True, retain_graph=True)
    assert any(g is not None for g in grads) or not parameters
    assert all(g is None or g.isfinite().all() for g in grads)


@DTYPES
@pytest.mark.parametrize(
    "function",
    [log_uniform_kl, molchanov_kl, bn3_regulariser, bn3_refitted_regulariser, hierarchical_kl],
    ids=lambda f: f.__name__,
)
def test_divergences_of_log_alpha(function, dtype):
    log_alpha = torch.linspace(-60, 60, 4801, dtype=dtype).requires_grad_()
    assert_finite(function(log_alpha), log_alpha)


@DTYPES
def test_other_divergences(dtype):
    wide = torch.linspace(-60, 60, 481, dtype=dtype).requires_grad_()
    for prior in (1e-6, 0.5, 1 - 1e-6):
        assert_finite(bernoulli_kl(wide, prior), wide)
    assert_finite(gaussian_kl(torch.zeros_like(wide), wide, 2.0), wide)


@DTYPES
def test_weight_posteriors(dtype):
    means = torch.tensor([0.0, 1e-30, -1e-3, 1.0, 1e3], dtype=dtype)[:, None].expand(5, 121).clone()
    scales = torch.linspace(-60, 60, 121, dtype=dtype).expand(5, 121).clone()
    for kind in (MultiplicativeGaussian, AdditiveGaussian):
        mean, scale = means.clone().requires_grad_(), scales.clone().requires_grad_()
        posterior = kind(mean, scale)
        assert_finite(posterior.variance(), mean, scale)
        assert_finite(posterior.std(), mean, scale)
        assert_finite(posterior.sample((2,), seeded(0)), mean, scale)
        assert_finite(posterior.drop_rate(), mean, scale)
        assert_finite(log_uniform_kl(posterior.bounded_log_alpha()), mean, scale)


def shapes_of_logits(size: int, dtype: torch.dtype) -> dict[str, Tensor]:
    free = size - 1
    signs = torch.ones(free, dtype=dtype)
    signs[::2] = -1
    return {
        "high": torch.full((free,), 60.0, dtype=dtype),
        "low": torch.full((free,), -60.0, dtype=dtype),
        "even": torch.zeros(free, dtype=dtype),
        "zigzag": 60 * signs,
        "ramp": torch.linspace(60, -60, free, dtype=dtype),
    }


@DTYPES
@pytest.mark.parametrize("size", SIZES)
def test_orders(size, dtype):
    """Also that each is a distribution: float32 sums of 4,096 terms hold to 1e-5."""
    for name, logits in shapes_of_logits(size, dtype).items():
        logits = logits.requires_grad_()
        order = Downhill(logits)
        for value in (order.log_probs(), order.keep_probs(), order.expected_width(), order.entropy()):
            assert_finite(value, logits)
        for prior in (
            Uniform(size, dtype=dtype),
            Geometric(size, 0.95, dtype=dtype),
            BernoulliChain(logits=logits.detach()),
        ):
            assert_finite(kl(order, prior), logits)
        assert order.log_probs().exp().sum().item() == pytest.approx(1, abs=1e-5), name
        keep = order.keep_probs()
        assert (keep.diff() <= 0).all()
        assert keep[0] == 1
        widths = order.sample((20,), seeded(1))
        assert ((widths >= 1) & (widths <= size)).all()
        assert_finite(order.log_prob(widths), logits)


@DTYPES
@pytest.mark.parametrize("size", SIZES)
def test_relaxed_masks_and_their_density(size, dtype):
    slope = torch.linspace(1, 0, size + 1, dtype=dtype)[:-1].requires_grad_()
    for temperature, logits in itertools.product(TEMPERATURES, shapes_of_logits(size, dtype).values()):
        logits = logits.requires_grad_()
        order = Downhill(logits, temperature=temperature)
        for hard in (False, True):
            masks = order.rsample((3,), seeded(2), hard=hard)
            assert_finite(masks, logits)
            assert ((masks >= 0) & (masks <= 1)).all()
        assert_finite(order.log_density(slope), logits, slope)


@DTYPES
def test_estimators_at_the_largest_size(dtype):
    for logits in shapes_of_logits(4096, dtype).values():
        logits = logits.requires_grad_()
        order = Downhill(logits, temperature=1e-3)
        for estimator in ("leave_one_out", "straight_through", "relaxed"):
            loss = expected_loss(order, lambda m: m.mean(-1).square(), estimator=estimator, generator=seeded(3))
            assert_finite(loss, logits)


@DTYPES
def test_beta_bernoulli_over_the_whole_range_of_its_parameters(dtype):
    """raw b = -10 takes pi within exp(-20,000) of one, which neither its logit nor its gradient may turn into nan."""
    raw_a, raw_b = torch.meshgrid(*[torch.linspace(-60, 60, 41, dtype=dtype)] * 2, indexing="ij")
    for temperature in TEMPERATURES:
        gate = BetaBernoulli(raw_a.numel(), temperature=temperature).to(dtype)
        with torch.no_grad():
            gate.raw_a.copy_(raw_a.flatten())
            gate.raw_b.copy_(raw_b.flatten())
        for wrapped in (gate, DependentBetaBernoulli(gate)):
            parameters = list(wrapped.parameters())
            features = torch.randn(4, gate.num_units, dtype=dtype, generator=seeded(4)) * 100
            assert_finite(wrapped.sample(features, seeded(5)), *parameters)
            assert_finite(wrapped.expectation(features), *parameters)
            assert_finite(wrapped.kl(), *parameters)
            assert wrapped.sample(features).min() >= 0
            assert wrapped.sample(features).max() <= 1


@DTYPES
def test_concrete_gate_over_the_range_of_its_logit(dtype):
    for temperature, drop_logit in itertools.product(TEMPERATURES, (-60.0, -5.0, 0.0, 5.0, 60.0)):
        gate = ConcreteGate(50, temperature=temperature).to(dtype)
        with torch.no_grad():
            gate.drop_logit.fill_(drop_logit)
        features = torch.zeros(20, 50, dtype=dtype)
        assert_finite(gate.sample(features, seeded(6)), gate.drop_logit)
        assert_finite(gate.kl(), gate.drop_logit)


@DTYPES
def test_gaussian_and_log_normal_gates_over_the_whole_range_of_their_parameters(dtype):
    first, second = torch.meshgrid(*[torch.linspace(-60, 60, 121, dtype=dtype)] * 2, indexing="ij")
    features = torch.zeros(2, first.numel(), dtype=dtype)
    gaussian, log_normal = GaussianGate(first.numel()).to(dtype), LogNormalGate(first.numel()).to(dtype)
    with torch.no_grad():
        gaussian.posterior.mean.copy_(first.flatten())
        gaussian.posterior.log_sigma2.copy_(second.flatten())
        log_normal.raw_mu.copy_(first.flatten() / 2 - 10)
        log_normal.raw_log_std.copy_(second.flatten())
    for gate in (gaussian, log_normal):
        parameters = list(gate.parameters())
        assert_finite(gate.sample(features, seeded(7)), *parameters)
        assert_finite(gate.expectation(features), *parameters)
        assert_finite(gate.kl(), *parameters)
    assert_finite(log_normal.signal_to_noise(), *log_normal.parameters())


logit_lists = st.lists(st.floats(-60, 60, width=32), min_size=1, max_size=40)


@given(
    logit_lists,
    st.floats(-3, 3),
    st.integers(1, 3),
    st.sampled_from([torch.float32, torch.float64]),
    st.integers(0, 99),
)
def test_any_downhill_order(values, log_temperature, num_always, dtype, seed):
    logits = torch.tensor(values, dtype=dtype, requires_grad=True)
    order = Downhill(logits, temperature=10**log_temperature, num_always=num_always)
    for value in (order.log_probs(), order.keep_probs(), order.entropy(), order.rsample((2,), seeded(seed))):
        assert_finite(value, logits)
    assert_finite(kl(order, Geometric(order.num_blocks, 0.5, num_always=num_always, dtype=dtype)), logits)
