"""Special functions against multiple precision, over the range and the tensor shapes they promise to handle."""

import math

import mpmath as mp
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import special as scipy_special
from torch.autograd import gradcheck

from nestling.distributions import kumaraswamy_mean, special
from nestling.distributions.special import log1mexp, log_beta, log_normal_interval, logit_from_log, sech_integral

F32, F64 = torch.float32, torch.float64


def tensor(values, dtype=F64) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype)


def relative_error(found: torch.Tensor, truth: list) -> float:
    return max(float(abs(f - t) / abs(t)) for f, t in zip(found.double().tolist(), truth, strict=True))


NEGATIVE = [-1e-300, -1e-30, -1e-9, -0.1, -0.69, -0.6931471805599453, -0.7, -3.0, -40.0, -700.0]


@pytest.mark.parametrize(("dtype", "tolerance"), [(F64, 4e-16), (F32, 2e-7)], ids=["float64", "float32"])
def test_log1mexp_to_the_last_digits(dtype, tolerance):
    """A few units in the last place, from x = -1e-300, where 1 - e^x is -x, to x = -700, where the answer is -e^x."""
    points = [x for x in NEGATIVE if abs(x) > 1e-37 and x > -85] if dtype == F32 else NEGATIVE
    with mp.workdps(400):
        truth = [mp.log(-mp.expm1(mp.mpf(x))) for x in tensor(points, dtype).double().tolist()]
    assert relative_error(log1mexp(tensor(points, dtype)), truth) < tolerance


def test_log1mexp_has_no_nan_in_its_gradient_anywhere():
    for dtype in (F32, F64):
        x = tensor([-1e-30, -1e-9, -0.69, -0.7, -50.0, -1e3, -1e30], dtype).requires_grad_()
        (grad,) = torch.autograd.grad(log1mexp(x).sum(), x)
        assert grad.isfinite().all()
    assert gradcheck(log1mexp, (tensor([-0.01, -0.6, -0.8, -4.0]).requires_grad_(),))


@pytest.mark.parametrize(("dtype", "tolerance"), [(F64, 1e-15), (F32, 4e-7)], ids=["float64", "float32"])
def test_logit_from_log_also_where_p_rounds_to_zero_or_one(dtype, tolerance):
    points = tensor([-1e-30, -1e-20, -1e-8, -0.3, -1.0, -5.0, -80.0, -1e5], dtype)
    with mp.workdps(60):
        truth = [mp.mpf(x) - mp.log(-mp.expm1(mp.mpf(x))) for x in points.double().tolist()]
    assert relative_error(logit_from_log(points), truth) < tolerance


@given(st.floats(-60, 60))
def test_logit_from_log_undoes_logsigmoid(logit):
    """Near p = 1 the logarithm is tiny but exact; near 0 it is the logit itself: 1e-12 of its size is rounding."""
    log_p = torch.nn.functional.logsigmoid(tensor(logit))
    assert logit_from_log(log_p).item() == pytest.approx(logit, rel=1e-12, abs=1e-12)


PAIRS = [
    (1e-6, 3.0),
    (0.5, 0.5),
    (1.0, 1.0),
    (7.9, 8.1),
    (3.0, 200.0),
    (1e-4, 1e6),
    (50.0, 1e8),
    (1e5, 1e5),
    (22027.0, 1e-5),
]


def test_log_beta_against_scipy_and_multiple_precision():
    """scipy's own betaln is 1.5e-9 off at (1e-4, 1e6), so its bound is 1e-8; multiple precision is the judge."""
    for x, y in PAIRS:
        found = log_beta(tensor(x), tensor(y)).item()
        assert found == pytest.approx(scipy_special.betaln(x, y), rel=1e-8, abs=1e-8)
        with mp.workdps(40):
            truth = float(mp.loggamma(x) + mp.loggamma(y) - mp.loggamma(mp.mpf(x) + mp.mpf(y)))
        assert found == pytest.approx(truth, rel=1e-12, abs=1e-12)
        assert log_beta(tensor(y), tensor(x)).item() == found


@pytest.mark.parametrize(("dtype", "tolerance"), [(F64, 1e-12), (F32, 2e-6)], ids=["float64", "float32"])
def test_log_beta_keeps_its_digits_where_three_log_gammas_cancel(dtype, tolerance):
    """x = 1 + 1/a for a = 4.5e-5, the smallest shape of the beta-Bernoulli gate: relative to max(1, |truth|)."""
    for a in (4.5e-5, 1e-3, 0.1):
        for b in (4.5e-5, 0.01, 1.0, 7.5, 8.0, 50.0):
            x, y = tensor(1 + 1 / a, dtype), tensor(b, dtype)
            with mp.workdps(40):
                truth = float(mp.log(mp.beta(x.item(), y.item())))
            assert abs(log_beta(x, y).item() - truth) <= tolerance * max(1.0, abs(truth))


