"""The nested quantiser against its printed formula in exact arithmetic, nearest levels, and published optima."""

import math
from fractions import Fraction
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from torch.autograd import gradcheck
from torch.func import grad, vmap

from nestling.distributions import Downhill
from nestling.errors import ArgumentError, DtypeError, NonFiniteError, RangeError, ShapeError
from nestling.running.quantiser import (
    codes,
    dequantise,
    fitted_log_tau,
    initial_log_tau,
    levels,
    quantise,
    quantise_masked,
)

F32, F64 = torch.float32, torch.float64
PAIRS = (1, 2, 3, 4)
EACH_PAIRS = pytest.mark.parametrize("num_pairs", PAIRS)
EACH_HOW = pytest.mark.parametrize("how", ["straight_through", "sigmoid"])
LEVEL_SETS = {1: {-1, 0, 1}, 2: {-2, -1, 0, 1, 2}, 3: {-4, -2, -1, 0, 1, 2, 4}, 4: {-8, -4, -2, -1, 0, 1, 2, 4, 8}}
POSITIONS = st.lists(st.floats(-30, 30, width=32), min_size=1, max_size=40)


FEWER = settings(max_examples=20)


def printed(w: Fraction, tau: Fraction, num_pairs: int) -> Fraction:
    """FN3's S(w), steps kept in pairs and the offset taken over those that are kept (erratum E24)."""
    edges = sorted(LEVEL_SETS[num_pairs])
    steps = [(Fraction(high - low), Fraction(high + low, 2)) for low, high in pairwise(edges)]
    assert len(steps) == 2 * num_pairs
    total = Fraction(0)
    for height, threshold in steps:
        if tau * w - threshold > 0:
            total += height
    return (total - sum(height for height, _ in steps) / 2) / tau


def on_a_threshold(x: float) -> bool:
    return min(abs(abs(x) - edge) for edge in (0.5, 1.5, 3.0, 6.0)) < 1e-4


