"""What a page computes on test data: the scores of each network, and the uncertainty of each answer."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nestling.data import Batches
from nestling.prediction import (
    NO_THRESHOLDS,
    Calibration,
    ClassPrediction,
    Likelihood,
    Prediction,
    Scores,
    likelihood_for,
    passes,
)
from nestling.reading import Cut
from nestling.running import Nested

NUM_BINS = 15
"""The bins of a reliability diagram: those of ``evaluate``."""
SEED = 0


@dataclass(frozen=True)
class Sample:
    """Test examples, and out-of-distribution ones if there are any, as batches that can be read again.

    ``foreign_name`` says in words what the others are. ``classes`` are the names of the labels, none for numbers.
    """

    known: Batches
    name: str
    classes: tuple[str, ...] = ()
    foreign: Batches | None = None
    foreign_name: str = ""


@dataclass(frozen=True)
class Answers:
    """Per example (N,): its uncertainty by the first of ``Prediction.unfamiliarity``, and the two parts of it.

    ``right`` says whether a label was right, None for numbers and masks. ``log_probs`` (N, C) are those of labels.
    """

    uncertainty: Tensor
    aleatoric: Tensor
    epistemic: Tensor
    right: Tensor | None = None
    log_probs: Tensor | None = None


@dataclass(frozen=True)
class Measured:
    """The scores of a network, as ``evaluate`` gives them, and its answers; ``calibrated``: with a temperature."""

    scores: Scores
    known: Answers
    foreign: Answers | None
    calibrated: Scores | None
    uncertainty_name: str


def measure(
    nested: Nested,
    cut: Cut,
    sample: Sample,
    *,
    likelihood: str | Likelihood | None = None,
    samples: int = 6,
    calibration: Calibration | None = None,
) -> Measured:
    """Run a network at a cut over all examples, once: the scores are those of ``evaluate`` with the same arguments."""
    chosen = likelihood_for(nested, likelihood)
    tallies = [chosen.tally(NUM_BINS, 1.0, NO_THRESHOLDS)]
    if calibration is not None:
        tallies.append(chosen.tally(NUM_BINS, calibration.temperature, calibration.thresholds))
    known, foreign, name = list[Answers](), list[Answers](), ""
    with passes(nested, cut, samples, SEED, chosen) as run:
        for number, (x, target) in enumerate(sample.known):
            outputs = run(x, number).cpu().double()
            for tally in tallies:
                tally.add(outputs, target)
            prediction = chosen.predictive(outputs)
            name = next(iter(prediction.unfamiliarity()))
            known.append(_answers(prediction, target))
        for number, (x, _) in enumerate(sample.foreign or ()):
            outputs = run(x, number, foreign=True).cpu().double()
            for tally in tallies:
                tally.add_foreign(outputs)
            foreign.append(_answers(chosen.predictive(outputs), None))
    scores = [tally.scores() for tally in tallies]
    others = _joined(foreign) if foreign else None
    return Measured(scores[0], _joined(known), others, scores[1] if calibration else None, name)


def _answers(prediction: Prediction, target: Tensor | None) -> Answers:
    uncertainty = next(iter(prediction.unfamiliarity().values()))
    both = prediction.aleatoric, prediction.epistemic
    aleatoric, epistemic = (part.flatten(1).mean(1) if part.ndim > 1 else part for part in both)
    if not isinstance(prediction, ClassPrediction) or prediction.labels.ndim > 1:
        return Answers(uncertainty, aleatoric, epistemic)
    right = None if target is None else prediction.labels == target
    return Answers(uncertainty, aleatoric, epistemic, right, prediction.log_probs)


def _joined(batches: list[Answers]) -> Answers:
    def column(name: str) -> Tensor | None:
        columns_of_batches = [getattr(batch, name) for batch in batches]
        return None if columns_of_batches[0] is None else torch.cat(columns_of_batches)

    columns: Mapping[str, Any] = {name: column(name) for name in vars(batches[0])}
    return Answers(**columns)
