"""One test for each erratum of FACTS 7 that changes a formula: what is printed fails a property that ours has."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy import integrate, optimize
from scipy.special import expit
from torch.distributions import RelaxedOneHotCategorical

from nestling.distributions import (
    BernoulliChain,
    BernoulliGate,
    BetaBernoulli,
    DependentBetaBernoulli,
    Downhill,
    Geometric,
    Uniform,
    bn3_regulariser,
    gaussian_kl,
    hierarchical_kl,
    kl,
    kumaraswamy_beta_kl,
    log_uniform_kl,
)

F64 = torch.float64
DRAWS = 100_000


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def tensor(values) -> torch.Tensor:
    return torch.tensor(values, dtype=F64)


# BN3 -------------------------------------------------------------------------------------------------------------


def test_e1_the_fall_before_the_first_block_is_zero_not_one():
    """Property 1, z_j = 1 - (c_0 + ... + c_{j-1}), has c_0 := 1: then z_1 is zero and the rest go below zero."""
    order = Downhill(tensor([0.1, 0.3]), temperature=0.5)
    masks = order.rsample((DRAWS,), seeded(1))
    falls = masks - torch.nn.functional.pad(masks[:, 1:], (0, 1))
    before = falls.cumsum(-1) - falls  # c_1 + ... + c_{j-1}
    printed, right = 1 - (1 + before), 1 - (0 + before)
    assert torch.allclose(masks, right, rtol=0, atol=1e-12)
    assert ((masks[:, 0] == 1) & (masks >= 0).all(-1)).all()
    assert (printed[:, 0] == 0).all()
    assert (printed[:, 1:].mean(0) < 0).all()


def downhill_density(beta: np.ndarray, tau: float, falls: list) -> np.ndarray:
    """Gamma(K) tau^(K-1) [sum_i beta_i / c_i^tau]^-K prod_i beta_i / c_i^(tau+1) for whatever is put in for c."""
    num_widths = len(beta)
    bracket = sum(b / c**tau for b, c in zip(beta, falls, strict=True))
    product = np.prod([b / c ** (tau + 1) for b, c in zip(beta, falls, strict=True)], axis=0)
    return math.gamma(num_widths) * tau ** (num_widths - 1) * bracket ** (-num_widths) * product


def test_e2_the_density_is_in_the_falls_after_each_block_not_before():
    """Eqs. 3 / 29 print z_{i-1} - z_i for i = 1..K, which for i = 1 divides by z_0 - z_1 = 0 (both are one)."""
    order, tau = Downhill(tensor([0.4]), temperature=1.5), 1.5
    beta = order.log_probs().exp().numpy()
    u = np.linspace(-25, 25, 4001)
    z = expit(u)
    ours = order.log_density(torch.from_numpy(np.stack([np.ones_like(z), z], -1))).exp().numpy()
    right = downhill_density(beta, tau, [1 - z, z])
    assert np.allclose(ours, right, rtol=1e-3)  # 1 - z at the edge is known to 1e-5 of itself
    assert integrate.trapezoid(ours * z * expit(-u), u) == pytest.approx(1, abs=1e-8)
    with np.errstate(all="ignore"):
        printed = downhill_density(beta, tau, [np.zeros_like(z), 1 - z])
    assert not np.isfinite(printed).any()


def test_e3_each_fall_has_its_own_power_in_the_density():
    """Eq. 25 prints c^tau without an index; read as the sum of the falls it is a constant of too little mass."""
    order, tau = Downhill(tensor([0.4, -0.2]), temperature=0.7), 0.7
    beta = order.log_probs().exp()
    falls = tensor([[0.2, 0.5, 0.3], [0.7, 0.2, 0.1]])
    masks = torch.stack([torch.ones(2, dtype=F64), 1 - falls[:, 0], falls[:, 2]], -1)
    reference = RelaxedOneHotCategorical(tensor(tau), logits=order.log_probs()).log_prob(falls)
    assert torch.allclose(order.log_density(masks), reference, rtol=0, atol=1e-12)
    printed = [downhill_density(beta.numpy(), tau, [row.sum().item()] * 3) for row in falls]
    assert printed[0] == pytest.approx(printed[1])
    assert printed[0] / 2 < 0.1  # times the area of the triangle of falls, where a density has mass one


def test_e4_the_full_width_has_the_product_of_the_keep_probabilities():
    """Eq. 33's text has p(v_K) = sum pi_k: with 1, .9, .7, .6 that is 3.2, where .378 is right."""
    keep = [0.9, 0.7, 0.6]
    full = BernoulliChain(tensor(keep)).log_probs()[-1].exp().item()
    assert full == pytest.approx(0.378, abs=1e-12)
    assert 1 + sum(keep) == pytest.approx(3.2)