def randn(*shape, seed=0, dtype=F64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def tau_is(value, dtype=F64):
    return torch.tensor(math.log(value), dtype=dtype)


def inside(num_pairs, spread, count=200_000):
    """Weights that fill the levels of ``num_pairs`` evenly, for 1 / tau = ``spread``."""
    top = max(LEVEL_SETS[num_pairs]) * spread
    return (torch.arange(count, dtype=F64) + 0.5) / count * 2 * top - top


# Values


@EACH_PAIRS
def test_levels_are_those_of_the_paper_and_nested(num_pairs):
    assert levels(num_pairs) == tuple(sorted(LEVEL_SETS[num_pairs]))
    assert len(levels(num_pairs)) == 2 * num_pairs + 1
    assert set(levels(num_pairs)) <= set(levels(4))


@EACH_PAIRS
@FEWER
@given(positions=POSITIONS, tau=st.sampled_from([0.37, 1.0, 2.5, 1000.0]))
def test_values_are_those_of_the_printed_formula(num_pairs, positions, tau):
    kept = [x for x in positions if not on_a_threshold(x)]
    weight = torch.tensor(kept, dtype=F64) / tau
    exact = [float(printed(Fraction(w), Fraction(tau), num_pairs)) for w in weight.tolist()]
    assert quantise(weight, tau_is(tau), num_pairs).tolist() == pytest.approx(exact, rel=1e-12, abs=0)


@EACH_PAIRS
@FEWER
@given(positions=POSITIONS)
def test_every_weight_goes_to_its_nearest_level(num_pairs, positions):
    found = quantise(torch.tensor(positions, dtype=F64), tau_is(1.0), num_pairs)
    for x, value in zip(positions, found.tolist(), strict=True):
        nearest = min(abs(x - level) for level in LEVEL_SETS[num_pairs])
        assert value in LEVEL_SETS[num_pairs]
        assert abs(x - value) == pytest.approx(nearest, abs=1e-12)


@EACH_PAIRS
@FEWER
@given(positions=POSITIONS, tau=st.sampled_from([0.37, 1.0, 2.5]))
@pytest.mark.parametrize("dtype", [F32, F64])
def test_codes_number_the_levels_and_clamp_to_those_of_fewer_pairs(num_pairs, positions, tau, dtype):
    weight, log_tau = torch.tensor(positions, dtype=dtype) / tau, tau_is(tau, dtype)
    found = codes(weight, log_tau, num_pairs)
    assert found.dtype == torch.int8
    assert torch.equal(found, codes(weight, log_tau).clamp(-num_pairs, num_pairs))
    value = quantise(weight, log_tau, num_pairs)
    assert torch.equal(dequantise(found, log_tau), value)
    assert torch.equal(dequantise(found, log_tau).signbit(), value.signbit()), "no minus zero"
    by_number = torch.tensor(levels(num_pairs), dtype=dtype)[found.long() + num_pairs]
    assert torch.allclose(by_number / tau, value, rtol=1e-5, atol=0)


@EACH_PAIRS
@EACH_HOW
@FEWER
@given(positions=POSITIONS)
def test_the_quantiser_is_odd_and_never_falls(num_pairs, how, positions):
    weight = torch.tensor(positions, dtype=F64).sort().values
    value = quantise(weight, tau_is(1.0), num_pairs, how=how)
    assert torch.allclose(quantise(-weight, tau_is(1.0), num_pairs, how=how), -value, rtol=0, atol=1e-12)
    assert (value.diff() >= -1e-12).all()


def test_a_weight_on_a_threshold_takes_the_level_nearer_to_zero():
    edges = torch.tensor([0.5, 1.5, 3.0, 6.0], dtype=F64)
    log_tau = torch.zeros((), dtype=F64)
    assert quantise(edges, log_tau).tolist() == [0, 1, 2, 4]
    assert quantise(-edges, log_tau).tolist() == [0, -1, -2, -4]
    above = torch.nextafter(edges, edges + 1)
    assert quantise(above, log_tau).tolist() == [1, 2, 4, 8]
    assert codes(-above, log_tau).tolist() == [-1, -2, -3, -4]


@EACH_PAIRS
def test_a_sharp_sigmoid_is_a_step(num_pairs):
    weight = randn(5, 6)
    log_tau = initial_log_tau(weight)
    hard = quantise(weight, log_tau, num_pairs)
    for sharpness, near in ((20.0, 0.5), (2000.0, 0.005)):
        far = ~((weight * log_tau.exp()).abs()[..., None] - torch.tensor([0.5, 1.5, 3.0, 6.0])).abs().le(near).any(-1)
        soft = quantise(weight, log_tau, num_pairs, how="sigmoid", sharpness=sharpness)
        assert far.any()
        assert torch.allclose(soft[far], hard[far], rtol=1e-4, atol=1e-12), "saturated sigmoids lack 1e-4 of a step"


def test_a_sigmoid_is_the_printed_one():
    def sigmoid(x):
        return 1 / (1 + math.exp(-max(-10.0, min(10.0, x))))

    weight, tau, sharpness = [-3.0, -0.4, 0.0, 0.31, 1.1, 4.2], 1.7, 3.0
    steps = [(1, 0.5), (1, -0.5), (1, 1.5), (1, -1.5), (2, 3.0), (2, -3.0)]
    expected = [(sum(a * sigmoid(sharpness * (tau * w - z)) for a, z in steps) - 4) / tau for w in weight]
    found = quantise(torch.tensor(weight, dtype=F64), tau_is(tau), 3, how="sigmoid", sharpness=sharpness)
    assert found.tolist() == pytest.approx(expected, rel=1e-12, abs=1e-12)


@EACH_HOW
def test_a_scale_for_each_channel_is_a_loop_over_them(how):
    weight = randn(3, 2, 2) * torch.tensor([0.01, 1.0, 50.0], dtype=F64).view(3, 1, 1)
    for axis in (0, 1, -1):
        log_tau = initial_log_tau(weight, axis)
        assert log_tau.shape == tuple(size if place == axis % 3 else 1 for place, size in enumerate(weight.shape))
        rows, scales = weight.unbind(axis), log_tau.unbind(axis)
        one_by_one = [quantise(w, s.reshape(()), 2, how=how) for w, s in zip(rows, scales, strict=True)]
        assert torch.allclose(quantise(weight, log_tau, 2, how=how), torch.stack(one_by_one, axis), rtol=1e-12)
        numbers = [codes(w, s.reshape(()), 2) for w, s in zip(rows, scales, strict=True)]
        assert torch.equal(codes(weight, log_tau, 2), torch.stack(numbers, axis))


# Gradients


@EACH_PAIRS
def test_straight_through_gradients_by_a_loop(num_pairs):
    spread = 0.37
    weight = (randn(400) * 4 * spread).requires_grad_()
    log_tau, toward = tau_is(1 / spread).requires_grad_(), randn(400, seed=1)
    value = quantise(weight, log_tau, num_pairs)
    (value * toward).sum().backward()
    ends = sorted(LEVEL_SETS[num_pairs])
    bound = (ends[-1] + (ends[-1] - ends[-2]) / 2) * spread
    for_weight = [g if abs(w) <= bound else 0.0 for w, g in zip(weight.tolist(), toward.tolist(), strict=True)]
    items = zip(weight.tolist(), value.tolist(), toward.tolist(), strict=True)
    for_scale = sum(g * ((w if abs(w) <= bound else 0.0) - s) for w, s, g in items)
    assert 0.0 in for_weight
    assert weight.grad.tolist() == pytest.approx(for_weight, rel=1e-12)
    assert float(log_tau.grad) == pytest.approx(for_scale, rel=1e-10)


@EACH_PAIRS
@EACH_HOW
def test_gradients_obey_the_scaling_law(num_pairs, how):
    """S(c w, tau / c) = c S(w, tau), so w dS/dw - dS/dlog tau = S, weight by weight."""
    weight = randn(50).requires_grad_()
    log_tau = torch.full((50,), math.log(2.5), dtype=F64, requires_grad=True)
    value = quantise(weight, log_tau, num_pairs, how=how, sharpness=4.0)
    value.sum().backward()
    assert torch.allclose(weight * weight.grad - log_tau.grad, value, rtol=1e-10, atol=1e-12)


@EACH_PAIRS
def test_over_weights_that_fill_the_levels_straight_through_is_the_true_derivative(num_pairs):
    """The jumps, which the gradient at a single weight can't see, add up to it over a loss that is linear in S / w: by
    finite differences of the hard form, and by the gradient of the sigmoids."""
    spread, step = 0.37, 0.02
    weight = inside(num_pairs, spread)

    def loss(log_tau, factor, **form):
        return (quantise(weight * factor, log_tau, num_pairs, **form) / weight).mean()

    at = torch.tensor([-math.log(spread), 1.0], dtype=F64)
    found = [difference(loss, at, torch.tensor(shift, dtype=F64) * step) / (2 * step) for shift in ([1, 0], [0, 1])]
    for form in ({}, {"how": "sigmoid", "sharpness": 200.0}):
        inputs = [value.clone().requires_grad_() for value in at]
        slopes = torch.autograd.grad(loss(*inputs, **form), inputs)
        assert [float(slope) for slope in slopes] == pytest.approx([float(slope) for slope in found], abs=1e-3)
    assert min(map(abs, found)) > 0.05


def difference(function, at, shift):
    return function(*(at + shift)) - function(*(at - shift))


@EACH_PAIRS
@pytest.mark.parametrize("axis", [None, 0])
def test_sigmoid_gradients(num_pairs, axis):
    weight = randn(3, 4).requires_grad_()
    log_tau = (initial_log_tau(weight, axis) - 0.3).requires_grad_()
    assert gradcheck(lambda w, t: quantise(w, t, num_pairs, how="sigmoid", sharpness=0.7), (weight, log_tau))


@EACH_HOW
def test_no_gradient_is_asked_for_where_none_is_needed(how):
    weight, log_tau = randn(6), tau_is(2.0).requires_grad_()
    quantise(weight, log_tau, 2, how=how).sum().backward()
    assert log_tau.grad is not None
    fixed = quantise(weight.requires_grad_(), log_tau.detach(), 2, how=how)
    fixed.sum().backward()
    assert weight.grad.any()
    assert not quantise(weight.detach(), log_tau.detach(), how=how).requires_grad


def test_gradients_of_each_example_are_a_loop_over_them():
    weight, x = randn(3, 4), randn(5, 4, seed=1)
    of_one = grad(lambda w, t, example: (quantise(w, t, 2) @ example).square().sum(), (0, 1))
    at_once = vmap(of_one, (None, None, 0))(weight, initial_log_tau(weight), x)
    one_by_one = [of_one(weight, initial_log_tau(weight), example) for example in x]
    for found, expected in zip(at_once, zip(*one_by_one, strict=True), strict=True):
        assert torch.allclose(found, torch.stack(expected), rtol=1e-12)


# Masks


@EACH_PAIRS
@EACH_HOW
@pytest.mark.parametrize("dtype", [F32, F64])
def test_a_mask_of_ones_and_then_zeros_is_a_number_of_pairs(num_pairs, how, dtype):
    mask = (torch.arange(4) < num_pairs).to(dtype)
    found = []
    for run in (lambda w, t: quantise_masked(w, t, mask, how=how), lambda w, t: quantise(w, t, num_pairs, how=how)):
        weight, log_tau = randn(7, 9, dtype=dtype).requires_grad_(), tau_is(2.5, dtype).requires_grad_()
        value = run(weight, log_tau)
        value.square().sum().backward()
        found.append((value, weight.grad, log_tau.grad))
    assert all(torch.equal(masked, whole) for masked, whole in zip(*found, strict=True))
    assert found[0][1].any()


@EACH_HOW
def test_a_relaxed_mask_mixes_the_quantisers_by_its_falls(how):
    mask = torch.tensor([0.9, 0.7, 0.2, 0.05], dtype=F64)
    falls = [0.2, 0.5, 0.15, 0.05]
    found = []
    for mixed in (True, False):
        weight, log_tau = randn(60).requires_grad_(), tau_is(2.5).requires_grad_()
        one_by_one = (fall * quantise(weight, log_tau, k, how=how) for fall, k in zip(falls, PAIRS, strict=True))
        value = sum(one_by_one) if mixed else quantise_masked(weight, log_tau, mask, how=how)
        value.square().sum().backward()
        found.append((value, weight.grad, log_tau.grad))
    assert all(torch.allclose(mixed, masked, rtol=1e-10, atol=1e-12) for mixed, masked in zip(*found, strict=True))


@EACH_HOW
def test_gradients_of_a_mask(how):
    weight, log_tau = randn(5, 3), tau_is(2.5)
    mask = torch.tensor([0.9, 0.6, 0.4, 0.3], dtype=F64, requires_grad=True)
    assert gradcheck(lambda m: quantise_masked(weight, log_tau, m, how=how, sharpness=3.0), (mask,))
    soft = (weight.requires_grad_(), log_tau.requires_grad_(), mask)
    assert gradcheck(lambda w, t, m: quantise_masked(w, t, m, how="sigmoid", sharpness=0.7), soft)


@pytest.mark.parametrize("hard", [False, True])
def test_an_order_over_pairs_learns_through_its_mask(hard):
    order = Downhill(torch.zeros(3, requires_grad=True))
    weight = randn(100, dtype=F32)
    mask = order.rsample(generator=torch.Generator().manual_seed(0), hard=hard)
    (quantise_masked(weight, initial_log_tau(weight), mask) - weight).square().sum().backward()
    assert order.logits.grad.abs().min() > 0


# Scales


def test_the_first_scale_is_the_papers():
    weight = randn(8, 5)
    largest = float(weight.abs().max())
    assert float(initial_log_tau(weight).exp()) == pytest.approx(5 * 8 / (4 * largest))
    one_pair = quantise(weight, initial_log_tau(weight), 1).abs()
    assert sorted(one_pair.unique().tolist()) == pytest.approx([0, largest / 10])
    by_row = [math.log(10 / max(map(abs, row))) for row in weight.tolist()]
    assert initial_log_tau(weight, 0).squeeze(1).tolist() == pytest.approx(by_row)


@pytest.mark.parametrize("kind", ["gaussian", "outlier", "sparse", "one"])
def test_a_fitted_scale_has_the_least_error_of_all_that_are_tried(kind):
    weight = randn(1 if kind == "one" else 500)
    if kind == "outlier":
        weight[7] = 40.0
    if kind == "sparse":
        weight[10:] = 0

    def errors(log_tau):
        log_tau = torch.as_tensor(log_tau, dtype=F64)
        by_pairs = [float((quantise(weight, log_tau, kept) - weight).square().mean()) for kept in PAIRS]
        return torch.tensor([*by_pairs, sum(by_pairs)])

    start = float(-weight.abs().max().log())
    least = torch.stack([errors(start + 0.04 * place) for place in range(-15, 150)]).amin(0)
    for place, num_pairs in enumerate((*PAIRS, None)):
        assert errors(fitted_log_tau(weight, num_pairs))[place] <= least[place] * 1.001 + 1e-20


@EACH_PAIRS
def test_a_fitted_scale_is_the_optimum_for_gaussian_weights(num_pairs):
    """By the closed form of the error. With 3 levels Max (1960, table II) has step 1.2240, error .1902."""
    edges = sorted(level for level in LEVEL_SETS[num_pairs] if level >= 0)

    def error(spread):
        total = 1.0
        for low, high in pairwise(edges):
            edge = (low + high) / 2 * spread
            total -= 4 * (high - low) * spread * math.exp(-(edge**2) / 2) / math.sqrt(2 * math.pi)
            total += (high**2 - low**2) * spread**2 * math.erfc(edge / math.sqrt(2))
        return total

    best = minimize_scalar(error, bounds=(0.1, 2.0), method="bounded", options={"xatol": 1e-8}).x
    weight = torch.special.ndtri((torch.arange(100_000, dtype=F64) + 0.5) / 100_000)
    log_tau = fitted_log_tau(weight, num_pairs)
    found = float((quantise(weight, log_tau, num_pairs) - weight).square().mean())
    assert found == pytest.approx(error(best), rel=1e-3)
    assert math.exp(-float(log_tau)) == pytest.approx(best, rel=0.01)
    if num_pairs == 1:
        assert (best, error(best)) == (pytest.approx(1.2240, abs=1e-4), pytest.approx(0.1902, abs=1e-4))


def test_a_fitted_scale_for_each_channel_is_a_loop_over_them():
    weight = randn(3, 40, 2) * torch.tensor([0.01, 1.0, 50.0], dtype=F64).view(3, 1, 1)
    for num_pairs in (None, 1, 4):
        by_row = [float(fitted_log_tau(row, num_pairs)) for row in weight]
        assert fitted_log_tau(weight, num_pairs, 0).flatten().tolist() == pytest.approx(by_row)


# The ends of the number line


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, F32, F64])
@pytest.mark.parametrize("start", [initial_log_tau, fitted_log_tau])
@EACH_HOW
def test_values_and_gradients_are_finite_for_weights_of_any_size(dtype, start, how):
    info = torch.finfo(dtype)
    sizes = {"zero": 0.0, "subnormal": info.smallest_normal / 8, "small": 1e-3, "huge": info.max / 64}
    for size in sizes.values():
        weight = (torch.linspace(-1, 1, 21, dtype=F64) * size).to(dtype).requires_grad_()
        for log_tau in (start(weight), start(weight.detach().view(7, 3), channel_axis=0).view(7, 1)):
            shaped = weight.view(7, 3) if log_tau.ndim else weight
            scale = log_tau.clone().requires_grad_()
            for num_pairs in PAIRS:
                value = quantise(shaped, scale, num_pairs, how=how)
                grads = torch.autograd.grad(value.sum(), [weight, scale])
                assert value.dtype == dtype
                assert log_tau.dtype == dtype
                assert all(torch.isfinite(tensor).all() for tensor in (log_tau, value, *grads))


