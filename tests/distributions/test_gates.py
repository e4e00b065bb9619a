"""Gates: samples against closed forms and quadrature, expectations, divergences, keep decisions and gradients."""

import copy
import math
from functools import cache

import mpmath as mp
import numpy as np
import pytest
import torch
from scipy import integrate, special, stats
from scipy.special import expit, logit
from torch.autograd import gradcheck
from torch.distributions import Normal, kl_divergence
from torch.func import functional_call

from nestling.distributions import (
    BernoulliGate,
    BetaBernoulli,
    ConcreteGate,
    DependentBetaBernoulli,
    Gate,
    GaussianDropoutGate,
    GaussianGate,
    LogNormalGate,
    hierarchical_kl,
    kumaraswamy_beta_kl,
    log_uniform_kl,
    truncated_log_normal_kl,
)
from nestling.distributions.gates.beta_bernoulli import relaxed_bernoulli
from nestling.distributions.noise import logistic_noise
from nestling.distributions.special import log_beta

F64 = torch.float64
DRAWS = 100_000
MAKERS = {
    "bernoulli": lambda n: BernoulliGate(n, 0.3),
    "gaussian_dropout": lambda n: GaussianDropoutGate(n, 0.3),
    "concrete": lambda n: ConcreteGate(n, 0.3),
    "beta_bernoulli": BetaBernoulli,
    "dependent": lambda n: DependentBetaBernoulli(BetaBernoulli(n)),
    "gaussian": GaussianGate,
    "log_normal": LogNormalGate,
}
every_gate = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def fill(parameter: torch.nn.Parameter, values) -> None:
    with torch.no_grad():
        parameter.copy_(torch.as_tensor(values, dtype=parameter.dtype))


def assert_moments(draws: torch.Tensor, mean: float, variance: float, slack: float = 0.0) -> None:
    """Mean within 5 standard errors; variance too, by the central fourth moment of the draws themselves."""
    count = draws.numel()
    assert draws.mean().item() == pytest.approx(mean, abs=5 * math.sqrt(variance / count) + slack)
    fourth = (draws - draws.mean()).pow(4).mean().item()
    assert draws.var().item() == pytest.approx(variance, abs=5 * math.sqrt((fourth - variance**2) / count) + slack)


def uniforms(count: int) -> np.ndarray:
    """Midpoints of ``count`` equal cells of [0, 1]: quadrature over any variable given by its quantile function."""
    return (np.arange(count) + 0.5) / count


class Readings(torch.nn.Module):
    """All that a gate says at once, as a function of its parameters: a fixed sample, the expectation and the KL."""

    def __init__(self, gate: Gate, seed: int) -> None:
        super().__init__()
        self.gate, self.seed = gate, seed

    def forward(self) -> tuple[torch.Tensor, ...]:
        features = torch.linspace(-0.5, 0.5, 2 * self.gate.num_units, dtype=F64).reshape(2, -1)
        return self.gate.sample(features, seeded(self.seed)), self.gate.expectation(features), self.gate.kl()


@every_gate
def test_samples_fit_the_features_and_are_reproducible(make):
    gate, features = make(5), torch.randn(7, 5, generator=seeded(0))
    twin = copy.deepcopy(gate)
    drawn = gate.sample(features, seeded(1))
    assert torch.equal(drawn, twin.sample(features, seeded(1)))
    assert torch.broadcast_shapes(drawn.shape, features.shape) == features.shape
    assert drawn.shape[-1] == 5
    assert drawn.dtype == features.dtype
    expected = gate.expectation(features)
    assert torch.broadcast_shapes(expected.shape, features.shape) == features.shape
    assert gate.kl().shape == ()
    assert gate.keep().shape == (5,)
    assert gate.keep().dtype == torch.bool
    assert repr(gate).startswith(type(gate).__name__)


@every_gate
def test_a_batch_of_one_and_of_none(make):
    gate = make(3).eval()
    assert gate.sample(torch.zeros(1, 3), seeded(0)).isfinite().all()
    assert gate.sample(torch.zeros(0, 3), seeded(0)).shape in ((0, 3), (3,))


@every_gate
def test_gradients_reach_every_parameter_and_are_finite(make):
    gate = make(40)
    features = torch.randn(64, 40, generator=seeded(2))
    loss = (gate.sample(features, seeded(3)) * features).square().mean() + gate.kl() / 1000
    if not list(gate.parameters()):
        assert not loss.requires_grad
        assert gate.kl().item() == 0
        return
    loss.backward()
    for name, parameter in gate.named_parameters():
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().max() > 0, name
    gate.zero_grad()
    gate.sample(features, seeded(4)).sum().backward()
    reached = {name for name, p in gate.named_parameters() if p.grad is not None and p.grad.abs().max() > 0}
    assert reached == {name for name, _ in gate.named_parameters()}


