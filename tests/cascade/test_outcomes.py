"""Routes through a cascade, worked out by hand."""

import numpy as np
import pytest

from nestling.cascade.outcomes import ANSWERS_ALL, LEFT_OUT, Outcomes, routed, with_dont_know

OUTCOMES = Outcomes.counted(
    scores=np.array([[0.1, 0.5, 0.9, 0.5], [0.2, 0.3, 0.8, 0.1], [0.0, 0.1, 0.4, 0.3]]),
    correct=np.array([[1, 0, 0, 1], [1, 1, 0, 0], [0, 1, 1, 0]], dtype=bool),
    costs=np.array([1.0, 10.0, 100.0]),
)


def test_an_example_ends_where_its_score_is_small_enough():
    """The first at stage 0, the second and fourth at stage 1, the third at stage 2."""
    found = routed(OUTCOMES, np.array([0.4, 0.3, ANSWERS_ALL]))
    assert found.stages.tolist() == [0, 1, 2, 1]
    assert found.correct.tolist() == [True, True, True, False]
    assert found.costs.tolist() == [1, 11, 111, 11]
    assert found.accuracy == 0.75
    assert found.mean_cost == 134 / 4
    assert found.reached.tolist() == [1, 0.75, 0.25]


def test_a_score_at_the_threshold_is_sure_enough():
    assert routed(OUTCOMES, np.array([0.5, LEFT_OUT, ANSWERS_ALL])).stages.tolist() == [0, 0, 2, 0]


def test_a_stage_that_is_left_out_costs_nothing():
    assert routed(OUTCOMES, np.array([LEFT_OUT, LEFT_OUT, ANSWERS_ALL])).costs.tolist() == [100] * 4
    assert routed(OUTCOMES, np.array([LEFT_OUT, 0.3, ANSWERS_ALL])).costs.tolist() == [10, 10, 110, 10]


def test_what_the_last_stage_is_unsure_of_gets_no_answer():
    found = routed(OUTCOMES, np.array([0.4, LEFT_OUT, 0.3]))
    assert found.answered.tolist() == [True, True, False, True]
    assert found.stages.tolist() == [0, 2, 2, 2]
    assert found.accuracy == 2 / 3
    assert found.costs.tolist() == [1, 101, 101, 101]


def test_an_accuracy_without_an_answer_is_not_a_number():
    found = routed(OUTCOMES, np.array([LEFT_OUT, LEFT_OUT, LEFT_OUT]))
    assert np.isnan(found.accuracy)


@pytest.mark.parametrize(
    ("share", "last"), [(0.0, ANSWERS_ALL), (0.2, ANSWERS_ALL), (0.25, 0.3), (0.5, 0.1), (0.9, 0.1)]
)
def test_the_least_sure_at_the_last_stage_get_no_answer(share, last):
    """Of four examples three reach the last stage, with scores 0.1, 0.4 and 0.3; one of them is always answered."""
    thresholds = with_dont_know(OUTCOMES, np.array([0.4, LEFT_OUT, ANSWERS_ALL]), share)
    assert thresholds.tolist() == [0.4, LEFT_OUT, last]
    unanswered = (~routed(OUTCOMES, thresholds).answered).mean()
    assert unanswered <= share