@EACH_HOW
@pytest.mark.parametrize("log_tau", [-1e4, -500.0, -90.0, -80.0, 80.0, 90.0, 500.0, 1e4])
@pytest.mark.parametrize("dtype", [F32, F64])
@pytest.mark.parametrize("tau_dtype", [F32, F64])
def test_a_scale_that_ran_away_gives_finite_numbers(log_tau, how, dtype, tau_dtype):
    weight = torch.tensor([0.0, -1e-30, 1.0, 1e30], dtype=dtype, requires_grad=True)
    scale = torch.tensor(log_tau, dtype=tau_dtype, requires_grad=True)
    value = quantise(weight, scale, how=how)
    value.sum().backward()
    assert all(torch.isfinite(tensor).all() for tensor in (value, weight.grad, scale.grad))


@pytest.mark.parametrize("dtype", [F32, F64])
@pytest.mark.parametrize("size", [1e-30, 1e-3, 1e30])
def test_codes_do_not_depend_on_the_size_of_the_weights(size, dtype):
    weight = randn(500)
    expected = codes(weight, initial_log_tau(weight))
    assert expected.unique().tolist() == [-4, -3, -2, -1, 0, 1, 2, 3, 4]
    scaled = (weight * size).to(dtype)
    assert torch.equal(codes(scaled, initial_log_tau(scaled)), expected)


