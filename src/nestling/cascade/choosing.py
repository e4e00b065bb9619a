"""From the outputs of every stage to temperatures, the thresholds of a cascade, and those of its conformal sets."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import get_args

import numpy as np
import torch
from torch import Tensor

from nestling.cascade.goals import Fitted, Goal
from nestling.cascade.guarantee import Guarantee
from nestling.cascade.options import ScoreName
from nestling.cascade.outcomes import Floats, Integers, Outcomes, routed, with_dont_know
from nestling.cascade.stages import Judged, judged, outcomes_by_score, predicted
from nestling.errors import ArgumentError, RangeError
from nestling.prediction import Likelihood, conformal_thresholds, fit_temperature
from nestling.seeding import Purpose, mixed


@dataclass(frozen=True, eq=False)
class Choice:
    """The ``temperatures`` and ``thresholds`` (K,) of the stages, and the ``score`` that is compared with these.

    ``outcomes`` are those of the examples that chose, by that score.
    """

    score: str
    temperatures: tuple[float, ...]
    thresholds: Floats
    set_thresholds: Mapping[float, float]
    outcomes: Outcomes
    guarantee: Guarantee | None


def chosen(
    answers: Iterable[tuple[Tensor, Tensor]],
    costs: Sequence[float],
    goal: Goal,
    *,
    likelihood: Likelihood,
    score: str = "auto",
    dont_know: float = 0.0,
    coverages: Sequence[float] = (0.9,),
    seed: int = 0,
) -> Choice:
    """Fit the thresholds of a cascade to the outputs of its stages.

    Args:
        answers: The outputs (S, N, ...) of each stage with the labels (N,), the widest stage first.
        costs: What each stage costs for one example, the narrowest stage first.
        goal: What the thresholds are fitted for.
        likelihood: What the outputs mean.
        score: As in ``cascade``, and so are ``dont_know``, ``coverages`` and ``seed``.
        dont_know: The share of the examples that get no answer.
        coverages: Of the conformal sets.
        seed: Of the split of the examples.

    Returns:
        What was fitted.
    """
    judgements, temperatures, parts = list[Judged](), list[float](), list[Integers]()
    widest, draws = None, False
    for outputs, targets in answers:
        parts, draws = _parts(goal, len(targets), seed), len(outputs) > 1
        used = torch.from_numpy(parts[0])
        temperatures.insert(0, fit_temperature(likelihood, outputs[:, used], targets[used]))
        found = predicted(likelihood, outputs, temperatures[0])
        widest = widest or found
        judgements.insert(0, judged(found, targets, widest))
    by_score = outcomes_by_score(judgements, costs)
    name, fitted = _fitted({candidate: by_score[candidate] for candidate in _candidates(score, draws)}, goal, parts)
    choosing, testing = (by_score[name].of(part) for part in parts)
    thresholds = with_dont_know(choosing, fitted.thresholds, dont_know)
    ends = torch.from_numpy(routed(testing, thresholds).stages).unsqueeze(0)
    nonconformity = torch.stack([stage.nonconformity[parts[1]] for stage in judgements]).gather(0, ends)[0]
    sets = conformal_thresholds(nonconformity, coverages)
    return Choice(name, tuple(temperatures), thresholds, sets, choosing, fitted.guarantee)


def _parts(goal: Goal, num_examples: int, seed: int) -> list[Integers]:
    """The examples that choose, and those that test: two halves at random if the goal needs a test, else all twice."""
    if not goal.needs_test:
        return [np.arange(num_examples)] * 2
    order = np.random.default_rng(mixed(Purpose.SPLIT, seed)).permutation(num_examples)
    return [np.sort(order[: num_examples // 2]), np.sort(order[num_examples // 2 :])]


def _candidates(score: str, draws: bool) -> list[str]:
    """The scores to choose from: that between weight samples says nothing where there is one."""
    names = [name for name in get_args(ScoreName)[1:] if draws or name != _OF_DRAWS]
    if score == _OF_DRAWS and not draws:
        needed = "entropy or max_probability for a network that draws no weights"
        raise ArgumentError("score", score, needed, "Nest with Bayesian weights and pass samples=6.")
    return names if score == "auto" else [score]


def _fitted(outcomes: Mapping[str, Outcomes], goal: Goal, parts: Sequence[Integers]) -> tuple[str, Fitted]:
    """The score that does best by the examples that choose, and what the goal leads to with it."""
    merits = {}
    for name, by_score in outcomes.items():
        choosing = by_score.of(parts[0])
        with suppress(RangeError):  # a bound that can't be proven with this score
            merits[name] = goal.merit(choosing, goal.fit(choosing, choosing).thresholds)
    best = max(merits, key=lambda name: merits[name], default=next(iter(outcomes)))
    choosing, testing = (outcomes[best].of(part) for part in parts)
    return best, goal.fit(choosing, testing)


_OF_DRAWS = "mutual_information"
