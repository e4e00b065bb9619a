"""Intervals over the test set: against scipy, numpy, the bootstrap, and how often they hold the truth."""

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.metrics import average_precision_score, roc_auc_score
from torch import nn

from nestling.prediction import evaluate
from nestling.prediction.bounds import Z, share_bounds
from nestling.prediction.detection import detection


class Fixed(nn.Module):
    """Gives its inputs as outputs, so that they can be chosen freely."""

    def forward(self, x):
        return x


def example_logits(number, classes=4, sharp=1.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(number, classes, generator=generator)
    labels = torch.multinomial((sharp * logits).softmax(1), 1, generator=generator).squeeze(1)
    return logits, labels


def half_widths(scores):
    return {name: (high - low) / 2 for name, (low, high) in scores.bounds.items()}


@pytest.mark.parametrize(("right", "count"), [(0, 20), (7, 20), (20, 20), (9_700, 10_000)])
def test_a_share_has_the_interval_of_wilson(right, count):
    share = right / count
    expected = stats.binomtest(right, count).proportion_ci(method="wilson")
    found = share_bounds(share, np.sqrt(share * (1 - share) / count), count)
    assert found == pytest.approx((expected.low, expected.high), abs=1e-6)


def test_means_have_their_standard_errors():
    logits, labels = example_logits(300)
    scores = evaluate(Fixed(), [(logits[:100], labels[:100]), (logits[100:], labels[100:])])
    probs = logits.double().softmax(1)
    nll = -probs[torch.arange(300), labels].log()
    brier = (probs - nn.functional.one_hot(labels, 4)).square().sum(1)
    for name, values in (("nll", nll), ("brier", brier)):
        error = float(values.std() / 300**0.5)
        expected = (float(values.mean()) - Z * error, float(values.mean()) + Z * error)
        assert scores.bounds[name] == pytest.approx(expected, abs=1e-6)
    right = int((logits.argmax(1) == labels).sum())
    expected = stats.binomtest(right, 300).proportion_ci(method="wilson")
    assert scores.bounds["accuracy"] == pytest.approx((expected.low, expected.high), abs=1e-3)


def test_pixels_of_one_image_count_as_one_example():
    """Images whose pixels are all right or all wrong: a thousand pixels each say no more than one."""
    right = torch.tensor([1] * 30 + [0] * 10)
    labels = right.reshape(40, 1, 1).expand(40, 32, 32)
    scores = evaluate(Fixed(), [(torch.tensor([0.0, 2.0]).reshape(1, 2, 1, 1).expand(40, 2, 32, 32), labels)])
    expected = stats.binomtest(30, 40).proportion_ci(method="wilson")
    assert scores.bounds["accuracy"] == pytest.approx((expected.low, expected.high), abs=5e-3)


def test_calibration_errors_agree_with_the_bootstrap():
    logits, labels = example_logits(2000, sharp=0.5)
    scores = evaluate(Fixed(), [(logits, labels)])
    generator = torch.Generator().manual_seed(1)
    drawn = [torch.randint(2000, (2000,), generator=generator) for _ in range(200)]
    again = torch.tensor([evaluate(Fixed(), [(logits[rows], labels[rows])]).ece for rows in drawn])
    assert half_widths(scores)["ece"] / Z == pytest.approx(float(again.std()), rel=0.2)


def test_numbers_have_intervals():
    generator = torch.Generator().manual_seed(0)
    output, noise = torch.randn(500, 1, generator=generator), torch.randn(500, 1, generator=generator)
    scores = evaluate(Fixed(), [(output, output + 2 * noise)], likelihood="gaussian")
    low, high = scores.bounds["rmse"]
    assert (high**2 - low**2) / 2 / Z == pytest.approx(float((4 * noise.square()).std() / 500**0.5), rel=1e-2)
    assert low < scores.rmse < high
    assert scores.bounds["ece"][0] > 0.1
    assert set(scores.bounds) == {"nll", "ece", "rmse"}


@pytest.mark.parametrize("ties", [None, 1])
def test_areas_agree_with_the_bootstrap(ties):
    random = np.random.default_rng(0)
    familiar, foreign = random.normal(0, 1, 400), random.normal(0.8, 1.5, 250)
    if ties is not None:
        familiar, foreign = familiar.round(ties), foreign.round(ties)
    found = detection(torch.tensor(familiar), torch.tensor(foreign))
    again = {"auroc": [], "aupr": []}
    for _ in range(400):
        values = np.concatenate((random.choice(familiar, 400), random.choice(foreign, 250)))
        truth = np.repeat([0, 1], [400, 250])
        again["auroc"].append(roc_auc_score(truth, values))
        again["aupr"].append(average_precision_score(truth, values))
    for name, values in again.items():
        low, high = found.bounds[name]
        assert (high - low) / 2 / Z == pytest.approx(np.std(values), rel=0.2)
        assert low < getattr(found, name) < high


def test_intervals_of_areas_hold_the_truth_as_often_as_they_say():
    random, inside = np.random.default_rng(2), 0
    truth = stats.norm.cdf(1 / 2**0.5)
    for _ in range(300):
        found = detection(torch.tensor(random.normal(0, 1, 60)), torch.tensor(random.normal(1, 1, 90)))
        low, high = found.bounds["auroc"]
        inside += low <= truth <= high
    assert 0.91 < inside / 300 < 0.99


def test_a_high_precision_that_is_chance_stands_beside_its_base_rate():
    """Thirty times as many out-of-distribution examples: a detector that is worse than a guess has 97 %."""
    generator = torch.Generator().manual_seed(0)
    familiar, foreign = torch.rand(100, generator=generator) + 0.1, torch.rand(3000, generator=generator)
    found = detection(familiar, foreign)
    assert found.auroc < 0.5
    assert found.aupr > 0.95
    assert found.base_rate == pytest.approx(3000 / 3100)
    assert found.aupr < found.base_rate


def test_perfect_detection_of_few_examples_is_not_certain():
    found = detection(torch.zeros(5), torch.ones(3))
    assert found.auroc == found.aupr == 1
    assert found.bounds["auroc"][0] < 0.6