@pytest.mark.parametrize("start", [initial_log_tau, fitted_log_tau])
def test_a_channel_of_zeros_can_grow(start):
    weight = torch.stack([torch.zeros(4), torch.tensor([1.0, -2.0, 0.5, 0.1])])
    log_tau = start(weight, channel_axis=0)
    assert float(log_tau[0]) == pytest.approx(math.log(10 / 2.0)), "the tensor's own scale"
    assert float(start(torch.zeros(3))) == pytest.approx(math.log(10))
    zero = torch.zeros(3, requires_grad=True)
    quantise(zero, start(zero.detach()), 1).sum().backward()
    assert zero.grad.tolist() == [1, 1, 1]


@pytest.mark.parametrize("start", [initial_log_tau, fitted_log_tau])
@EACH_HOW
def test_empty_weights(start, how):
    for shape, axis in (((0,), None), ((0, 3), 0), ((3, 0), 0), ((2, 0), None)):
        weight = torch.zeros(shape, requires_grad=True)
        log_tau = start(weight, channel_axis=axis)
        assert torch.isfinite(log_tau).all()
        quantise(weight, log_tau, how=how).sum().backward()
        assert weight.grad.shape == shape
        assert dequantise(codes(weight, log_tau), log_tau).shape == shape
    assert quantise(torch.tensor(3.0), torch.tensor(0.0)).tolist() == 2


