"""Areas under ROC and precision-recall curves, against scikit-learn, ties included."""

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, roc_auc_score

from nestling.prediction.detection import detection


@pytest.mark.parametrize("ties", [None, 1, 0])
@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e4])
def test_is_that_of_scikit_learn(ties, scale):
    generator = np.random.default_rng(0)
    familiar, foreign = generator.normal(0, 1, 300), generator.normal(0.7, 1.5, 200)
    if ties is not None:
        familiar, foreign = familiar.round(ties), foreign.round(ties)
    found = detection(torch.tensor(familiar * scale), torch.tensor(foreign * scale))
    labels, scores = np.repeat([0, 1], [300, 200]), np.concatenate((familiar, foreign)) * scale
    assert found.auroc == pytest.approx(roc_auc_score(labels, scores), abs=1e-6)
    assert found.aupr == pytest.approx(average_precision_score(labels, scores), abs=1e-6)


def test_by_hand():
    found = detection(torch.tensor([0.1, 0.4]), torch.tensor([0.35, 0.8]))
    assert found.auroc == pytest.approx(3 / 4)
    assert found.aupr == pytest.approx(0.5 * 1 + 0.5 * 2 / 3)


def test_a_score_that_says_nothing():
    found = detection(torch.zeros(30), torch.zeros(10))
    assert found.auroc == pytest.approx(0.5)
    assert found.aupr == pytest.approx(0.25)


def test_large_scores_are_not_squashed_into_ties():
    found = detection(torch.linspace(100, 101, 50), torch.linspace(101.5, 102, 50))
    assert found.auroc == pytest.approx(1)