def test_three_float32_log_gammas_would_not_do():
    """The reason for Stirling's series: the plain form is off by more than 1e-3 at x = 1 + 1 / 4.5e-5, b = 1."""
    x, b = tensor(1 + 1 / 4.5e-5, F32), tensor(1.0, F32)
    truth = -math.log(x.item())
    plain = torch.lgamma(x) + torch.lgamma(b) - torch.lgamma(x + b)
    assert abs(plain.item() - truth) > 1e-3
    assert abs(log_beta(x, b).item() - truth) < 2e-6


def test_log_beta_is_continuous_where_its_two_forms_meet():
    for x in (1e-3, 1.0, 7.0, 8.0):
        below, above = log_beta(tensor([x, x]), tensor([8 - 1e-9, 8 + 1e-9]))
        assert abs(below - above).item() < 1e-8
    points = (tensor([0.2, 3.0, 9.0, 0.3, 12.0]).requires_grad_(), tensor([0.5, 7.0, 8.5, 30.0, 12.5]).requires_grad_())
    assert gradcheck(log_beta, points)


@pytest.mark.parametrize(("dtype", "tolerance"), [(F64, 1e-10), (F32, 2e-6)], ids=["float64", "float32"])
@pytest.mark.parametrize("a", [4.5e-5, 0.01, 0.3133, 2.0, 60.0])
@pytest.mark.parametrize("b", [4.5e-5, 0.2, 1.0, 8.0, 50.0])
def test_kumaraswamy_mean_over_the_whole_range_of_the_gate(a, b, dtype, tolerance):
    """E[pi] by multiple precision; the error is relative to 1 + |log E[pi]|, since the mean is an exponential."""
    x, y = tensor(a, dtype), tensor(b, dtype)
    with mp.workdps(60):
        truth = mp.mpf(y.item()) * mp.beta(1 + 1 / mp.mpf(x.item()), y.item())
        log_truth = float(mp.log(truth))
    found = kumaraswamy_mean(x, y).item()
    if truth < torch.finfo(dtype).tiny:
        assert found == pytest.approx(0, abs=torch.finfo(dtype).tiny)
    else:
        assert found == pytest.approx(float(truth), rel=tolerance * (1 + abs(log_truth)))


INTERVALS = [
    (-1.0, 1.0),
    (0.0, 1e-3),
    (-8.0, 8.0),
    (-40.0, -39.0),
    (39.0, 40.0),
    (-1e3, -999.0),
    (999.0, 1e3),
    (-1e4, 3.0),
    (-3.0, 1e4),
    (5.0, 1e5),
    (-1e5, -5.0),
    (-148.2, -148.1),
]


def test_log_normal_interval_in_both_tails():
    """Phi(high) - Phi(low) by erfc in 400 digits; 1e-10 is what two close log-probabilities of size 1 leave."""
    for low, high in INTERVALS:
        with mp.workdps(400):
            side = -1 if low > 0 else 1
            near, far = (mp.mpf(side * x) for x in ((low, high) if side == 1 else (high, low)))
            truth = mp.log((mp.erfc(-far / mp.sqrt(2)) - mp.erfc(-near / mp.sqrt(2))) / 2)
        found = log_normal_interval(tensor(low), tensor(high)).item()
        assert found == pytest.approx(float(truth), rel=1e-12, abs=1e-10)
        single = log_normal_interval(tensor(low, F32), tensor(high, F32)).item()
        assert single == pytest.approx(float(truth), rel=1e-6, abs=2e-4)


def test_log_normal_interval_slopes_by_multiple_precision():
    """d/dlow = -phi(low) / mass and d/dhigh = phi(high) / mass, also where torch's own log_ndtr has lost its slope."""
    for low, high in [*INTERVALS, (-1e10, 0.0), (-1e10, 1e10), (0.0, 1e10)]:
        edges = [tensor(x).requires_grad_() for x in (low, high)]
        found = torch.autograd.grad(log_normal_interval(*edges), edges)
        with mp.workdps(60):
            # The mass relative to phi at the nearer edge, by quadrature, so that nothing underflows.
            side = -1 if low > 0 else 1
            near, far = (mp.mpf(side * x) for x in ((high, low) if side == 1 else (low, high)))
            at = min(near, mp.mpf(0))
            reach = max(at - 60 / (1 + abs(at)), far)
            points = mp.linspace(reach, min(near, 60), 9)
            mass = mp.quad(lambda t, at=at: mp.exp((at * at - t * t) / 2), points)
            by_near = mp.exp((at * at - near * near) / 2) / mass
            by_far = -mp.exp((at * at - far * far) / 2) / mass
        expected = (by_far, by_near) if side == 1 else (-by_near, -by_far)
        for f, e in zip(found, expected, strict=True):
            assert f.item() == pytest.approx(float(e), rel=1e-6, abs=1e-12)