@EACH_HOW
def test_divergence_is_not_hidden(how):
    weight = torch.tensor([math.nan, 1.0])
    assert quantise(weight, torch.tensor(0.0), how=how).isnan().tolist() == [True, False]
    assert quantise(torch.ones(2), torch.tensor(math.nan), how=how).isnan().all()
    assert quantise(torch.tensor([math.inf]), torch.tensor(0.0)).isnan().all()


def test_a_scale_of_higher_precision_keeps_the_weights_dtype():
    weight = randn(4, 3, dtype=torch.bfloat16)
    for how in ("straight_through", "sigmoid"):
        assert quantise(weight, initial_log_tau(weight.float(), 0), how=how).dtype == torch.bfloat16
    assert quantise(randn(4), torch.tensor(1.0)).dtype == F64


# What is refused

W, T = torch.ones(2, 3), torch.tensor(0.0)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: levels(0), RangeError, "num_pairs: got 0"),
        (lambda: levels(5), RangeError, "num_pairs: got 5, but it must be between 1 and 4"),
        (lambda: levels(2.0), DtypeError, "num_pairs: got 2.0"),
        (lambda: levels(True), DtypeError, "num_pairs: got True"),
        (lambda: quantise(W, T, 5), RangeError, "num_pairs"),
        (lambda: codes(W, T, 0), RangeError, "num_pairs"),
        (lambda: fitted_log_tau(W, 5), RangeError, "num_pairs"),
        (lambda: quantise(W.long(), T), DtypeError, "weight: got a tensor of torch.int64"),
        (lambda: quantise([1.0], T), DtypeError, "weight: got a list"),
        (lambda: quantise(W, 0.5), DtypeError, "log_tau: got a float"),
        (lambda: quantise(W, torch.tensor(1)), DtypeError, "log_tau"),
        (lambda: quantise(W, torch.zeros(3)), ShapeError, r"log_tau: got shape \(3,\)"),
        (lambda: quantise(W, torch.zeros(2, 2)), ShapeError, r"log_tau: got shape \(2, 2\)"),
        (lambda: quantise(torch.ones(3), torch.zeros(2, 3)), ShapeError, "log_tau"),
        (lambda: quantise(W, T, how="round"), ArgumentError, "how: got 'round'"),
        (lambda: quantise(W, T, how="sigmoid", sharpness=0), RangeError, "sharpness: got 0"),
        (lambda: quantise(W, T, sharpness=math.inf), RangeError, "sharpness: got inf"),
        (lambda: quantise_masked(W, T, torch.ones(3)), ShapeError, r"mask: got shape \(3,\)"),
        (lambda: quantise_masked(W, T, torch.ones(2, 4)), ShapeError, r"mask: got shape \(2, 4\)"),
        (lambda: quantise_masked(W, T, [1, 1, 0, 0]), ShapeError, "mask: got a list"),
        (lambda: quantise_masked(W, T, torch.ones(4).long()), DtypeError, "mask"),
        (lambda: quantise_masked(W, T, torch.tensor([1, 1, 0.5, -0.1])), RangeError, "mask"),
        (lambda: quantise_masked(W, T, torch.tensor([1, 1, 0.5, math.nan])), NonFiniteError, "mask"),
        (lambda: codes(W / 0, T), NonFiniteError, "weight: got 6 of 6"),
        (lambda: codes(W, torch.zeros(3)), ShapeError, "log_tau"),
        (lambda: dequantise(W, T), DtypeError, "codes"),
        (lambda: dequantise(torch.tensor([5]), T), RangeError, "codes: got values from 5 to 5"),
        (lambda: dequantise(torch.tensor([0, -128], dtype=torch.int8), T), RangeError, "codes"),
        (lambda: dequantise(torch.tensor([1]), torch.zeros(2)), ShapeError, "log_tau"),
        (lambda: dequantise(torch.tensor([1]), 0.0), DtypeError, "log_tau"),
        (lambda: initial_log_tau(W / 0), NonFiniteError, "weight"),
        (lambda: initial_log_tau(W, 2), RangeError, "channel_axis: got 2"),
        (lambda: initial_log_tau(T, 0), RangeError, "channel_axis: got 0"),
        (lambda: fitted_log_tau(W, channel_axis="rows"), DtypeError, "channel_axis: got 'rows'"),
    ],
)
def test_bad_arguments(call, error, message):
    with pytest.raises(error, match=message) as caught:
        call()
    assert type(caught.value) is error
    assert caught.value.advice.endswith(".")
