"""A stage of a cascade: a cut with its temperature and threshold, and what it says of a data set."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from nestling.cascade.outcomes import ANSWERS_ALL, LEFT_OUT, Outcomes
from nestling.errors import ArgumentError, ShapeError
from nestling.prediction import By, Calibration, ClassPrediction, Likelihood, pairs, passes
from nestling.reading import Cut
from nestling.running import Nested


class Judged(NamedTuple):
    """Of each example (N,): how unsure a stage is, by each score, whether it is right, and how likely that seemed.

    ``nonconformity`` is that of the true label.
    """

    scores: dict[str, Tensor]
    correct: Tensor
    expected: Tensor
    nonconformity: Tensor


@dataclass(frozen=True)
class Stage:
    """One cut of a cascade, with what it needs to decide whether it answers.

    Attributes:
        name: The fraction or the widths that the cut was asked for by.
        macs: Multiply-adds of one pass for one example.
        calibration: The temperature that was fitted for this cut, with the cut itself.
        threshold: It answers if its uncertainty is at most this; -inf if the stage is left out, inf if it answers all.
        ms: Milliseconds of one pass for one example, if they are known.

    Examples:
        >>> last = casc.stages[-1]
        >>> last.runs, last.threshold, last.finite_threshold is None
        (True, inf, True)
    """

    name: str
    macs: int
    calibration: Calibration
    threshold: float
    ms: float | None = None

    @property
    def cut(self) -> Cut:
        """The cut that it runs at."""
        assert self.calibration.cut is not None
        return self.calibration.cut

    @property
    def runs(self) -> bool:
        """Whether it is run at all: what it would save may not be worth its cost."""
        return self.threshold > LEFT_OUT

    @property
    def finite_threshold(self) -> float | None:
        """The threshold; None for a stage that answers all, or is left out."""
        return self.threshold if LEFT_OUT < self.threshold < ANSWERS_ALL else None

    def to_dict(self) -> dict[str, object]:
        """Plain values for JSON."""
        about = {"name": self.name, "macs": self.macs, "ms": self.ms, "cut": self.cut.as_dict(), "runs": self.runs}
        return about | {"temperature": self.calibration.temperature, "threshold": self.finite_threshold}


def outputs_at(
    nested: Nested, cut: Cut, batches: Iterable[Any], *, samples: int, likelihood: Likelihood, seed: int | None, by: By
) -> tuple[Tensor, Tensor]:
    """The outputs (S, N, ...) of a network at a cut for all batches, and the labels (N,)."""
    outputs, targets = [], []
    with passes(nested, cut, samples, seed, likelihood, by) as run:
        for number, (x, target) in enumerate(pairs(batches)):
            output = run(x, number).cpu().double()
            likelihood.check(output[0], target)
            check_single(target)
            outputs.append(output)
            targets.append(target)
    return torch.cat(outputs, 1), torch.cat(targets)


def predicted(likelihood: Likelihood, outputs: Tensor, temperature: float) -> ClassPrediction:
    """The prediction from outputs (S, N, ...)."""
    prediction = likelihood.predictive(outputs, temperature=temperature)
    assert isinstance(prediction, ClassPrediction)
    return prediction


def judged(prediction: ClassPrediction, targets: Tensor, widest: ClassPrediction) -> Judged:
    """The scores of a stage's prediction, whether it is right, and how likely that is by the ``widest`` stage."""
    labels = prediction.labels
    expected = widest.log_probs.gather(1, labels.unsqueeze(1)).squeeze(1).exp()
    return Judged(prediction.unfamiliarity(), labels == targets, expected, prediction.nonconformity(targets))


def outcomes_by_score(stages: Sequence[Judged], costs: Sequence[float]) -> dict[str, Outcomes]:
    """The outcomes of several stages by each score, from what ``judged`` says of each stage."""
    correct = np.stack([stage.correct.numpy() for stage in stages])
    expected = np.stack([stage.expected.double().numpy() for stage in stages])
    prices = np.array(costs, dtype=np.float64)
    return {
        name: Outcomes(np.stack([stage.scores[name].double().numpy() for stage in stages]), correct, prices, expected)
        for name in stages[0].scores
    }


def check_classes(likelihood: Likelihood) -> None:
    """Raise unless a network tells classes apart."""
    if likelihood.targets != "classes":
        needed = "categorical or bernoulli"
        raise ArgumentError("likelihood", likelihood.name, needed, "Only answers about classes are right or wrong.")


def check_single(target: Tensor) -> None:
    """Raise unless each example has a single label."""
    if target.ndim != 1:
        advice = "An answer about many positions is not right or wrong as a whole."
        raise ShapeError("target", f"shape {tuple(target.shape)}", "one label per example", advice)
