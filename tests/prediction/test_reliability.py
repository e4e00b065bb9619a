"""Reliability and calibration error, against torchmetrics, scikit-learn and hand computation."""

import numpy as np
import pytest
import torch
from sklearn.calibration import calibration_curve
from torchmetrics.functional.classification import multiclass_calibration_error

from nestling.prediction.reliability import bin_sums, reliability


def test_by_hand():
    confidence = torch.tensor([0.1, 0.2, 0.55, 0.6, 0.9, 1.0])
    correct = torch.tensor([0, 1, 1, 0, 1, 1])
    found = reliability(bin_sums(confidence, correct, 2))
    assert found.count == (2, 4)
    assert found.confidence == pytest.approx((0.15, 0.7625))
    assert found.accuracy == pytest.approx((0.5, 0.75))
    assert found.ece == pytest.approx((2 * 0.35 + 4 * 0.0125) / 6)


def test_a_bin_holds_its_upper_edge_and_all_of_one_fall_in_the_last():
    found = reliability(bin_sums(torch.tensor([0.25, 0.5, 0.75, 1.0, 0.0]).double(), torch.ones(5), 4))
    assert found.count == (2, 1, 1, 1)


def test_is_that_of_torchmetrics_and_adds_up_over_batches():
    generator = torch.Generator().manual_seed(0)
    probs = (2 * torch.randn(500, 7, generator=generator)).softmax(1)
    target = torch.randint(7, (500,), generator=generator)
    confidence, guess = probs.max(1)
    expected = multiclass_calibration_error(probs, target, 7, n_bins=15)
    parts = [
        bin_sums(c, g == t, 15) for c, g, t in zip(*(x.split(64) for x in (confidence, guess, target)), strict=True)
    ]
    found = reliability(torch.stack(parts).sum(0))
    assert found.ece == pytest.approx(expected.item(), abs=1e-6)
    assert sum(found.count) == 500


def test_curve_is_that_of_scikit_learn():
    generator = np.random.default_rng(0)
    confidence = generator.random(400)
    correct = generator.random(400) < confidence**2
    found = reliability(bin_sums(torch.tensor(confidence), torch.tensor(correct), 15))
    accuracy, mean = calibration_curve(correct, confidence, n_bins=15)
    np.testing.assert_allclose(found.accuracy, accuracy)
    np.testing.assert_allclose(found.confidence, mean)


def test_average_over_batches_would_be_far_too_large():
    """A perfectly calibrated toy: what the released code does, averaging over batches of 64, is off tenfold."""
    generator = torch.Generator().manual_seed(0)
    confidence = torch.rand(20_000, generator=generator)
    correct = torch.rand(20_000, generator=generator) < confidence
    whole = reliability(bin_sums(confidence, correct, 15)).ece
    batches = zip(confidence.split(64), correct.split(64), strict=True)
    averaged = np.mean([reliability(bin_sums(c, k, 15)).ece for c, k in batches])
    assert whole < 0.015 < 0.1 < averaged
