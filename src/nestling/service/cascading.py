"""A cascade at work: which of the examples that a width answered go on to the next one."""

from dataclasses import dataclass

import numpy as np

from nestling.service.width import Arrays, Width


@dataclass(frozen=True)
class Step:
    """A width by its number; it answers an example if the score is at most ``threshold``, and all if that is None.

    The score is that of the probabilities at a ``temperature``, or of those that the service answers if it is None.
    """

    width: int
    threshold: float | None = None
    temperature: float | None = None


@dataclass(frozen=True)
class Cascading:
    """The ``steps`` of a cascade, narrowest first, which compare a ``score``: entropy or max_probability."""

    steps: tuple[Step, ...]
    score: str = "max_probability"

    def sure(self, number: int, outputs: Arrays) -> np.ndarray:
        """Of each example (B,) whether the step with this number answers it; the last step answers all."""
        step = self.steps[number]
        if number == len(self.steps) - 1 or step.threshold is None:
            return np.ones(len(outputs["probs"]), bool)
        if step.temperature is None:
            log_probs = np.log(np.maximum(outputs["probs"], _TINY))
        else:
            log_probs = _log_softmax(outputs["logits"].astype(np.float64) / step.temperature)
        scores = -log_probs.max(1) if self.score == "max_probability" else -(np.exp(log_probs) * log_probs).sum(1)
        answered: np.ndarray = scores <= step.threshold
        return answered


def until_probable(widths: tuple[Width, ...], probability: float) -> Cascading:
    """The cascade of all widths in which one answers if its most probable class has at least this probability."""
    return Cascading(tuple(Step(number, -float(np.log(probability))) for number in range(len(widths))))


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(1, keepdims=True)
    result: np.ndarray = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    return result


_TINY = 1e-37
"""Stands for a probability of 0, whose logarithm would be no number."""
