"""What every stage would say of every example, and what a cascade with given thresholds makes of it."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
LEFT_OUT, ANSWERS_ALL = -np.inf, np.inf
"""The threshold of a stage that is not run, and of one that answers whatever reaches it."""


@dataclass(frozen=True, eq=False)
class Outcomes:
    """Of N examples at K stages: how unsure each stage is, ``scores`` (K, N), and whether it is ``correct`` (K, N).

    ``costs`` (K,) is what each stage costs for one example, in multiply-adds or in milliseconds. ``expected`` (K, N) is
    the probability that an answer is right by what the last stage says of it. Its sums vary much less than counts of
    right answers do, so thresholds that are chosen among many by these sums hold on other data. Where it is not known,
    it is whether the answer is right.
    """

    scores: Floats
    correct: npt.NDArray[np.bool_]
    costs: Floats
    expected: Floats

    @classmethod
    def counted(cls, scores: Floats, correct: npt.NDArray[np.bool_], costs: Floats) -> "Outcomes":
        """The outcomes of stages of which only right and wrong answers are known."""
        return cls(scores, correct, costs, correct.astype(np.float64))

    @property
    def num_examples(self) -> int:
        """N."""
        return int(self.scores.shape[1])

    def of(self, examples: Integers) -> "Outcomes":
        """The outcomes of some of the examples."""
        return Outcomes(self.scores[:, examples], self.correct[:, examples], self.costs, self.expected[:, examples])


@dataclass(frozen=True, eq=False)
class Routed:
    """Of each example (N,): the ``stages`` at which it ends, whether it is ``answered`` there and is ``correct``, and
    the ``costs`` of all stages that it went through; ``reached`` (K,) is the share of examples that a stage runs on.
    """

    stages: Integers
    answered: npt.NDArray[np.bool_]
    correct: npt.NDArray[np.bool_]
    costs: Floats
    reached: Floats

    @property
    def accuracy(self) -> float:
        """The share of right answers among the answers; NaN if there is none."""
        return float(self.correct.sum() / self.answered.sum()) if self.answered.any() else float("nan")

    @property
    def mean_cost(self) -> float:
        """The average cost of an example."""
        return float(self.costs.mean())


def routed(outcomes: Outcomes, thresholds: Floats) -> Routed:
    """Send every example through the stages: one answers if its score is at most its threshold (K,).

    What the last stage is too unsure of ends there without an answer.
    """
    num_stages, num_examples = outcomes.scores.shape
    answers = outcomes.scores <= thresholds[:, None]
    answered = np.asarray(answers.any(0))
    stages = np.where(answered, answers.argmax(0), num_stages - 1)
    reached = (np.arange(num_stages)[:, None] <= stages) & (thresholds > LEFT_OUT)[:, None]
    costs = (reached * outcomes.costs[:, None]).sum(0)
    correct = answered & outcomes.correct[stages, np.arange(num_examples)]
    return Routed(stages, answered, correct, costs, reached.mean(1))


def with_dont_know(outcomes: Outcomes, thresholds: Floats, share: float) -> Floats:
    """The thresholds with a last one at which at most a share of all examples, the least sure, gets no answer."""
    last = np.sort(outcomes.scores[-1][routed(outcomes, thresholds).stages == len(thresholds) - 1])
    most = min(int(share * outcomes.num_examples), len(last) - 1)
    return np.append(thresholds[:-1], last[-most - 1]) if most > 0 else thresholds