def test_e5_a_width_needs_all_earlier_blocks():
    """Section 8.2 prints beta_j = (1 - mu_{j+1}) mu_j, which does not sum to one; the product over k <= j does."""
    mu = [1.0, 0.9, 0.7, 0.6, 0.0]  # mu_1 = 1 ... mu_{K+1} = 0
    printed = [(1 - mu[j + 1]) * mu[j] for j in range(4)]
    assert sum(printed) == pytest.approx(0.1 + 0.27 + 0.28 + 0.6)
    assert sum(printed) > 1.2
    order = Downhill(torch.logit(tensor(mu[1:4])))
    assert order.log_probs().exp().sum().item() == pytest.approx(1, abs=1e-14)
    assert order.log_probs()[2].exp().item() == pytest.approx(0.4 * 0.9 * 0.7, abs=1e-14)


def test_e6_the_bump_of_eq_20_has_one_exponential_of_a_square():
    """Printed, a1 exp(-exp(a4 (..)^2)) is off by .329 on its fit range; the code's a1 exp(-e^a4 (..)^2) by .134."""
    a1, a2, a3, a4 = 0.7294, -0.2041, 0.3492, 0.5387
    log_alpha = torch.linspace(-5, 0.5, 2001, dtype=F64)
    truth = (np.euler_gamma + math.log(2)) / 2 - log_uniform_kl(log_alpha)
    square = (a2 + a3 * log_alpha).square()
    printed = a1 * torch.exp(-torch.exp(a4 * square)) - 0.5 * torch.log1p(torch.exp(-log_alpha))
    assert (printed - truth).abs().max().item() == pytest.approx(0.329, abs=5e-4)
    assert (-bn3_regulariser(log_alpha) - truth).abs().max().item() == pytest.approx(0.134, abs=5e-4)


def test_e7_the_log_uniform_kl_pushes_alpha_to_infinity_and_bn3_does_not():
    """Fig. 4's caption has "alpha -> 0" for what the log-uniform prior pushes alpha to: its KL falls all the way up."""
    log_alpha = torch.linspace(-12, 12, 241, dtype=F64)
    assert (log_uniform_kl(log_alpha).diff() < 0).all()
    lowest = log_alpha[bn3_regulariser(log_alpha).argmin()].item()
    assert lowest == pytest.approx(1.03, abs=0.1)


def test_e9_the_geometric_order_starts_at_power_zero_and_ends_with_the_rest():
    """Section 2.2 prints (1 - pi)^i pi for i >= 1 with pi the *stop* probability: .58 in all for pi = .3, K = 5."""
    stop, num_blocks = 0.3, 5
    printed = [(1 - stop) ** i * stop for i in range(1, num_blocks + 1)]
    assert sum(printed) == pytest.approx(0.58, abs=5e-3)
    probs = Geometric(num_blocks, 1 - stop, dtype=F64).log_probs().exp().tolist()
    assert probs == pytest.approx([0.7 ** (i - 1) * 0.3 for i in range(1, 5)] + [0.7**4], abs=1e-14)
    assert sum(probs) == pytest.approx(1, abs=1e-14)


