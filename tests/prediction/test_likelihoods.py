"""Likelihoods against scipy's densities and torch's losses."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

import nestling as nl
from nestling.prediction import Bernoulli, Categorical, Gaussian, HeteroscedasticGaussian, likelihood_named

NAMES = ["categorical", "bernoulli", "gaussian", "heteroscedastic_gaussian"]


def normal(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def labels(high, *shape, seed=1):
    return torch.randint(high, shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", NAMES)
def test_lookup(name):
    found = likelihood_named(name)
    assert found.name == name
    assert likelihood_named(found) is found


def test_unknown_name_is_refused():
    with pytest.raises(nl.ArgumentError, match="likelihood: got 'poisson', but it must be one of categorical"):
        likelihood_named("poisson")


@pytest.mark.parametrize("positions", [(), (3, 2)])
def test_categorical_is_the_cross_entropy(positions):
    logits, target = normal(5, 4, *positions), labels(4, 5, *positions)
    expected = torch.nn.functional.cross_entropy(logits, target)
    torch.testing.assert_close(Categorical().nll(logits, target), expected)
    assert Categorical().elements(target) == math.prod(positions)


def test_raters_are_averaged():
    logits, target = normal(5, 4, 3, 2), labels(4, 5, 6, 3, 2)
    losses = [torch.nn.functional.cross_entropy(logits, target[:, rater]) for rater in range(6)]
    torch.testing.assert_close(Categorical().nll(logits, target), torch.stack(losses).mean())
    assert Categorical().elements(target) == 36


@pytest.mark.parametrize("positions", [(), (3, 2)])
def test_bernoulli_is_the_binary_cross_entropy(positions):
    logits, target = 5 * normal(5, 1, *positions), labels(2, 5, *positions)
    expected = torch.nn.functional.binary_cross_entropy_with_logits(logits[:, 0], target.double())
    for given in (target, target.bool(), target.byte()):
        torch.testing.assert_close(Bernoulli().nll(logits, given), expected)


def test_gaussian_is_scipys_density():
    mean, target = normal(5, 3), normal(5, 3, seed=1)
    expected = -stats.norm(mean.numpy(), 0.3).logpdf(target.numpy()).mean()
    assert Gaussian(std=0.3).nll(mean, target).item() == pytest.approx(expected)
    assert Gaussian().elements(target) == 3


def test_heteroscedastic_gaussian_is_scipys_density():
    output, target = normal(5, 6), normal(5, 3, seed=1)
    mean, log_variance = output[:, :3].numpy(), output[:, 3:].numpy()
    expected = -stats.norm(mean, np.exp(log_variance / 2)).logpdf(target.numpy()).mean()
    assert HeteroscedasticGaussian().nll(output, target).item() == pytest.approx(expected, abs=2e-4)


@pytest.mark.parametrize("raw", [-1e4, -50.0, 50.0, 1e4])
def test_log_variance_stays_within_its_range(raw):
    _, log_variance = HeteroscedasticGaussian().moments(torch.tensor([[0.0, raw]]), 1)
    assert log_variance.item() == pytest.approx(math.copysign(12, raw), abs=1e-4)
    assert math.isfinite(HeteroscedasticGaussian().nll(torch.tensor([[0.0, raw]]), torch.tensor([[3.0]])))


@pytest.mark.parametrize(
    ("kind", "shape", "target"),
    [
        (Categorical(), (3, 4), labels(4, 3)),
        (Categorical(), (2, 3, 2, 2), labels(3, 2, 5, 2, 2)),
        (Bernoulli(), (3, 1), labels(2, 3)),
        (Gaussian(), (3, 2), normal(3, 2, seed=1)),
        (HeteroscedasticGaussian(), (3, 4), normal(3, 2, seed=1)),
    ],
)
def test_gradients(kind, shape, target):
    torch.autograd.gradcheck(lambda output: kind.nll(output, target), normal(*shape).requires_grad_())


@pytest.mark.parametrize(
    ("kind", "output", "target", "error", "message"),
    [
        (Categorical(), normal(3, 4), labels(4, 2), nl.ShapeError, r"target: got shape \(2,\).*\(3,\)"),
        (Categorical(), normal(3, 4), labels(4, 3, 4), nl.ShapeError, "not a row of ones and zeros"),
        (Categorical(), normal(3), labels(4, 3), nl.ShapeError, "output: got shape"),
        (Categorical(), normal(3, 4, 5, 5), labels(4, 3, 2, 5), nl.ShapeError, r"raters, 5, 5\)"),
        (Categorical(), normal(3, 4), normal(3), nl.DtypeError, "target: got a tensor of torch.float64"),
        (Categorical(), normal(3, 1), torch.tensor([0, 0, 0]), nl.ShapeError, "two classes or more.*bernoulli"),
        (Categorical(), normal(3, 4), torch.tensor([0, 4, 1]), nl.RangeError, "labels from 0 to 4.*from 0 to 3"),
        (Categorical(), normal(3, 4), torch.tensor([0, -100, 1]), nl.RangeError, "labels from -100 to 1"),
        (Bernoulli(), normal(3, 2), labels(2, 3), nl.ShapeError, "target"),
        (Bernoulli(), normal(3, 1), labels(3, 30)[:3] + 2, nl.RangeError, "from 0 to 1"),
        (Gaussian(), normal(3, 1), normal(3), nl.ShapeError, "unsqueeze"),
        (Gaussian(), normal(3, 1), labels(2, 3, 1), nl.DtypeError, "floating"),
        (Gaussian(), normal(2, 1), torch.tensor([[1.0], [math.nan]]), nl.NonFiniteError, "target"),
        (HeteroscedasticGaussian(), normal(3, 3), normal(3, 1), nl.ShapeError, "Double the last layer"),
    ],
)
def test_what_does_not_fit_is_refused(kind, output, target, error, message):
    with pytest.raises(error, match=message):
        kind.check(output, target)


def test_standard_deviation_must_be_positive():
    with pytest.raises(nl.RangeError, match="std"):
        Gaussian(std=0.0)


@pytest.mark.parametrize("name", NAMES)
def test_rows_keep_the_likelihood(name):
    kind = likelihood_named(name)
    outputs = normal(2, 5, {"categorical": 4, "bernoulli": 1, "gaussian": 3, "heteroscedastic_gaussian": 6}[name], 3)
    target = labels(2, 5, 2, 3) if name in NAMES[:2] else normal(5, 3, 3, seed=1)
    rows, elements = kind.rows(outputs, target, 100)
    assert elements.numel() == target.numel()
    expected = kind.predictive(outputs).log_prob(target).mean()
    torch.testing.assert_close(kind.predictive(rows).log_prob(elements).mean(), expected)
    few, _ = kind.rows(outputs, target, 2)
    assert few.shape[1] == 10


@pytest.mark.parametrize("shape", [(5, 4), (3, 4, 2, 2)])
def test_the_direction_that_matters_for_classes_is_the_slope_of_the_log_odds(shape):
    output = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    top = output.detach().argmax(1, keepdim=True)
    probs = output.softmax(1).gather(1, top)
    (slope,) = torch.autograd.grad((probs / (1 - probs)).log().sum(), output)
    found, random = Categorical().direction(output.detach())
    sign = found.gather(1, top)
    assert random == (len(shape) > 2)
    assert set(sign.flatten().tolist()) == ({-1.0, 1.0} if random else {1.0})
    torch.testing.assert_close(found * sign, slope)


def test_of_outputs_that_stand_alone_each_matters():
    output = torch.randn(40, 3)
    for own in (Gaussian(), Bernoulli()):
        assert own.direction(output).weights.unique().tolist() == [-1.0, 1.0]
        assert own.direction(output).random
        assert not own.direction(output[:, :1]).random
    assert not Categorical().direction(torch.randn(40, 1)).random
