"""The Downhill distribution: its density by quadrature, its samples against the density, its hard and relaxed masks."""

import math

import numpy as np
import pytest
import torch
from scipy import integrate, stats
from scipy.special import expit
from torch.autograd import gradcheck
from torch.distributions import RelaxedOneHotCategorical

from nestling.distributions import Downhill
from nestling.distributions.orders.downhill import downhill_log_density

F64 = torch.float64
EDGE = 30.0


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def downhill(logits: list[float], temperature: float, num_always: int = 1) -> Downhill:
    return Downhill(torch.tensor(logits, dtype=F64), temperature=temperature, num_always=num_always)


def density_of_one(order: Downhill, u: np.ndarray) -> np.ndarray:
    """Density of u = logit z of the only free entry z: density of the mask times dz/du = z (1 - z)."""
    z = expit(u)
    masks = np.stack([np.ones_like(z)] * order.num_always + [z], axis=-1)
    return np.exp(order.log_density(torch.from_numpy(masks)).numpy()) * z * expit(-u)


def density_of_two(order: Downhill, u: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Density of (u, v) for free entries y = sigmoid(u), z = y sigmoid(v); dy dz = y (1 - y) * z (1 - z / y) du dv."""
    y = expit(u)
    z = y * expit(v)
    masks = np.stack([np.ones_like(z)] * order.num_always + [y, z], axis=-1)
    return np.exp(order.log_density(torch.from_numpy(masks)).numpy()) * y * expit(-u) * z * expit(-v)


@pytest.mark.parametrize("num_always", [1, 2])
@pytest.mark.parametrize("temperature", [0.05, 0.3, 1.0, 2.0, 8.0])
@pytest.mark.parametrize("logit", [-3.0, 0.0, 1.3])
def test_density_integrates_to_one_for_one_free_entry(logit, temperature, num_always):
    """For |logit z| < 18 the mass is a difference of logistic distribution functions, which is 1 but for cold masks.

    At the edge 1 - z = 1.5e-8 is known to 1e-8 of itself, so the mass is good to 1e-8.
    """
    order = downhill([logit], temperature, num_always)
    edge = 18.0
    u = np.linspace(-edge, edge, 6001)
    mass = integrate.simpson(density_of_one(order, u), x=u)
    inside = expit(temperature * edge - logit) - expit(-temperature * edge - logit)
    assert mass == pytest.approx(inside, abs=1e-8)
    if temperature >= 2:
        assert mass == pytest.approx(1, abs=1e-8)


@pytest.mark.parametrize("num_always", [1, 2])
@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("logits", [[0.0, 0.0], [2.0, -1.0], [-1.5, 3.0]])
def test_density_integrates_to_one_for_two_free_entries(logits, temperature, num_always):
    """Beyond |u|, |v| < 30 lies at most 4 exp(3 - 30 temperature), under 3e-5 at 0.5 and nothing above it."""
    u = np.linspace(-EDGE, EDGE, 501)
    grid = density_of_two(downhill(logits, temperature, num_always), *np.meshgrid(u, u, indexing="ij"))
    mass = integrate.trapezoid(integrate.trapezoid(grid, u), u)
    assert mass == pytest.approx(1, abs=1e-8 + 4 * math.exp(3 - EDGE * temperature))


@pytest.mark.parametrize("temperature", [0.2, 1.0, 4.0])
def test_density_is_that_of_the_concrete_distribution_of_the_falls(temperature):
    """torch's relaxed one-hot distribution, an independent formula, in the falls of the mask (Jacobian 1)."""
    order = downhill([1.0, -2.0, 0.3, 2.0], temperature)
    reference = RelaxedOneHotCategorical(torch.tensor(temperature, dtype=F64), logits=order.log_probs())
    falls = torch.distributions.Dirichlet(torch.ones(5, dtype=F64)).sample((50,))
    # Masks and falls agree to 1e-16, which a fall of 1e-4 magnifies to 1e-12 in its logarithm.
    masks = torch.flip(torch.cumsum(torch.flip(falls, (-1,)), -1), (-1,))
    masks[:, 0] = 1
    assert torch.allclose(order.log_density(masks), reference.log_prob(falls), rtol=0, atol=1e-8)
    direct = downhill_log_density(falls, order.log_probs(), temperature)
    assert torch.allclose(direct, reference.log_prob(falls), rtol=0, atol=1e-10)


@pytest.mark.parametrize(("logit", "temperature"), [(0.0, 0.3), (1.5, 0.5), (-2.0, 1.0), (0.7, 5.0)])
def test_samples_match_the_density_of_one_free_entry(logit, temperature):
    """Kolmogorov-Smirnov distance under 2.5 / sqrt(n), exceeded by chance once in 130,000 seeds."""
    order = downhill([logit], temperature)
    u = np.linspace(-EDGE, EDGE, 6001)
    cdf = integrate.cumulative_trapezoid(density_of_one(order, u), u, initial=0)
    z = order.rsample((100_000,), seeded(11))[:, 1].clamp(1e-15, 1 - 1e-15).numpy()
    below = 0.5 * (1 - cdf[-1])  # what cold masks have beyond the grid, halved between its ends at logit 0
    distance = stats.ks_1samp(np.log(z) - np.log1p(-z), lambda x: below + np.interp(x, u, cdf)).statistic
    assert distance < 2.5 / math.sqrt(100_000)


@pytest.mark.parametrize(("logits", "temperature"), [([0.5, -0.5], 0.7), ([2.0, 1.0], 1.5)])
def test_samples_match_the_density_of_two_free_entries(logits, temperature):
    """Nine cells by chi-square (level 1e-4) and three moments within 5 standard errors."""
    order = downhill(logits, temperature)
    masks = order.rsample((100_000,), seeded(12))
    y, z = masks[:, 1].numpy(), masks[:, 2].numpy()
    edges = np.array([-EDGE, -1.0, 1.5, EDGE])
    nodes, weights = np.polynomial.legendre.leggauss(60)
    half, middle = np.diff(edges) / 2, (edges[:-1] + edges[1:]) / 2
    u = (middle[:, None] + half[:, None] * nodes).ravel()
    w = (half[:, None] * weights).ravel()
    grid_u, grid_v = np.meshgrid(u, u, indexing="ij")
    mass = density_of_two(order, grid_u, grid_v) * w[:, None] * w
    cells = mass.reshape(3, 60, 3, 60).sum((1, 3))
    assert cells.sum() == pytest.approx(1, abs=1e-6)
    drawn_u, drawn_v = np.log(y) - np.log1p(-y), np.log(z) - np.log(y - z)
    counts, _, _ = np.histogram2d(drawn_u, drawn_v, bins=[[-np.inf, -1, 1.5, np.inf]] * 2)
    assert stats.chisquare(counts.ravel(), cells.ravel() / cells.sum() * len(y)).pvalue > 1e-4
    grid_y = expit(grid_u)
    grid_z = grid_y * expit(grid_v)
    for drawn, at_nodes in ((y, grid_y), (z, grid_z), (y * z, grid_y * grid_z)):
        mean = (mass * at_nodes).sum()
        std = math.sqrt((mass * at_nodes**2).sum() - mean**2)
        assert abs(drawn.mean() - mean) < 5 * std / math.sqrt(len(y))


def test_density_is_zero_outside_the_support():
    order = downhill([0.0, 0.0, 0.0], 0.7, num_always=2)
    outside = [
        [1.0, 1.0, 0.5, 0.6, 0.1],  # goes up
        [1.0, 1.0, 0.5, 0.5, 0.1],  # stands still
        [1.0, 1.0, 1.0, 0.5, 0.1],  # has not left one
        [1.0, 1.0, 1.2, 0.5, 0.1],  # above one
        [1.0, 1.0, 0.6, 0.5, 0.0],  # reaches zero
        [1.0, 1.0, 0.6, 0.5, -0.1],  # below zero
        [1.0, 0.9, 0.6, 0.5, 0.1],  # cuts a block that is always kept
    ]
    inside = [1.0, 1.0, 0.6, 0.5, 0.1]
    masks = torch.tensor([*outside, inside], dtype=F64, requires_grad=True)
    density = order.log_density(masks)
    assert density[:-1].tolist() == [-math.inf] * len(outside)
    assert density[-1].isfinite()
    (grad,) = torch.autograd.grad(density[-1], masks)
    assert grad.isfinite().all()


def test_density_without_a_free_entry_is_one():
    assert downhill([], 0.5, num_always=3).log_density(torch.ones(4, 3, dtype=F64)).tolist() == [0.0] * 4


def test_density_broadcasts_over_orders_and_draws():
    order = Downhill(torch.randn(3, 4, dtype=F64, generator=seeded(1)), temperature=1.0)
    masks = order.rsample((5,), seeded(2))
    assert order.log_density(masks).shape == (5, 3)
    single = Downhill(order.logits[1], temperature=1.0)
    assert torch.equal(order.log_density(masks)[:, 1], single.log_density(masks[:, 1]))


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("temperature", [1e-3, 0.1, 0.5, 2.0, 1e3])
@pytest.mark.parametrize("logit", [-4.0, 0.0, 3.0, 8.0])
def test_relaxed_masks_go_down_from_one(logit, temperature, dtype):
    """Without any slack: a float32 softmax sums to 1.0000004 here and there, and a mask must not."""
    for num_blocks in (2, 40, 512):
        order = Downhill(torch.full((num_blocks - 1,), logit, dtype=dtype), temperature=temperature)
        masks = order.rsample((200,), seeded(3))
        assert masks.dtype == dtype
        assert (masks[:, 0] == 1).all()
        assert (masks.diff(dim=-1) <= 0).all()
        assert ((masks >= 0) & (masks <= 1)).all()


def test_relaxed_masks_keep_the_first_blocks_and_are_reproducible():
    order = downhill([0.0, 1.0], 0.5, num_always=3)
    masks = order.rsample((10, 2), seeded(4))
    assert masks.shape == (10, 2, 5)
    assert (masks[..., :3] == 1).all()
    assert (masks[..., 3] < 1).all()
    assert torch.equal(masks, order.rsample((10, 2), seeded(4)))


@pytest.mark.parametrize("temperature", [0.05, 0.5, 5.0])
def test_hard_masks_are_exact_draws_at_any_temperature(temperature):
    order = downhill([2.0, -1.0, 0.5, 1.0], temperature, num_always=2)
    masks = order.rsample((100_000,), seeded(5), hard=True)
    assert masks.unique().tolist() == [0.0, 1.0]
    assert (masks.diff(dim=-1) <= 0).all()
    counts = torch.bincount(masks.sum(-1).long(), minlength=7)[2:]
    assert stats.chisquare(counts.numpy(), order.log_probs().exp().numpy() * 100_000).pvalue > 1e-4


def test_hard_masks_have_the_gradient_of_the_relaxed_ones():
    logits = torch.tensor([[1.0, -0.5, 0.2], [0.0, 2.0, -1.0]], dtype=F64, requires_grad=True)
    order = Downhill(logits, temperature=0.6)
    pull = torch.randn(7, 2, 4, dtype=F64, generator=seeded(6))
    relaxed, hard = order.rsample((7,), seeded(7)), order.rsample((7,), seeded(7), hard=True)
    (expected,) = torch.autograd.grad((pull * relaxed).sum(), logits)
    (straight_through,) = torch.autograd.grad((pull * hard).sum(), logits)
    assert torch.equal(straight_through, expected)
    assert expected.abs().max() > 0.01
    falls = relaxed - torch.nn.functional.pad(relaxed[..., 1:], (0, 1))
    assert torch.equal(falls.argmax(-1) + 1, hard.sum(-1).long())


def test_cold_masks_are_whole_and_their_mean_is_the_keep_probability():
    """At 1e-3 a mask differs from a whole one only if two perturbed logits lie within 0.02: 1.5 % of draws at most."""
    order = downhill([1.0, -1.0, 0.5], 1e-3)
    relaxed = order.rsample((100_000,), seeded(8))
    whole = order.rsample((100_000,), seeded(8), hard=True)
    assert ((relaxed - whole).abs() > 1e-6).any(-1).double().mean() < 0.015
    keep = order.keep_probs()
    # The blur inside that gap is symmetric at first order; 5 standard errors cover what is left.
    assert ((relaxed.mean(0) - keep).abs() <= 5 * (keep * (1 - keep) / 100_000).sqrt()).all()


def test_hot_masks_are_a_straight_slope():
    """At 1e3 a perturbed logit of size up to 20 moves a step by 2 %."""
    order = downhill([3.0, -1.0, 0.5], 1e3)
    slope = torch.tensor([1.0, 0.75, 0.5, 0.25], dtype=F64)
    assert (order.rsample((1000,), seeded(9)) - slope).abs().max() < 0.02


@pytest.mark.parametrize(
    ("logit", "intended", "full", "released"),
    [(3.0, 17.4, 0.233, 17.0), (5.0, 29.1, 0.818, 17.6), (0.0, 3.0, 0.0, 16.5), (-5.0, 2.0, 0.0, 16.2)],
)
def test_masks_are_drawn_from_log_probabilities_unlike_the_released_code(logit, intended, full, released):
    """FACTS 2.4, 32 groups with 2 frozen: the released sampler takes probabilities for logits and is all but uniform.

    The tables round to one decimal place, so they are met within 0.05 (and 5 standard errors where drawn).
    """
    order = downhill([logit] * 30, 2.0, num_always=2)
    assert order.expected_width().item() == pytest.approx(intended, abs=0.05)
    assert order.log_probs()[-1].exp().item() == pytest.approx(full, abs=5e-4)
    widths = order.rsample((20_000,), seeded(10), hard=True).sum(-1)
    assert widths.mean().item() == pytest.approx(intended, abs=0.05 + 5 * widths.std().item() / math.sqrt(20_000))
    wrong = torch.softmax(order.log_probs().exp(), -1) @ order.widths().double()
    assert wrong.item() == pytest.approx(released, abs=0.05)


def test_straight_through_gradient_at_temperature_two_is_a_third_of_the_exact_one():
    """FACTS 2.4: .292 exact and .089 straight-through, as the mean over the 30 logits at 3."""
    logits = torch.full((30,), 3.0, dtype=F64, requires_grad=True)
    order = Downhill(logits, num_always=2, temperature=2.0)
    (exact,) = torch.autograd.grad(order.expected_width(), logits)
    assert exact.mean().item() == pytest.approx(0.292, abs=5e-4)
    width = order.rsample((20_000,), seeded(13), hard=True).sum(-1).mean()
    (biased,) = torch.autograd.grad(width, logits)
    assert biased.mean().item() == pytest.approx(0.089, abs=1e-3)  # rounding 5e-4 + 5 x 1e-4


@pytest.mark.parametrize("temperature", [0.3, 1.0, 4.0])
def test_gradcheck(temperature):
    logits = torch.tensor([0.7, -0.4, 1.1], dtype=F64, requires_grad=True)
    masks = torch.tensor([[1.0, 1.0, 0.8, 0.5, 0.1], [1.0, 1.0, 0.4, 0.3, 0.2]], dtype=F64)
    free = masks[:, 2:].clone().requires_grad_()

    def sample(x):
        return Downhill(x, temperature=temperature, num_always=2).rsample((3,), seeded(14))

    def density(x, z):
        whole = torch.cat([masks[:, :2], z], -1)
        return Downhill(x, temperature=temperature, num_always=2).log_density(whole)

    assert gradcheck(sample, (logits,))
    assert gradcheck(density, (logits, free))


def test_annealing_changes_the_masks_and_not_the_order():
    order = downhill([0.5, 0.5], 1.0)
    before = order.log_probs()
    warm = order.rsample((5,), seeded(15))
    order.temperature = 0.1
    assert order.temperature == 0.1
    assert torch.equal(order.log_probs(), before)
    assert not torch.equal(order.rsample((5,), seeded(15)), warm)