def test_e10_a_weight_is_kept_by_its_column_not_its_row():
    """Section 3.2 prints the product up to the row i; the mask multiplies columns, so it is up to the column j."""
    keep = [1.0, 0.8, 0.5, 0.25]
    order = BernoulliChain(tensor(keep[1:]))
    num_rows = 3
    marginal = torch.zeros(num_rows, 4, dtype=F64)
    for width, prob in zip(order.widths(), order.log_probs().exp(), strict=True):
        marginal += prob * order.masks(width).expand(num_rows, 4)
    for i, j in itertools.product(range(num_rows), range(4)):
        assert marginal[i, j].item() == pytest.approx(math.prod(keep[: j + 1]), abs=1e-14)
        if keep[: i + 1] != keep[: j + 1]:
            assert marginal[i, j].item() != pytest.approx(math.prod(keep[: i + 1]), abs=1e-2)


def test_e11_an_order_has_a_state_for_each_width_where_free_masks_have_a_power_of_two():
    """Section 3.3's "from D^2 to D" components is from 2^D to D: among all 0/1 masks of 5 blocks, 5 are ordered."""
    order = Uniform(5, dtype=F64)
    free = list(itertools.product((0.0, 1.0), repeat=5))
    ordered = [m for m in free if m[0] == 1 and all(a >= b for a, b in itertools.pairwise(m))]
    assert len(free) == 2**5
    assert len(free) != 5**2
    assert sorted(ordered) == sorted(map(tuple, order.masks(order.widths()).tolist()))


def test_e12_only_the_whole_sum_over_widths_is_a_divergence():
    """Sections 2.1 / 3.3 print a sum of KL[q(v_j) || p(v_j)]: a single term is no KL, it can be negative."""
    q, p = Downhill(tensor([2.0, -1.0, 0.5])), BernoulliChain(tensor([0.5, 0.5, 0.5]))
    terms = q.log_probs().exp() * (q.log_probs() - p.log_probs())
    assert terms.min() < -0.05
    assert kl(q, p).item() == pytest.approx(terms.sum().item(), abs=1e-15)
    assert kl(q, p) > 0


def test_e15_the_best_prior_variance_is_of_the_mean_weight():
    """Eq. 38 puts the drawn weight w into gamma, where theta belongs: then the KL depends on the draw and is larger."""
    theta, log_alpha = 0.7, -0.4
    variance = math.exp(log_alpha) * theta**2

    def divergence(gamma):
        return 0.5 * (math.log(gamma / variance) + (variance + theta**2) / gamma - 1)

    best = hierarchical_kl(tensor(log_alpha)).item()
    assert divergence(theta**2 + variance) == pytest.approx(best, abs=1e-14)
    for w in (0.1, 0.4, 1.5):
        assert divergence(w**2 + variance) > best + 1e-3


# FN3 -------------------------------------------------------------------------------------------------------------


def test_e18_a_block_is_kept_when_the_drawn_index_reaches_it():
    """Section 2.2 prints "kept only when c <= m", which keeps the last block always and the first hardly ever."""
    num_blocks = 6
    order = Uniform(num_blocks, dtype=F64)
    right = [(num_blocks + 1 - m) / num_blocks for m in range(1, num_blocks + 1)]
    printed = [sum(c <= m for c in range(1, num_blocks + 1)) / num_blocks for m in range(1, num_blocks + 1)]
    assert order.keep_probs().tolist() == pytest.approx(right, abs=1e-14)
    assert printed == pytest.approx(right[::-1])
    masks = order.masks(order.sample((1000,), seeded(2)))
    assert (masks.diff(dim=-1) <= 0).all()


def test_e19_corollary_one_weighs_gain_c_with_m_minus_c_plus_one():
    """E I_c = I_1 + (1/M) sum_{c >= 2} (M - c + 1)(I_c - I_{c-1}); printed with M - c, the last block has no weight."""
    information = [0.3, 0.9, 1.2, 1.3, 2.0]
    order = Uniform(5, dtype=F64)
    gains = tensor([information[0]] + [b - a for a, b in itertools.pairwise(information)])
    truth = sum(information) / 5
    assert (order.log_probs().exp() @ tensor(information)).item() == pytest.approx(truth, abs=1e-14)
    assert (order.keep_probs() @ gains).item() == pytest.approx(truth, abs=1e-14)
    printed = information[0] + sum((5 - c) * gains[c - 1].item() for c in range(2, 6)) / 5
    assert printed < truth - 0.3


