"""Averages and the two parts of uncertainty, against numpy, scipy and hand computation."""

import numpy as np
import pytest
import torch
from scipy import stats

import nestling as nl
from nestling.prediction import Bernoulli, Categorical, Gaussian, HeteroscedasticGaussian


def normal(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("positions", [(), (2, 3)])
def test_probabilities_are_averaged_and_entropies_are_scipys(positions):
    logits = 3 * normal(7, 5, 4, *positions)
    found = Categorical().predictive(logits, keep_samples=True)
    each = logits.softmax(2).numpy()
    np.testing.assert_allclose(found.probs, each.mean(0))
    np.testing.assert_allclose(found.samples, each)
    np.testing.assert_allclose(found.entropy, stats.entropy(each.mean(0), axis=1))
    np.testing.assert_allclose(found.aleatoric, stats.entropy(each, axis=2).mean(0))
    divergence = stats.entropy(each, each.mean(0)[None], axis=2).mean(0)
    np.testing.assert_allclose(found.epistemic, divergence)
    torch.testing.assert_close(found.total, found.aleatoric + found.epistemic)
    np.testing.assert_array_equal(found.labels, each.mean(0).argmax(1))
    np.testing.assert_allclose(found.confidence, each.mean(0).max(1))


def test_two_certain_draws_that_disagree_are_all_epistemic():
    logits = torch.tensor([[[800.0, -800.0]], [[-800.0, 800.0]]])
    found = Categorical().predictive(logits)
    torch.testing.assert_close(found.probs, torch.tensor([[0.5, 0.5]]))
    torch.testing.assert_close(found.epistemic, torch.tensor([2.0]).log())
    assert found.aleatoric.item() == 0
    assert found.samples is None


def test_one_draw_has_no_epistemic_uncertainty():
    found = Categorical().predictive(normal(1, 6, 3).float())
    assert torch.equal(found.epistemic, torch.zeros(6))
    assert torch.equal(Gaussian().predictive(normal(1, 6, 3)).epistemic, torch.zeros(6, 3, dtype=torch.float64))


def test_log_prob_of_what_is_next_to_impossible_is_finite():
    found = Categorical().predictive(torch.tensor([[[0.0, 500.0]], [[0.0, 400.0]]]))
    assert found.log_prob(torch.tensor([0])).item() == pytest.approx(-400 - np.log(2))


def test_one_logit_gives_two_classes():
    logit = normal(3, 4, 1)
    found = Bernoulli().predictive(logit)
    torch.testing.assert_close(found.probs[:, 1], logit.sigmoid().mean(0)[:, 0])
    assert found.probs.shape == (4, 2)


def test_temperature_divides_the_logits_of_each_draw():
    logits = normal(3, 4, 5)
    found = Categorical().predictive(logits, temperature=2.5)
    torch.testing.assert_close(found.probs, (logits / 2.5).softmax(2).mean(0))


def test_temperature_multiplies_the_variance_of_the_noise():
    found = HeteroscedasticGaussian().predictive(normal(3, 4, 2), temperature=2.5)
    plain = HeteroscedasticGaussian().predictive(normal(3, 4, 2))
    torch.testing.assert_close(found.aleatoric, 2.5 * plain.aleatoric)
    torch.testing.assert_close(found.epistemic, plain.epistemic)


def test_regression_is_a_mixture_of_gaussians():
    outputs, target = normal(5, 4, 6), normal(4, 3, seed=1)
    found = HeteroscedasticGaussian().predictive(outputs, keep_samples=True)
    means, stds = outputs[..., :3].numpy(), np.exp(outputs[..., 3:].numpy() / 2)
    draws = np.random.default_rng(0).normal(means, stds, size=(40_000, *means.shape))
    np.testing.assert_allclose(found.mean, means.mean(0))
    np.testing.assert_allclose(found.variance, draws.var((0, 1)), rtol=0.03)
    torch.testing.assert_close(found.total, found.aleatoric + found.epistemic)
    torch.testing.assert_close(found.std.square(), found.variance)
    density = stats.norm(means, stds).pdf(target.numpy()).mean(0)
    np.testing.assert_allclose(found.log_prob(target), np.log(density), atol=5e-4)
    np.testing.assert_allclose(found.samples, means)


def test_conformal_sets_and_intervals():
    logits = torch.tensor([[0.5, 0.3, 0.2], [0.9, 0.06, 0.04]]).log()[None]
    sets = Categorical().predictive(logits, thresholds={0.9: 0.75}).sets(0.9)
    assert sets.tolist() == [[True, True, False], [True, False, False]]
    found = Gaussian(std=2.0).predictive(torch.tensor([[[1.0]]]), thresholds={0.8: 1.5})
    low, high = found.interval(0.8)
    assert (low.item(), high.item()) == pytest.approx((-2.0, 4.0))
    assert found.set_size(0.8).item() == pytest.approx(6.0)
    assert found.covers(torch.tensor([[3.9]]), 0.8).item()
    assert not found.covers(torch.tensor([[4.1]]), 0.8).item()


def test_coverage_that_was_not_calibrated_is_refused():
    with pytest.raises(nl.ArgumentError, match=r"coverage: got 0.9.*there is none.*calibrate"):
        Categorical().predictive(normal(1, 2, 3)).sets()
    with pytest.raises(nl.ArgumentError, match=r"coverage: got 0.5.*0.8, 0.9"):
        Categorical().predictive(normal(1, 2, 3), thresholds={0.8: 0.1, 0.9: 0.2}).sets(0.5)
