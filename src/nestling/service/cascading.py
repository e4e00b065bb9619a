"""A cascade at work: which of the examples that a width answered go on to the next one."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from nestling.runtime import class_log_probs, how_unsure
from nestling.service.width import Arrays, Calibrated, Width


@dataclass(frozen=True)
class Step:
    """A width by its number; it is sure of an example if the score is at most ``threshold``, and of all if it is None.

    ``calibrated`` is the calibration of its answers, None for that of the width.
    """

    width: int
    threshold: float | None = None
    calibrated: Calibrated | None = None


@dataclass(frozen=True)
class Cascading:
    """The ``steps`` of a cascade, narrowest first, which compare a ``score``: entropy or max_probability.

    An example that a step is not sure of goes on to the next. If the last is not sure either, the answer is "I don't
    know".
    """

    steps: tuple[Step, ...]
    score: str = "max_probability"

    def sure(self, number: int, outputs: Arrays) -> np.ndarray:
        """Of each example (B,) whether the step with this number answers it."""
        step = self.steps[number]
        if step.threshold is None:
            return np.ones(len(outputs["probs"]), bool)
        if step.calibrated is None:
            log_probs = np.log(np.maximum(outputs["probs"].astype(np.float64), _TINY))
        else:
            log_probs = class_log_probs(outputs["logits"], step.calibrated.temperature)
        answered: np.ndarray = how_unsure(log_probs, self.score) <= step.threshold
        return answered


def until_probable(widths: tuple[Width, ...], probability: float) -> Cascading:
    """The cascade in which a width answers if its most probable class is so probable; the widest answers all."""
    *narrower, widest = range(len(widths))
    return Cascading((*(Step(number, -float(np.log(probability))) for number in narrower), Step(widest)))


def cascading_in(about: Mapping[str, Any], widths: tuple[Width, ...]) -> Cascading | None:
    """The cascade whose thresholds were fitted, by the record of a file; None if there is none for these widths."""
    entry = about.get("cascade")
    if not entry:
        return None
    by_cut = {tuple(sorted((width.cut or {}).items())): number for number, width in enumerate(widths)}
    thresholds = {float(coverage): value for coverage, value in entry["set_thresholds"].items()}
    steps = [
        Step(
            by_cut[tuple(sorted(stage["cut"].items()))],
            stage["threshold"],
            Calibrated(stage["temperature"], thresholds),
        )
        for stage in entry["stages"]
    ]
    return Cascading(tuple(steps), entry["score"])


_TINY = 1e-300
"""Stands for a probability of 0, whose logarithm would be no number."""