# Slides ----------------------------------------------------------------------------------------------------------


def test_e28_a_dropout_mask_is_one_with_the_keep_probability():
    """m ~ Bernoulli(p) with p the drop rate contradicts q = p delta(0) + (1 - p) delta(mu); 1 - p is right."""
    drop_prob = 0.2
    drawn = BernoulliGate(10, drop_prob).sample(torch.zeros(DRAWS // 10, 10, dtype=F64), seeded(3))
    dropped = (drawn == 0).double().mean().item()
    standard_error = math.sqrt(drop_prob * (1 - drop_prob) / DRAWS)
    assert dropped == pytest.approx(drop_prob, abs=5 * standard_error)
    assert abs(dropped - (1 - drop_prob)) > 100 * standard_error  # what Bernoulli(p) would drop
    assert drawn.mean().item() == pytest.approx(1, abs=5 * math.sqrt(0.25 / DRAWS))


def test_e31_the_regulariser_is_added_to_a_loss_that_is_minimised():
    """The last slides leave the sign open: descent on + KL raises alpha, which is sparsity; on - KL it lowers it."""
    log_alpha = tensor(0.0).requires_grad_()
    (slope,) = torch.autograd.grad(log_uniform_kl(log_alpha), log_alpha)
    assert (log_alpha - 0.1 * slope).item() > 0
    assert (log_alpha + 0.1 * slope).item() < 0


# BB / DBB --------------------------------------------------------------------------------------------------------


def test_e34_the_beta_prior_has_concentration_alpha_over_k():
    """Eq. 16 has alpha for alpha / K: 7.007 (Monte Carlo too) against .958, for K = 500 and alpha / K = 1e-4."""
    a, b, c, num_units = tensor(0.3), tensor(1.0), 1e-4, 500
    assert kumaraswamy_beta_kl(a, b, c).item() == pytest.approx(7.007, abs=5e-4)
    assert kumaraswamy_beta_kl(a, b, c * num_units).item() == pytest.approx(0.958, abs=5e-4)
    log_pi = np.log(np.random.default_rng(4).uniform(size=DRAWS)) / 0.3  # Kumaraswamy(a, 1) is u^(1/a)
    ratio = math.log(0.3) + (0.3 - 1) * log_pi - math.log(c) - (c - 1) * log_pi
    assert ratio.mean() == pytest.approx(7.007, abs=5e-4 + 5 * ratio.std() / math.sqrt(DRAWS))
    assert BetaBernoulli(num_units).concentration == c


def test_e35_the_pruning_threshold_is_a_hundredth():
    """Printed "10^-23" is 10^-2 with a footnote mark: at 1e-23 even the smallest a, 4.5e-5 at b = 1, would stay."""
    gate = BetaBernoulli(2)
    with torch.no_grad():
        gate.raw_a.copy_(torch.tensor([-10.0, -1.0]))
    assert gate.default_threshold == 1e-2
    assert gate.keep().tolist() == [False, True]
    assert gate.keep(1e-23).tolist() == [True, True]


def test_e36_the_prior_scale_is_a_standard_deviation():
    """The "prior variance sqrt(10)" is, in the code, a standard deviation sqrt(5): the KL is least at variance 5."""
    gate = DependentBetaBernoulli(BetaBernoulli(1)).double()
    with torch.no_grad():
        gate.eta.zero_()

    def divergence(variance):
        with torch.no_grad():
            gate.raw_kappa.fill_(math.log(math.expm1(math.sqrt(variance))))
        return (gate.kl() - gate.gate.kl()).item()

    assert divergence(5.0) == pytest.approx(0, abs=1e-12)
    assert divergence(math.sqrt(10)) > 0.01
    best = optimize.minimize_scalar(divergence, bounds=(1, 20), method="bounded", options={"xatol": 1e-8})
    assert best.x == pytest.approx(5, rel=1e-4)
    assert gaussian_kl(tensor(0.0), tensor(math.log(5.0)), 5.0).item() > 0.3  # the same number read as a deviation


def test_e37_the_expectation_reads_the_test_input_and_samples_keep_with_the_product():
    """Eq. 25 prints x_n, a training input, for x_*; and the released code multiplies two relaxed samples.

    One relaxed Bernoulli keeps (z > 1/2) with exactly pi phi at any temperature; a product of two warm ones does not.
    """
    gate = DependentBetaBernoulli(BetaBernoulli(2, temperature=1.0)).double().eval()
    with torch.no_grad():
        gate.eta.fill_(0.5)
        gate.raw_kappa.fill_(-30.0)  # beta all but fixed
        gate.gate.raw_a.fill_(1.0)
    train, test = tensor([[0.3, 0.3]]), tensor([[-0.2, 0.1]])
    phi = torch.stack([0.5 + test[0, 0], 0.5 + test[0, 1]])
    assert torch.allclose(gate.expectation(test)[0], gate.gate.mean() * phi, rtol=1e-5)
    assert (gate.expectation(train)[0] - gate.gate.mean() * phi).abs().min() > 0.1
    drawn = gate.sample(test.expand(DRAWS, 2), seeded(5)).detach()
    generator = seeded(5)
    torch.empty(2, dtype=F64).normal_(generator=generator)
    pi = gate.gate.sample_log_pi(generator).exp().detach()
    keep = pi * phi
    allowed = 5 * (keep * (1 - keep) / DRAWS).sqrt() + 1e-5
    assert (((drawn > 0.5).double().mean(0) - keep).abs() < allowed).all()
    noise = [torch.logit(torch.rand(DRAWS, 2, dtype=F64, generator=seeded(s))) for s in (6, 7)]
    product = torch.sigmoid(torch.logit(pi) + noise[0]) * torch.sigmoid(torch.logit(phi) + noise[1])
    assert (((product > 0.5).double().mean(0) - keep).abs() > 10 * allowed).any()


def test_e39_beta_bernoulli_counts_keeping_and_plain_dropout_counts_dropping():
    """Section 2's p is a drop probability, from section 3 on pi is a keep probability: the larger, the more is left."""
    features = torch.zeros(2000, 5)
    few, many = (BetaBernoulli(5, raw_a=raw).sample(features, seeded(8)).mean() for raw in (-3.0, 6.0))
    assert few < 0.5 < many
    low, high = ((BernoulliGate(5, p).sample(features, seeded(8)) == 0).double().mean() for p in (0.1, 0.8))
    assert low < 0.5 < high


# VBD -------------------------------------------------------------------------------------------------------------


def test_e41_the_minus_sign_of_eq_15_covers_both_terms():
    """Printed, the "KL" is .5 log(gamma / s^2) - (s^2 + theta^2) / (2 gamma) + .5: without a least value over gamma."""
    theta, log_alpha = 0.7, 0.3
    variance = math.exp(log_alpha) * theta**2

    def right(gamma):
        return 0.5 * math.log(gamma / variance) + (variance + theta**2) / (2 * gamma) - 0.5

    def printed(gamma):
        return 0.5 * math.log(gamma / variance) - (variance + theta**2) / (2 * gamma) + 0.5

    best = optimize.minimize_scalar(lambda x: right(math.exp(x)), bracket=(-2, 2))
    assert best.fun == pytest.approx(hierarchical_kl(tensor(log_alpha)).item(), abs=1e-12)
    assert printed(1e-3) < -100
    assert min(right(g) for g in (1e-3, 0.1, 1.0, 100.0)) > 0


def test_e44_minus_kl_is_constant_for_a_large_alpha_and_falls_without_end_for_a_small_one():
    """Section 5.1 says "to a constant as log alpha goes to minus infinity": it is plus; at minus it is .5 log alpha."""
    for function, offset in ((log_uniform_kl, (np.euler_gamma + math.log(2)) / 2), (hierarchical_kl, 0.0)):
        large, small = tensor([20.0, 40.0, 60.0]), tensor([-60.0, -40.0, -20.0])
        assert function(large).abs().max() < 1e-8
        assert (function(small) - (offset - 0.5 * small)).abs().max() < 1e-8
        assert function(small).diff().abs().min() > 9