@every_gate
def test_gates_move_to_float64(make):
    gate = make(3).double()
    features = torch.zeros(4, 3, dtype=F64)
    assert gate.sample(features, seeded(5)).dtype == F64
    assert gate.expectation(features).dtype == F64


def test_bernoulli_gate():
    gate = BernoulliGate(10, 0.3)
    drawn = gate.sample(torch.zeros(DRAWS // 10, 10, dtype=F64), seeded(6))
    assert drawn.unique().tolist() == pytest.approx([0.0, 1 / 0.7])
    assert_moments(drawn, 1.0, 0.3 / 0.7)
    assert (drawn == 0).double().mean().item() == pytest.approx(0.3, abs=5 * math.sqrt(0.21 / DRAWS))
    assert gate.expectation(torch.zeros(2, 10)).tolist() == [1.0] * 10
    assert gate.keep(0.999).all()
    assert (BernoulliGate(3, 0.0).sample(torch.zeros(50, 3), seeded(7)) == 1).all()


def test_gaussian_dropout_gate():
    gate = GaussianDropoutGate(10, 0.4)
    drawn = gate.sample(torch.zeros(DRAWS // 10, 10, dtype=F64), seeded(8))
    assert_moments(drawn, 1.0, 0.4 / 0.6)
    assert stats.kstest(drawn.flatten().numpy(), stats.norm(1, math.sqrt(0.4 / 0.6)).cdf).pvalue > 1e-4
    assert gate.expectation(torch.zeros(2, 10)).tolist() == [1.0] * 10
    assert gate.keep(0.999).all()
    assert (GaussianDropoutGate(3, 0.0).sample(torch.zeros(50, 3), seeded(9)) == 1).all()


@pytest.mark.parametrize(("drop_prob", "temperature"), [(0.1, 0.1), (0.5, 0.7), (0.8, 0.2)])
def test_concrete_gate_samples_by_quadrature(drop_prob, temperature):
    """z = sigmoid((logit u - logit p) / temperature) / (1 - p), integrated over u in 10^5 cells."""
    gate = ConcreteGate(10, drop_prob, temperature=temperature).double()
    z = expit((logit(uniforms(100_000)) - logit(drop_prob)) / temperature) / (1 - drop_prob)
    drawn = gate.sample(torch.zeros(DRAWS // 10, 10, dtype=F64), seeded(10)).detach()
    assert_moments(drawn, z.mean(), z.var())
    above_half = (drawn * (1 - drop_prob) > 0.5).double().mean().item()
    assert above_half == pytest.approx(1 - drop_prob, abs=5 * math.sqrt(drop_prob * (1 - drop_prob) / DRAWS))


def test_concrete_gate_has_mean_one_in_the_cold():
    gate = ConcreteGate(10, 0.3, temperature=1e-3)
    drawn = gate.sample(torch.zeros(DRAWS // 10, 10), seeded(11)).detach().double()
    assert_moments(drawn, 1.0, 0.3 / 0.7, slack=1e-3)  # blur of order the temperature


def test_concrete_gate_kl_is_log_two_minus_the_entropy_for_each_unit():
    for drop_prob in (0.02, 0.5, 0.9):
        entropy = -drop_prob * math.log(drop_prob) - (1 - drop_prob) * math.log(1 - drop_prob)
        assert ConcreteGate(7, drop_prob).kl().item() == pytest.approx(7 * (math.log(2) - entropy), abs=1e-5)


def test_concrete_gate_keeps_all_units_or_none():
    gate = ConcreteGate(4, 0.8)
    assert gate.keep().tolist() == [True] * 4
    assert gate.keep(0.19).tolist() == [True] * 4
    assert gate.keep(0.21).tolist() == [False] * 4


@pytest.mark.parametrize("drop_prob", [1e-9, 1 - 1e-9])
def test_concrete_gate_starts_at_any_probability_inside(drop_prob):
    """In float32 the probability itself would round to 1 and its logit to infinity."""
    assert ConcreteGate(2, drop_prob).drop_logit.item() == pytest.approx(logit(drop_prob), rel=1e-6)


def beta_bernoulli(raw_a: float, raw_b: float, num_units: int, **kwargs) -> BetaBernoulli:
    gate = BetaBernoulli(num_units, **kwargs).double()
    fill(gate.raw_a, torch.full((num_units,), raw_a))
    fill(gate.raw_b, torch.full((num_units,), raw_b))
    return gate


def test_beta_bernoulli_starts_as_released():
    """FACTS 5.2: a = .3133 and b = 1, so E[pi] = a / (1 + a) = .2385; concentration 1e-4, temperature .1."""
    gate = BetaBernoulli(3)
    assert gate.a().tolist() == pytest.approx([0.3133] * 3, abs=5e-5)
    assert gate.b().tolist() == pytest.approx([1.0] * 3, abs=5e-5)
    assert gate.mean().tolist() == pytest.approx([0.2385] * 3, abs=1e-4)
    assert (gate.concentration, gate.temperature, gate.default_threshold) == (1e-4, 0.1, 1e-2)
    assert BetaBernoulli(1, raw_a=2.0).mean().item() == pytest.approx(0.680, abs=5e-4)


@pytest.mark.parametrize(("raw_a", "raw_b"), [(-1.0, 0.5413), (1.0, 2.0), (0.5, -1.0)])
def test_keep_probabilities_are_kumaraswamy(raw_a, raw_b):
    """F(x) = 1 - (1 - x^a)^b by a Kolmogorov-Smirnov test at level 1e-4, and the mean within 5 standard errors."""
    gate = beta_bernoulli(raw_a, raw_b, DRAWS)
    a, b = gate.a()[0].item(), gate.b()[0].item()
    pi = gate.sample_log_pi(seeded(12)).detach().exp()
    assert stats.kstest(pi.numpy(), lambda x: 1 - (1 - x**a) ** b).pvalue > 1e-4
    mean, _ = integrate.quad(lambda x: (1 - x**a) ** b, 0, 1)
    assert pi.mean().item() == pytest.approx(mean, abs=5 * pi.std().item() / math.sqrt(DRAWS))
    assert gate.mean()[0].item() == pytest.approx(mean, abs=1e-7)  # quad's own accuracy at the edges


@pytest.mark.parametrize(("raw_a", "raw_b", "temperature"), [(-1.0, 0.5413, 0.1), (1.0, 1.0, 0.5), (2.0, 0.0, 2.0)])
def test_beta_bernoulli_samples_by_quadrature(raw_a, raw_b, temperature):
    """Over both uniforms, pi = (1 - u^(1/b))^(1/a) and z = sigmoid((logit pi + logit v) / tau), in 1500^2 cells."""
    gate = beta_bernoulli(raw_a, raw_b, DRAWS, temperature=temperature)
    a, b = gate.a()[0].item(), gate.b()[0].item()
    u = uniforms(1500)
    pi = (1 - u ** (1 / b)) ** (1 / a)
    z = expit((logit(pi)[:, None] + logit(u)) / temperature)
    drawn = gate.sample(torch.zeros(1, DRAWS, dtype=F64), seeded(13)).detach()
    assert_moments(drawn, z.mean(), z.var(), slack=2e-4)  # the cells at the edges


def test_beta_bernoulli_draws_pi_once_a_batch_and_z_once_an_example():
    gate = BetaBernoulli(4, raw_a=1.0)
    drawn = gate.sample(torch.zeros(DRAWS, 4), seeded(14)).detach()
    pi = gate.sample_log_pi(seeded(14)).detach().exp()  # the same first draw from the generator
    share = (drawn > 0.5).double().mean(0)
    assert ((share - pi).abs() < 5 * (pi * (1 - pi) / DRAWS).sqrt()).all()
    assert pi.unique().numel() == 4


def test_relaxed_mean_tends_to_the_keep_probability_in_the_cold():
    """|E[z] - p| falls with the temperature: about 0.2 p at 1, under 1e-3 at 0.01, where only sampling is left."""
    p = torch.full((DRAWS,), 0.2, dtype=F64)
    noise = logistic_noise(p, seeded(15))
    off = [abs(relaxed_bernoulli(p.log(), noise, tau).mean().item() - 0.2) for tau in (2.0, 0.5, 0.01)]
    assert off[0] > off[1] > off[2]
    assert off[2] < 5 * math.sqrt(0.16 / DRAWS) + 1e-3


def test_beta_bernoulli_kl_sums_over_units():
    gate = BetaBernoulli(3, concentration=1e-3).double()
    fill(gate.raw_a, [-1.0, 0.5, 2.0])
    fill(gate.raw_b, [0.5, -1.0, 3.0])
    total = 0.0
    for raw_a, raw_b in zip(gate.raw_a.tolist(), gate.raw_b.tolist(), strict=True):
        a, b = math.log1p(math.exp(raw_a)), math.log1p(math.exp(raw_b))
        with mp.workdps(25):
            total += mp.quad(
                lambda u, a=a, b=b: (
                    mp.log(a * b)
                    + (a - 1e-3) * mp.log1p(-(u ** (1 / mp.mpf(b)))) / a
                    + (b - 1) / mp.mpf(b) * mp.log(u)
                    - mp.log(1e-3)
                ),
                [0, 0.5, 1],
            )
    assert gate.kl().item() == pytest.approx(float(total), abs=1e-9)
    assert gate.kl().item() == kumaraswamy_beta_kl(gate.a(), gate.b(), 1e-3).sum().item()


def test_beta_bernoulli_keeps_units_above_the_threshold():
    """With b = 1, E[pi] = a / (1 + a), so a = .02 / .98 sits at .02."""
    gate = BetaBernoulli(4).double()
    means = np.array([5e-4, 5e-3, 2e-2, 0.9])
    fill(gate.raw_a, np.log(np.expm1(means / (1 - means))))
    fill(gate.raw_b, [math.log(math.expm1(1.0))] * 4)
    assert gate.expectation(torch.zeros(2, 4)).tolist() == pytest.approx(means.tolist(), rel=1e-9)
    assert gate.keep().tolist() == [False, False, True, True]
    assert gate.keep(1e-3).tolist() == [False, True, True, True]
    assert gate.keep(0.5).tolist() == [False, False, False, True]
    assert gate.keep(0.0).all()


def test_beta_bernoulli_gradcheck():
    raw_a = torch.tensor([-1.0, 0.5], dtype=F64, requires_grad=True)
    raw_b = torch.tensor([0.5, 1.5], dtype=F64, requires_grad=True)
    readings = Readings(BetaBernoulli(2, temperature=0.5).double(), 16)
    assert gradcheck(lambda a, b: functional_call(readings, {"gate.raw_a": a, "gate.raw_b": b}, ()), (raw_a, raw_b))


def test_dependent_gradcheck():
    readings = Readings(dependent_gate().eval(), 27)
    names, values = zip(*readings.named_parameters(), strict=True)
    values = [v.detach().clone().requires_grad_() for v in values]
    assert gradcheck(lambda *v: functional_call(readings, dict(zip(names, v, strict=True)), ()), values)


def test_concrete_gradcheck():
    readings = Readings(ConcreteGate(3, temperature=0.5).double(), 28)
    drop_logit = torch.tensor(-0.7, dtype=F64, requires_grad=True)
    assert gradcheck(lambda x: functional_call(readings, {"gate.drop_logit": x}, ())[::2], (drop_logit,))


def dependent_gate(num_units: int = 3, temperature: float = 0.1) -> DependentBetaBernoulli:
    gate = DependentBetaBernoulli(BetaBernoulli(num_units, temperature=temperature)).double()
    fill(gate.gamma, torch.linspace(0.2, 0.5, num_units))
    fill(gate.eta, torch.linspace(0.3, 0.8, num_units))
    fill(gate.raw_kappa, torch.linspace(-3.0, -1.0, num_units))
    fill(gate.gate.raw_a, torch.linspace(0.0, 2.0, num_units))
    return gate


def test_running_statistics_follow_the_batches_by_hand():
    """running <- .99 running + .01 batch, with the unbiased variance, in training only."""
    gate = dependent_gate()
    mean, variance = np.zeros(3), np.ones(3)
    for seed in range(4):
        batch = torch.randn(16, 3, dtype=F64, generator=seeded(seed)) * 3 + 1
        gate.sample(batch, seeded(0))
        mean = 0.99 * mean + 0.01 * batch.numpy().mean(0)
        variance = 0.99 * variance + 0.01 * batch.numpy().var(0, ddof=1)
    assert gate.running_mean.tolist() == pytest.approx(mean.tolist(), abs=1e-14)
    assert gate.running_var.tolist() == pytest.approx(variance.tolist(), abs=1e-14)
    gate.eval().sample(batch, seeded(0))
    gate.expectation(batch)
    gate.train().expectation(batch)
    assert gate.running_mean.tolist() == pytest.approx(mean.tolist(), abs=1e-14)


def test_running_statistics_of_a_batch_of_one_have_no_variance_to_learn_from():
    gate = dependent_gate()
    gate.sample(torch.full((1, 3), 5.0, dtype=F64), seeded(0))
    assert gate.running_var.tolist() == [1.0] * 3
    assert gate.running_mean.tolist() == pytest.approx([0.05] * 3)


def test_running_statistics_are_saved():
    gate = dependent_gate()
    gate.observe(torch.randn(8, 3, dtype=F64, generator=seeded(1)))
    twin = dependent_gate()
    twin.load_state_dict(gate.state_dict())
    assert torch.equal(twin.running_var, gate.running_var)


def test_a_refused_batch_leaves_the_running_statistics_alone():
    gate = dependent_gate()
    for shape in ((4, 1), (4, 5), (3,)):
        with pytest.raises(ValueError, match="features"):
            gate.sample(torch.full(shape, 9.0, dtype=F64))
    assert gate.running_mean.tolist() == [0.0] * 3
    assert gate.running_var.tolist() == [1.0] * 3


def test_dependence_is_standardised_shifted_and_clamped():
    gate = dependent_gate(2).eval()
    fill(gate.gamma, [1.0, 2.0])
    gate.running_mean.copy_(torch.tensor([1.0, -1.0]))
    gate.running_var.copy_(torch.tensor([4.0, 0.25]))
    beta = torch.tensor([0.5, 0.1], dtype=F64)
    features = torch.tensor([[1.0, -1.0], [1.4, -0.9], [100.0, 100.0], [-100.0, -100.0]], dtype=F64)
    # gamma (x - mu) / sigma + beta: 0 + beta, then .2 and .4 above it, then both ends of the clamp.
    expected = [[0.5, 0.1], [0.7, 0.5], [1 - 1e-6, 1 - 1e-6], [1e-6, 1e-6]]
    found = gate.dependence(features, beta)
    for row, by_hand in zip(found.tolist(), expected, strict=True):
        assert row == pytest.approx(by_hand, abs=1e-5)  # eps = 1e-6 inside the root
    assert found.min() == gate.eps
    assert found.max() == 1 - gate.eps


def test_dependent_expectation_is_the_product_of_both_means():
    gate = dependent_gate().eval()
    features = torch.randn(5, 3, dtype=F64, generator=seeded(17))
    phi = (gate.gamma * features / math.sqrt(1 + 1e-6) + gate.eta).clamp(1e-6, 1 - 1e-6)
    assert torch.allclose(gate.expectation(features), gate.gate.mean() * phi, rtol=1e-12, atol=0)


def test_dependent_samples_keep_with_the_product_of_both_probabilities():
    """Given pi and beta, P(z > 1/2) = pi phi(x) at any temperature: 5 standard errors over 10^5 examples."""
    for temperature in (0.1, 3.0):
        gate = dependent_gate(temperature=temperature).eval()
        row = torch.tensor([0.4, -0.3, 0.1], dtype=F64)
        drawn = gate.sample(row.expand(DRAWS, 3), seeded(18)).detach()
        generator = seeded(18)  # the gate draws beta first, then pi, then the noise of z
        beta = gate.eta + gate.kappa() * torch.empty(3, dtype=F64).normal_(generator=generator)
        prob = (gate.gate.sample_log_pi(generator).exp() * gate.dependence(row[None], beta)[0]).detach()
        share = (drawn > 0.5).double().mean(0)
        assert ((share - prob).abs() < 5 * (prob * (1 - prob) / DRAWS).sqrt()).all()


def test_dependent_relaxed_mean_tends_to_the_expectation_in_the_cold():
    """Over pi and beta too: E[pi] E[clamp(c + kappa e)] by quadrature, 5 standard errors of 10^5 independent units."""
    gate = DependentBetaBernoulli(BetaBernoulli(DRAWS, temperature=1e-3, raw_a=1.0)).double().eval()
    fill(gate.eta, torch.full((DRAWS,), 0.6))
    fill(gate.raw_kappa, torch.full((DRAWS,), -1.0))
    drawn = gate.sample(torch.full((1, DRAWS), 0.1, dtype=F64), seeded(19)).detach()
    kappa = math.log1p(math.exp(-1))
    centre = 0.1 / math.sqrt(1 + 1e-6) + 0.6
    phi = np.clip(centre + kappa * stats.norm.ppf(uniforms(100_000)), 1e-6, 1 - 1e-6).mean()
    mean = gate.gate.mean()[0].item() * phi
    assert drawn.mean().item() == pytest.approx(mean, abs=5 * math.sqrt(mean * (1 - mean) / DRAWS) + 1e-4)


def test_dependent_kl_adds_a_gaussian_of_variance_five():
    gate = dependent_gate()
    kappa = torch.nn.functional.softplus(gate.raw_kappa)
    prior = Normal(torch.tensor(0.0, dtype=F64), torch.tensor(math.sqrt(5), dtype=F64))
    beta_kl = kl_divergence(Normal(gate.eta, kappa), prior).sum()
    assert gate.kl().item() == pytest.approx((gate.gate.kl() + beta_kl).item(), abs=1e-12)


def test_dependent_gate_sends_no_gradient_into_its_features():
    features = torch.randn(6, 3, dtype=F64, generator=seeded(20)).requires_grad_()
    gate = dependent_gate().eval()
    drawn = gate.sample(features, seeded(21))
    (drawn.sum() + gate.expectation(features).sum()).backward()
    assert features.grad is None
    (gate.sample(features, seeded(21)) * features).sum().backward()  # only as the activation that it multiplies
    assert torch.equal(features.grad, drawn.detach())


def test_second_stage_holds_pi_fixed():
    """Frozen first-stage parameters get no gradient; the rest does, also after the gate is told to train."""
    gate = dependent_gate()
    gate.gate.requires_grad_(False)
    before = [p.clone() for p in gate.gate.parameters()]
    optimiser = torch.optim.Adam([p for p in gate.parameters() if p.requires_grad], lr=0.1)
    features = torch.randn(32, 3, dtype=F64, generator=seeded(22))
    for seed in range(3):
        optimiser.zero_grad()
        (gate.sample(features, seeded(seed)).mean() + gate.kl()).backward()
        optimiser.step()
    assert all(torch.equal(a, b) for a, b in zip(gate.gate.parameters(), before, strict=True))
    assert all(p.grad is None for p in gate.gate.parameters())
    assert {n for n, p in gate.named_parameters() if p.grad is not None} == {"gamma", "eta", "raw_kappa"}


def test_dependent_keep_decisions():
    gate = dependent_gate().eval()
    fill(gate.gate.raw_a, [-10.0, 0.0, 2.0])
    assert gate.keep().tolist() == gate.gate.keep().tolist() == [False, True, True]
    assert gate.keep(0.6).tolist() == gate.gate.keep(0.6).tolist()
    features = torch.tensor([[0.0, -50.0, 0.0], [0.0, 0.0, -50.0]], dtype=F64)
    assert gate.keep_for(features).tolist() == [[False, False, True], [False, True, False]]
    assert not gate.keep_for(features, 0.999).any()


@pytest.mark.parametrize("divergence", [hierarchical_kl, log_uniform_kl])
def test_gaussian_gate(divergence):
    gate = GaussianGate(3, divergence=divergence).double()
    theta, log_sigma2 = [0.8, -1.5, 0.02], [-3.0, 0.5, -1.0]
    fill(gate.posterior.mean, theta)
    fill(gate.posterior.log_sigma2, log_sigma2)
    drawn = gate.sample(torch.zeros(DRAWS, 3, dtype=F64), seeded(23)).detach()
    for unit in range(3):
        assert_moments(drawn[:, unit], theta[unit], math.exp(log_sigma2[unit]))
    assert gate.expectation(torch.zeros(1, 3)).tolist() == pytest.approx(theta)
    log_alpha = [s - math.log(t**2) for t, s in zip(theta, log_sigma2, strict=True)]
    total = sum(divergence(torch.tensor(x, dtype=F64)).item() for x in log_alpha)
    assert gate.kl().item() == pytest.approx(total, abs=1e-12)
    assert GaussianGate(1, log_sigma2=2.99).keep().item()
    assert not GaussianGate(1, log_sigma2=3.0).keep().item()
    # log alpha = -2.55, -.31 and 6.82: the last is past the threshold of 3.
    assert gate.keep().tolist() == [True, True, False]
    assert gate.keep(-1.0).tolist() == [True, False, False]
    assert gate.keep(7.0).all()


def test_gaussian_gate_draws_for_each_example_and_unit():
    drawn = GaussianGate(4, log_sigma2=0.0).sample(torch.zeros(6, 4), seeded(24))
    assert drawn.unique().numel() == 24


SPREADS = [(-0.5, -1.0), (0.0, -5.0), (-3.0, 0.5), (-10.0, 1.5), (-20.0, 0.0), (0.0, 2.0), (-5.0, 5.0)]


@cache
def truncated_moments(mu: float, log_std: float) -> tuple[float, float]:
    """E[z] and E[z^2] of log z ~ N(mu, std^2) cut to [-20, 0], by multiple-precision quadrature."""
    with mp.workdps(20):
        std = mp.exp(log_std)
        near = [x for k in (-8, -4, -2, -1, 0, 1, 2, 4, 8) if -20 < (x := mu + k * std) < 0]
        points = [mp.mpf(-20), *near, mp.mpf(0)]
        mass, first, second = (mp.quad(lambda x, k=k: mp.exp(k * x) * mp.npdf(x, mu, std), points) for k in range(3))
        return float(first / mass), float(second / mass)


def log_normal_gate(dtype: torch.dtype = F64) -> LogNormalGate:
    gate = LogNormalGate(len(SPREADS)).to(dtype)
    fill(gate.raw_mu, [m for m, _ in SPREADS])
    fill(gate.raw_log_std, [s for _, s in SPREADS])
    return gate


def test_log_normal_gate_moments_by_quadrature():
    """float64 to 1e-9; float32 to 2e-3, since half the squared spread (1e4 at log std 5) cancels against a tail."""
    for dtype, tolerance in ((F64, 1e-9), (torch.float32, 2e-3)):
        gate = log_normal_gate(dtype)
        found = gate.expectation(torch.zeros(1, len(SPREADS), dtype=dtype)).tolist()
        ratio = gate.signal_to_noise().tolist()
        for unit, (mu, log_std) in enumerate(SPREADS):
            first, second = truncated_moments(mu, log_std)
            assert found[unit] == pytest.approx(first, rel=tolerance)
            assert ratio[unit] == pytest.approx(first / math.sqrt(second - first**2), rel=max(tolerance, 1e-6))


class _FlatEnds(torch.autograd.Function):
    """A clamp whose gradient is zero at its bounds, as torch has had it from 2.15 on."""

    @staticmethod
    def forward(ctx, x, low, high):
        ctx.save_for_backward((x > low) & (x < high))
        return x.detach().clone().fmax(torch.as_tensor(low).to(x)).fmin(torch.as_tensor(high).to(x))

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.saved_tensors[0], None, None


@pytest.fixture(params=["torch's clamp", "zero at the bounds"])
def either_clamp(request, monkeypatch):
    if request.param == "zero at the bounds":
        flat = lambda x, low=-math.inf, high=math.inf: _FlatEnds.apply(x, low, high)  # noqa: E731
        monkeypatch.setattr(torch.Tensor, "clamp", flat)
        monkeypatch.setattr(torch.Tensor, "clamp_min", flat)


@pytest.mark.usefixtures("either_clamp")
def test_log_normal_gate_trains_from_where_it_starts():
    """Slopes of log E[z] and of the KL at mu = 0, its bound, against differences of quadratures across the bound."""
    step, log_std, std = 1e-5, -1.0, math.exp(-1.0)
    gate = LogNormalGate(1, log_std=log_std).double()
    assert gate.raw_mu.item() == gate.high

    def log_mean(mu):
        return math.log(truncated_moments(mu, log_std)[0])

    def divergence(mu):
        cut = stats.truncnorm((-20 - mu) / std, -mu / std, loc=mu, scale=std)
        return -cut.entropy() + math.log(20)

    for found, of in ((gate.log_moment(1).sum(), log_mean), (gate.kl(), divergence)):
        slope = (of(step) - of(-step)) / (2 * step)
        assert torch.autograd.grad(found, gate.raw_mu)[0].item() == pytest.approx(slope, rel=1e-5)


@pytest.mark.usefixtures("either_clamp")
def test_shapes_of_beta_bernoulli_gates_train_at_the_bounds_they_are_read_within():
    gate = BetaBernoulli(1, raw_a=-10).double()
    for raw, value, shape in ((gate.raw_a, -10, gate.a), (gate.raw_b, -10, gate.b), (gate.raw_b, 50, gate.b)):
        fill(raw, [value])
        assert torch.autograd.grad(shape().sum(), raw)[0].item() == pytest.approx(expit(value), rel=1e-9)


@pytest.mark.usefixtures("either_clamp")
def test_log_beta_has_its_slope_where_its_two_forms_meet():
    x, y = torch.tensor(8.0, dtype=F64, requires_grad=True), torch.tensor(0.3, dtype=F64)
    (slope,) = torch.autograd.grad(log_beta(x, y), x)
    assert slope.item() == pytest.approx(special.digamma(8.0) - special.digamma(8.3), rel=1e-12)


def test_log_normal_gate_samples_by_quadrature():
    for mu, log_std in SPREADS[:6]:
        gate = LogNormalGate(DRAWS).double()
        fill(gate.raw_mu, torch.full((DRAWS,), mu))
        fill(gate.raw_log_std, torch.full((DRAWS,), log_std))
        drawn = gate.sample(torch.zeros(1, DRAWS, dtype=F64), seeded(25)).detach()
        assert drawn.shape == (DRAWS,)
        assert drawn.min() >= math.exp(-20)
        assert drawn.max() <= 1
        first, second = truncated_moments(mu, log_std)
        assert_moments(drawn, first, second - first**2)
        std = math.exp(log_std)
        cdf = stats.truncnorm((-20 - mu) / std, -mu / std, loc=mu, scale=std).cdf
        assert stats.kstest(drawn.log().numpy(), cdf).pvalue > 1e-4


def test_log_normal_gate_stays_within_its_bounds_in_float32():
    """Whatever rounding does to the quantiles at the widest spread, z is within [e^-20, 1]."""
    for mu in (0.0, -20.0):
        gate = LogNormalGate(DRAWS, log_std=5.0)
        fill(gate.raw_mu, torch.full((DRAWS,), mu))
        drawn = gate.sample(torch.zeros(1, DRAWS), seeded(29)).detach()
        assert drawn.max() <= 1
        assert drawn.min() >= torch.tensor(-20.0).exp()


def test_log_normal_gate_kl_and_bounds():
    gate = log_normal_gate()
    mu, log_std = (torch.tensor(column, dtype=F64) for column in zip(*SPREADS, strict=True))
    total = truncated_log_normal_kl(mu, log_std, -20.0, 0.0).sum().item()
    assert gate.kl().item() == pytest.approx(total, abs=1e-12)
    fill(gate.raw_mu, [-60.0, 60.0] + [0.0] * 5)
    fill(gate.raw_log_std, [-60.0, 60.0] + [0.0] * 5)
    assert gate.mu()[:2].tolist() == [-20.0, 0.0]
    assert gate.log_std()[:2].tolist() == [-20.0, 5.0]


def test_log_normal_gate_keeps_units_that_are_more_signal_than_noise():
    gate = log_normal_gate()
    ratios = [f / math.sqrt(s - f**2) for f, s in (truncated_moments(*spread) for spread in SPREADS)]
    assert gate.keep().tolist() == [r >= 1 for r in ratios]
    assert gate.keep(2.0).tolist() == [r >= 2 for r in ratios]
    assert len(set(gate.keep().tolist())) == 2


def test_log_normal_gate_gradcheck():
    readings = Readings(LogNormalGate(3).double(), 26)
    mu = torch.tensor([-1.0, -9.0, -0.2], dtype=F64, requires_grad=True)
    log_std = torch.tensor([-0.5, 1.0, 0.3], dtype=F64, requires_grad=True)
    parameters = {"gate.raw_mu": mu, "gate.raw_log_std": log_std}
    assert gradcheck(lambda *v: functional_call(readings, dict(zip(parameters, v, strict=True)), ()), (mu, log_std))


def test_a_gate_is_abstract():
    with pytest.raises(TypeError, match="abstract"):
        Gate(3)


@pytest.mark.parametrize("name", ["bernoulli", "gaussian_dropout", "concrete", "gaussian"])
def test_signal_to_noise_is_that_of_draws(name):
    gate = MAKERS[name](3)
    if name == "gaussian":
        fill(gate.posterior.log_sigma2, [-2.0, 0.0, 1.0])
    if name == "concrete":
        gate.temperature = 0.02  # close to a coin
    with torch.no_grad():
        draws = gate.sample(torch.ones(DRAWS, 3), seeded(0))
        torch.testing.assert_close(gate.signal_to_noise(), draws.mean(0) / draws.std(0), rtol=0.05, atol=0)


def test_signal_to_noise_of_a_keep_probability():
    gate = BetaBernoulli(4)
    fill(gate.raw_a, [-3.0, -1.0, 1.0, 3.0])
    pi = gate.mean()
    torch.testing.assert_close(gate.signal_to_noise().square(), pi / (1 - pi))
    assert torch.equal(DependentBetaBernoulli(gate).signal_to_noise(), gate.signal_to_noise())
    assert GaussianDropoutGate(2, 0.0).signal_to_noise().tolist() == [math.inf] * 2
