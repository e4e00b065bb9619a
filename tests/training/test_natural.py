"""Posteriors that learn by natural gradients, against IVON's own code and against posteriors in closed form."""

import ivon
import pytest
import torch
from small_networks import examples, images, nested_mlp, nested_norms, normal
from torch import nn
from torch.distributions import Normal, kl_divergence

import nestling as nl
from nestling.distributions.weights import NaturalGaussian
from nestling.running.layers import VariationalLayer
from nestling.training import Recipe, elbo_terms, train
from nestling.training.parameter_groups import make_optimiser, set_natural_rate

X, NOISE = normal(40, 5, dtype=torch.float64), normal(40, 1, seed=1, dtype=torch.float64)
Y = X @ normal(5, 1, seed=2, dtype=torch.float64) + NOISE
ONE_WIDTH = {"cuts": (1.0,), "kappa": 1.0, "order_weight": None}
"""The bound at full width."""


def linear(**options):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(5, 1, bias=False)).double()
    return nl.nest(module, X, weights="ivon", order="full", **options).train()


def posterior_of(nested):
    (layer,) = (part for part in nested.modules() if isinstance(part, VariationalLayer))
    return layer.posterior


def steps(nested, optimiser, rate, number, likelihood="gaussian", **options):
    """Yield after each step of the bound on all examples."""
    set_natural_rate(optimiser, 2 * rate * len(X))
    for _ in range(number):
        optimiser.zero_grad()
        elbo_terms(nested, (X, Y), dataset_size=len(X), likelihood=likelihood, **ONE_WIDTH | options).loss.backward()
        optimiser.step()
        yield


def test_variances_are_those_of_ivons_own_code():
    """The reference draws, and its means are given to ours; their Hessian + decay is ours 1 / (N sigma^2)."""
    nested, rate = linear(), 0.05
    own = posterior_of(nested)
    theirs = nn.Parameter(own.mean.detach().clone())
    decay = 1 / (len(X) * float(own.prior_std) ** 2)
    start = 1 / (len(X) * float(own.log_sigma2.detach().exp()[0, 0])) - decay
    reference = ivon.IVON([theirs], lr=0.05, ess=len(X), hess_init=start, beta2=1 - rate, weight_decay=decay)
    optimiser = make_optimiser(nested, Recipe(), 100)
    model = nl.prediction.likelihoods.Gaussian(std=1.0)
    torch.manual_seed(1)
    for _ in range(30):
        with torch.no_grad():
            own.mean.copy_(theirs)
        state = torch.get_rng_state()
        with reference.sampled_params(train=True):
            reference.zero_grad()
            model.nll(X @ theirs.T, Y).backward()
        torch.set_rng_state(state)
        next(steps(nested, optimiser, rate, 1, model))
        reference.step()
        found = 1 / (len(X) * own.log_sigma2.exp()) - decay
        torch.testing.assert_close(found.detach().reshape(-1), reference.param_groups[0]["hess"], rtol=1e-6, atol=1e-9)


def test_a_linear_model_learns_the_best_independent_gaussians():
    """Of a Gaussian posterior with precision matrix A the closest independent one has the variances 1 / A_ii."""
    nested = linear(sampling="local")
    own = posterior_of(nested)
    precision = X.T @ X + torch.eye(5, dtype=torch.float64) / float(own.prior_std) ** 2
    optimiser = make_optimiser(nested, Recipe(lr=0.01), 100)
    model, found = nl.prediction.likelihoods.Gaussian(std=1.0), []
    torch.manual_seed(2)
    for number, _ in enumerate(steps(nested, optimiser, 0.01, 2500, model)):
        if number >= 1500:
            found.append(torch.cat([own.log_sigma2.detach(), own.mean.detach()]))
    log_variance, mean = torch.stack(found).mean(0)
    torch.testing.assert_close(log_variance.exp(), 1 / precision.diagonal(), rtol=0.1, atol=0.0)
    torch.testing.assert_close(mean, torch.linalg.solve(precision, X.T @ Y).squeeze(1), rtol=0.0, atol=0.06)


def test_the_divergence_is_that_of_two_normal_distributions():
    nested = linear()
    own = posterior_of(nested)
    assert isinstance(own, NaturalGaussian)
    wanted = kl_divergence(Normal(own.mean, own.std()), Normal(0.0, own.prior_std)).sum()
    terms = elbo_terms(nested, (X, Y), dataset_size=len(X), likelihood="gaussian", **ONE_WIDTH)
    torch.testing.assert_close(terms.weight_kl, wanted.detach())


@pytest.mark.parametrize("optimiser", ["adamw", "sgd"])
def test_weights_that_no_cut_keeps_stay_as_they_are(optimiser):
    """With the bound at the smallest width alone, the first third of the units is trained and nothing else moves."""
    nested = nested_mlp(weights="ivon").train()
    before = {name: own.detach().clone() for name, own in nested.module.named_parameters()}
    stepping = make_optimiser(nested, Recipe(optimiser=optimiser), 10)
    set_natural_rate(stepping, 100.0)
    x, y = examples().tensors
    options = {"objective": "elbo", "sandwich": 1.0, "draws": 1, "generator": torch.Generator().manual_seed(3)}
    terms = elbo_terms(nested, (x, y), dataset_size=24, kappa=1.0, **options)
    assert set(terms.cuts[0].as_dict().values()) == {1}
    terms.loss.backward()
    stepping.step()
    for name in ("layers.1.posterior.mean", "layers.1.posterior.log_sigma2"):
        after = dict(nested.module.named_parameters())[name]
        assert torch.equal(after[2:], before[name][2:])
        assert not torch.isclose(after[:2], before[name][:2], rtol=0, atol=0).any()


def test_it_starts_as_the_plain_network_with_little_noise():
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)).eval()
    nested = nl.nest(plain, normal(2, 4), weights="ivon", num_blocks=3, num_always=1).eval()
    torch.testing.assert_close(nested(normal(5, 4)), plain(normal(5, 4)))
    for layer in (nested.module[0], nested.module[2]):
        size = layer.posterior.mean.square().mean().sqrt()
        torch.testing.assert_close(layer.posterior.prior_std, 10 * size.detach())
        torch.testing.assert_close(layer.posterior.std(), (0.1 * size).expand_as(layer.posterior.mean))
        assert layer.sampling == "shared"


def test_a_run_is_an_ordinary_gaussian_posterior_for_all_that_follows(tmp_path):
    nested = nested_norms(weights="ivon")
    train(nested, (images(), images(seed=5)), Recipe(epochs=1, batch_size=8, cuts=(0.5, 1.0)), out=tmp_path, quiet=True)
    again = nl.load(tmp_path, nested_norms(weights="ivon").module) if nested.made_with is None else nested
    x = images(seed=7).tensors[0]
    for by in ("draws", "fast_draws", "moments"):
        found = nl.predict(again, x, cut=0.5, samples=4, by=by, seed=0)
        assert torch.isfinite(found.probs).all()
        assert (found.epistemic >= 0).all()
    small = nl.extract(nested, 0.5, uncertainty=True)
    (mean, *_), scales = zip(
        *[(p.posterior.mean, p.posterior.std()) for p in small.modules() if hasattr(p, "posterior")], strict=True
    )
    assert mean.shape[0] == 4
    assert all((own > 0).all() for own in scales)
