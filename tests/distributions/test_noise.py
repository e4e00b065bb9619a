"""Standard noise: its distribution against scipy's, and its extremes."""

import pytest
import torch
from scipy import stats

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
