"""Scores a cascade over a data set, with each stage run on the examples that reach it."""

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from nestling.cascade.answers import CascadePrediction, CascadeScores, StageScores
from nestling.cascade.stages import Stage, check_single
from nestling.prediction import Categorical, ClassScores, SetScores, normal_bounds, pairs, standard_error
from nestling.seeding import Purpose, mixed

_NUM_BINS = 15
"""The number of bins of the reliability curve, as in ``evaluate``."""


class Predict(Protocol):
    """The method of a cascade that predicts for a batch."""

    def __call__(self, x: Any, *, seed: int | None) -> CascadePrediction:  # noqa: ANN401
        """Predict for a batch."""


def scored(
    stages: Sequence[Stage], predict: Predict, batches: Iterable[Any], times: Sequence[float | None], seed: int | None
) -> CascadeScores:
    """The scores over all batches; ``times`` are the milliseconds of each stage, None where they were not measured."""
    tally = Categorical().tally(_NUM_BINS, 1.0, {})
    ends, answered, correct, macs, sets = [], [], [], [], []
    for number, (x, target) in enumerate(pairs(batches)):
        check_single(target)
        prediction = predict(x, seed=None if seed is None else mixed(Purpose.PREDICTION, seed, number))
        log_probs, known = prediction.log_probs.cpu().double(), prediction.answered
        if known.any():
            tally.add(log_probs[known].unsqueeze(0), target[known])  # log-probabilities are logits of themselves
        ends.append(prediction.stages)
        answered.append(known)
        correct.append(known & (log_probs.argmax(1) == target))
        macs.append(prediction.macs)
        sets.append(_in_sets(prediction, target))
    costs, has_answers = torch.cat(macs), any(known.any() for known in answered)
    scores = tally.scores() if has_answers else None
    assert scores is None or isinstance(scores, ClassScores)
    error = standard_error(float(costs.sum()), float(costs.square().sum()), len(costs))
    return CascadeScores(
        len(costs),
        scores,
        _by_stage(stages, torch.cat(ends), torch.cat(answered), torch.cat(correct), times),
        float(costs.mean()),
        normal_bounds(float(costs.mean()), error, 0.0),
        stages[-1].macs,
        {coverage: SetScores(*torch.cat([part[coverage] for part in sets]).mean(0).tolist()) for coverage in sets[0]},
    )


def _in_sets(found: CascadePrediction, target: Tensor) -> dict[float, Tensor]:
    """Whether each conformal set has the true label, and how many classes it has (B, 2), by coverage."""
    return {
        coverage: torch.stack((found.covers(target, coverage), found.set_size(coverage)), 1).cpu().double()
        for coverage in found.thresholds
    }


def _by_stage(
    stages: Sequence[Stage], ends: Tensor, answered: Tensor, correct: Tensor, times: Sequence[float | None]
) -> tuple[StageScores, ...]:
    """The figures of each stage that runs, from where each example ended, and whether it was answered and right."""
    rows = []
    for number, (stage, time) in enumerate(zip(stages, times, strict=True)):
        if stage.runs:
            here = answered & (ends == number)
            accuracy = float(correct[here].double().mean()) if here.any() else None
            reached, share = (float(of.double().mean()) for of in (ends >= number, here))
            rows.append(StageScores(stage.name, stage.finite_threshold, reached, share, accuracy, stage.macs, time))
    return tuple(rows)
