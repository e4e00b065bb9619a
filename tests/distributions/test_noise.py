"""Standard noise: its distribution against scipy's, and its extremes."""

import numpy as np
import pytest
import torch
from scipy import stats
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from nestling.distributions import noise
from nestling.distributions.noise import exponential_noise, gumbel_noise, logistic_noise, normal_noise, uniform_noise

DISTRIBUTIONS = {
    exponential_noise: stats.expon,
    gumbel_noise: stats.gumbel_r,
    logistic_noise: stats.logistic,
    normal_noise: stats.norm,
    uniform_noise: stats.uniform,
}


@pytest.mark.parametrize("draw", DISTRIBUTIONS, ids=lambda draw: draw.__name__)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_noise_has_its_distribution(draw, dtype):
    drawn = draw(torch.empty(200, 500, dtype=dtype), torch.Generator().manual_seed(1))
    assert drawn.dtype == dtype
    assert stats.kstest(drawn.flatten().numpy(), DISTRIBUTIONS[draw].cdf).pvalue > 1e-3


MANY = 2**20 + 3
"""More normal numbers than are drawn one by one, and not as many as there are in whole words of bits."""


def test_quantiles_are_those_of_the_normal_distribution():
    values = noise._quantiles().double().numpy()
    ends = (np.arange(2**16 + 1)) / 2**16
    assert np.abs(stats.norm.cdf(values) - ends[:-1]).max() < 2**-16
    assert np.abs(stats.norm.cdf(values) - ends[1:]).max() < 2**-16
    assert np.array_equal(values, -values[::-1])
    assert np.mean(values**2) == pytest.approx(1, abs=1e-7)
    assert np.mean(values**4) == pytest.approx(3, rel=1e-3)
    assert np.mean(values**6) == pytest.approx(15, rel=3e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_many_normal_numbers_have_their_distribution_and_follow_from_the_generator(dtype):
    like = torch.empty(MANY, dtype=dtype)
    drawn = normal_noise(like, torch.Generator().manual_seed(1))
    assert drawn.dtype == dtype
    counts = torch.bincount(((drawn.double() + 5) * 4).long(), minlength=40).numpy()
    expected = MANY * np.diff(stats.norm.cdf(np.arange(41) / 4 - 5))
    if dtype == torch.float32:
        assert (np.abs(counts - expected) < 5 * np.sqrt(expected + 2**-16 * MANY)).all()
    apart = drawn.double()
    for lag in (1, 2, 3, 4, 5, 64):
        assert abs(float((apart[lag:] * apart[:-lag]).mean())) < 5 / MANY**0.5
        assert abs(float((apart[lag:].square() * apart[:-lag].square()).mean()) - 1) < 15 / MANY**0.5
    assert drawn.equal(normal_noise(like, torch.Generator().manual_seed(1)))
    assert not drawn.equal(normal_noise(like, torch.Generator().manual_seed(2)))


def test_many_normal_numbers_lie_as_the_tensor_and_are_mapped_as_any():
    like = torch.empty(16, 64, 32, 32).contiguous(memory_format=torch.channels_last)
    assert normal_noise(like).is_contiguous(memory_format=torch.channels_last)
    with torch.inference_mode():
        assert normal_noise(torch.empty(MANY)).is_inference()
    mapped = torch.func.vmap(lambda x: x + normal_noise(x), randomness="different")(torch.zeros(2, MANY))
    assert not mapped[0].equal(mapped[1])
    known = torch.zeros(MANY)
    mapped = torch.func.vmap(lambda x: x + normal_noise(known), randomness="different")(torch.zeros(2))
    assert not mapped[0].equal(mapped[1]), "also for a tensor that is not mapped itself"


@pytest.mark.parametrize("default", [torch.float64, torch.bfloat16])
def test_many_normal_numbers_do_not_depend_on_the_defaults_of_torch(default):
    expected = normal_noise(torch.empty(MANY), torch.Generator().manual_seed(1))
    noise._quantiles.cache_clear()
    torch.set_default_dtype(default)
    try:
        with torch.device("meta"):
            like = torch.empty(MANY, dtype=torch.float32, device="cpu")
            assert normal_noise(like, torch.Generator("cpu").manual_seed(1)).equal(expected)
    finally:
        torch.set_default_dtype(torch.float32)
    assert normal_noise(torch.empty(MANY), torch.Generator().manual_seed(1)).equal(expected)


@pytest.mark.filterwarnings("ignore")  # torch.jit is on its way out
def test_code_that_draws_many_normal_numbers_can_be_traced():
    noise._quantiles.cache_clear()
    x = torch.zeros(MANY)
    graph = make_fx(lambda x: x + normal_noise(x))(x)
    assert not graph(x).equal(graph(x))
    traced = torch.jit.trace(lambda x: x + normal_noise(x), (x,), check_trace=False)
    assert float(traced(x).std()) == pytest.approx(1, abs=0.01)
    with FakeTensorMode(allow_non_fake_inputs=True):
        normal_noise(x)
    assert float(normal_noise(x).std()) == pytest.approx(1, abs=0.01)


def test_logistic_noise_is_finite_and_symmetric_at_its_ends(monkeypatch):
    ends = torch.tensor([0.0, 2**-24, 1 - 2**-24])
    monkeypatch.setattr(torch, "rand", lambda *_, **__: ends.clone())
    found = logistic_noise(torch.empty(3))
    assert found.isfinite().all()
    assert found[0] < found[1]
    torch.testing.assert_close(found[1], -found[2])


def test_logistic_noise_reaches_its_tails_in_half_precision_too():
    drawn = logistic_noise(torch.empty(100_000, dtype=torch.bfloat16), torch.Generator().manual_seed(1))
    assert drawn.dtype == torch.bfloat16
    assert drawn.abs().max() > 8  # expected of 100,000 draws: about 11; eight bits of a uniform number end at 5.5