def test_log_normal_interval_gradcheck():
    low = tensor([-2.0, 0.5, -9.0, 3.0, -0.5]).requires_grad_()
    high = tensor([1.0, 0.9, -7.0, 12.0, -0.4]).requires_grad_()
    assert gradcheck(log_normal_interval, (low, high))


def test_sech_integral_is_its_integral():
    for t in (-20.0, -3.0, 0.0, 2.0, 9.0, 40.0):
        with mp.workdps(25):
            scale = mp.exp(mp.mpf(t)) / 2
            truth = mp.quad(lambda s, scale=scale: -mp.expm1(-scale * mp.sech(s) ** 2), mp.linspace(0, 60, 31))
        assert sech_integral(tensor(t)).item() == pytest.approx(float(truth), rel=1e-11)


@pytest.mark.parametrize("dtype", [F32, F64])
def test_sech_integral_takes_tensors_of_any_shape(dtype):
    whole = torch.linspace(-15, 15, 24, dtype=dtype)
    flat = sech_integral(whole)
    assert sech_integral(whole.reshape(2, 3, 4)).tolist() == flat.reshape(2, 3, 4).tolist()
    across = whole.reshape(4, 6).T
    assert not across.is_contiguous()
    assert torch.equal(sech_integral(across), flat.reshape(4, 6).T)
    assert torch.equal(sech_integral(whole[::3]), flat[::3])
    assert torch.equal(sech_integral(whole[:1].expand(5)), flat[:1].expand(5))
    single = sech_integral(whole[7])
    assert single.shape == ()
    assert single == flat[7]
    for shape in ((0,), (3, 0, 2)):
        assert sech_integral(torch.empty(shape, dtype=dtype)).shape == shape


def test_sech_integral_over_more_than_one_piece_is_the_same_element_by_element():
    """The work is cut into pieces of 65,536; a length just past two of them must not show a seam."""
    t = torch.linspace(-30, 30, 2 * 65_536 + 5, dtype=F32).requires_grad_()
    value = sech_integral(t)
    (slope,) = torch.autograd.grad(value.sum(), t)
    for index in (0, 65_535, 65_536, 131_071, 131_072, 131_076):
        alone = t.detach()[index : index + 1].requires_grad_()
        assert sech_integral(alone).item() == pytest.approx(value[index].item(), rel=3e-7)
        (alone_slope,) = torch.autograd.grad(sech_integral(alone), alone)
        assert alone_slope.item() == pytest.approx(slope[index].item(), rel=1e-6)


def test_sech_integral_gradients_come_only_when_asked_for():
    t = torch.linspace(-3, 3, 7, dtype=F64)
    assert not sech_integral(t).requires_grad
    with torch.no_grad():
        assert not sech_integral(t.clone().requires_grad_()).requires_grad
    with torch.inference_mode():
        sech_integral(t)
    before = t.clone()
    across = t.clone().requires_grad_()
    sech_integral(across.reshape(1, 7).T).sum().backward()
    assert across.grad.shape == (7,)
    assert torch.equal(t, before)
    assert gradcheck(sech_integral, (t.clone().requires_grad_(),))


def test_sech_integral_at_the_ends_of_the_float_range():
    t = tensor([-math.inf, -700.0, 700.0, math.inf])
    assert sech_integral(t).tolist()[0] == 0
    assert 0 < sech_integral(t)[1].item() < 1e-300
    assert sech_integral(t)[2].item() == pytest.approx(350.6351814, abs=1e-6)
    assert sech_integral(t)[3].item() == math.inf
    assert sech_integral(tensor([math.nan])).isnan().all()


def test_sech_integral_has_a_second_derivative():
    t = torch.linspace(-9, 9, 61, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(sech_integral, t, atol=1e-4)


def test_sech_integral_under_function_transforms():
    t = torch.linspace(-5, 5, 12, dtype=torch.float64).view(3, 4)
    assert torch.equal(torch.vmap(sech_integral)(t), sech_integral(t))
    slope = torch.func.grad(lambda x: sech_integral(x).sum())(t)
    assert torch.equal(torch.vmap(torch.func.grad(lambda x: sech_integral(x).sum()))(t), slope)
    assert torch.autograd.gradcheck(lambda x: torch.vmap(sech_integral)(x), t.clone().requires_grad_())


def test_the_table_does_not_depend_on_the_default_device_of_torch():
    special._sech_table.cache_clear()
    special._sech_series.cache_clear()
    with torch.device("meta"):
        found = sech_integral(torch.tensor([-1.0, 0.0, 2.0], device="cpu"))
    torch.testing.assert_close(found, sech_integral(torch.tensor([-1.0, 0.0, 2.0], dtype=torch.float64)).float())
