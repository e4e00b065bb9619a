"""The goals of a cascade: what its thresholds are fitted for, on arrays of scores and right answers."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, get_args

import numpy as np

from nestling.arguments import finite_number, inner_probability
from nestling.budgets import Limit, read_limit
from nestling.cascade.grid import Grid, between, front, grid_of, spread_candidates, thinned
from nestling.cascade.guarantee import Guarantee, cautious_rate, num_proven, p_values
from nestling.cascade.options import CostName
from nestling.cascade.outcomes import LEFT_OUT, Floats, Outcomes, routed
from nestling.errors import ArgumentError, BudgetError, RangeError

_ROUNDING = 1e-9
"""How far a sum of floats may be beside a bound that it meets."""
_ERRORS = 2.0
"""The distance in standard errors that an estimated loss keeps from its bound."""
_MOST_TESTS = 40
"""The length of the sequence of thresholds that are tested."""
_MOST_ROUNDS = 5
"""How often the thresholds of all stages are refined in turn."""


@dataclass(frozen=True, eq=False)
class Fitted:
    """The thresholds (K,) that a goal led to, and what is guaranteed about them, if anything is."""

    thresholds: Floats
    guarantee: Guarantee | None = None


class Goal(ABC):
    """What the thresholds of a cascade are fitted for; ``nl.cascade(goal=...)`` takes one, or its text.

    A goal of your own has ``fit``, ``merit`` and a text. The library has ``Loss``, ``MeanMacs`` and ``EarlyErrors``.

    Examples:
        >>> from nestling.cascade import EarlyErrors, Goal, Loss
        >>> issubclass(Loss, Goal), EarlyErrors(0.02).needs_test
        (True, True)
    """

    needs_test: ClassVar[bool] = False
    """Whether ``fit`` tests its choice on examples that had no part in it."""
    cost: CostName | None = None
    """The cost that it bounds, if it bounds one."""

    @abstractmethod
    def fit(self, choosing: Outcomes, testing: Outcomes) -> Fitted:
        """The best thresholds by some examples, tested on others if the goal needs that."""

    @abstractmethod
    def merit(self, outcomes: Outcomes, thresholds: Floats) -> float:
        """What makes one of two scores better than the other, if both reach the goal."""

    @abstractmethod
    def __str__(self) -> str: ...


@dataclass(frozen=True)
class Loss(Goal):
    """The cheapest cascade that is at most ``most`` less accurate than its widest cut.

    The loss is estimated by how likely the widest cut holds each answer to be right, and may be larger by two standard
    errors. It is an estimate, without a guarantee: see ``EarlyErrors``.

    Args:
        most: The largest loss of accuracy, as a share: 0.002 is 0.2 points.

    Examples:
        >>> from nestling.cascade import Loss
        >>> str(Loss(0.002))
        'loss=0.002'
    """

    most: float

    def fit(self, choosing: Outcomes, testing: Outcomes) -> Fitted:
        """The cheapest thresholds that are accurate enough."""
        num = choosing.num_examples

        def pick(grid: Grid) -> int:
            loss = grid.lost.ravel() / num
            error = np.sqrt(np.maximum(grid.lost_squares.ravel() / num - loss**2, 0) / num)
            fitting = np.flatnonzero(loss + _ERRORS * error <= self.most + _ROUNDING)
            return int(fitting[np.lexsort((loss[fitting], grid.costs.ravel()[fitting]))[0]])

        return Fitted(_picked(choosing, pick))

    def merit(self, outcomes: Outcomes, thresholds: Floats) -> float:
        """The cost that is saved."""
        return -routed(outcomes, thresholds).mean_cost

    def __str__(self) -> str:
        return f"loss={self.most:.15g}"


@dataclass(frozen=True)
class MeanCost(Goal):
    """The most accurate cascade that takes at most so many multiply-adds or milliseconds on average.

    Args:
        limit: The most, as a number or a share of the widest cut's, as ``goal="macs=0.5x"`` gives it.
        cost: What is limited, ``"macs"`` or ``"latency_ms"``.

    Raises:
        BudgetError: When it is fitted, if even the narrowest cut alone takes more.

    Examples:
        >>> cheap = nl.cascade(nested, (0.25, 1.0), loader, goal="macs=0.5x", samples=0)
        >>> cheap.goal, cheap.evaluate(loader).macs_share <= 0.5
        ('macs=0.5x', True)
    """

    limit: Limit
    cost: CostName = "macs"

    def fit(self, choosing: Outcomes, testing: Outcomes) -> Fitted:
        """The most accurate thresholds that are cheap enough."""
        most = self.limit.most(float(choosing.costs[-1]))

        def pick(grid: Grid) -> int:
            cells = front(grid.costs, -grid.lost)
            fitting = cells[grid.costs.ravel()[cells] <= most * (1 + _ROUNDING)]
            if not len(fitting):
                advice = "Raise the budget, or begin with a narrower cut."
                raise BudgetError({self.cost: most}, {self.cost: float(grid.costs.min())}, advice)
            return int(fitting[-1])

        return Fitted(_picked(choosing, pick))

    def merit(self, outcomes: Outcomes, thresholds: Floats) -> float:
        """How often answers are expected to be right."""
        stages = routed(outcomes, thresholds).stages
        return float(outcomes.expected[stages, np.arange(outcomes.num_examples)].mean())

    def __str__(self) -> str:
        return f"{self.cost}={self.limit}"


@dataclass(frozen=True)
class EarlyErrors(Goal):
    """The cheapest cascade of whose early answers at most a share is wrong, guaranteed for finitely many examples.

    Early answers are those of all stages but the last. The data is split into two halves: one chooses thresholds, the
    other tests them. The guarantee holds with probability ``1 - delta`` (docs/cascade.md says how it is proven).

    Args:
        most: The largest share of wrong answers among the early ones.
        delta: The probability with which the guarantee may fail.

    Raises:
        RangeError: When it is fitted, if the examples are too few to prove it.

    Examples:
        >>> from nestling.cascade import EarlyErrors
        >>> str(EarlyErrors(0.02, delta=0.05))
        'early_errors=0.02'
    """

    most: float
    delta: float = 0.1
    needs_test: ClassVar[bool] = True

    def fit(self, choosing: Outcomes, testing: Outcomes) -> Fitted:
        """The cheapest thresholds for which a test in a fixed sequence proves the bound.

        One part of the data makes the sequence, from the thresholds that err least to cheaper ones, of those that cost
        less than the full width; the other part tests it.
        """
        grid = grid_of(choosing, spread_candidates(choosing))
        cells = front(grid.costs, -cautious_rate(grid.early, grid.early_errors))
        cells = cells[grid.costs.ravel()[cells] < choosing.costs[-1]]
        sequence = [grid.thresholds(int(cell)) for cell in thinned(cells, grid.costs, _MOST_TESTS)[::-1]]
        counts = np.array([_early(testing, thresholds) for thresholds in sequence], dtype=np.float64).reshape(-1, 2)
        proven = num_proven(p_values(counts[:, 0], counts[:, 1], self.most), self.delta)
        if not proven:
            needed = f"a share that {testing.num_examples} examples can prove with delta={self.delta:g}"
            raise RangeError("early_errors", self.most, needed, "Allow more errors, or pass more examples.")
        num_early, num_errors = map(int, counts[proven - 1])
        guarantee = Guarantee(self.most, self.delta, testing.num_examples, num_early, num_errors)
        return Fitted(sequence[proven - 1], guarantee)

    def merit(self, outcomes: Outcomes, thresholds: Floats) -> float:
        """The cost that is saved."""
        return -routed(outcomes, thresholds).mean_cost

    def __str__(self) -> str:
        return f"early_errors={self.most:.15g}"


def _picked(outcomes: Outcomes, pick: Callable[[Grid], int]) -> Floats:
    """The thresholds of the cell that is picked from the widest grid, and then from those of one stage after another.

    The widest grid has quantiles of many scores; with the other thresholds held, a stage can try all of its scores.
    """
    candidates = spread_candidates(outcomes)
    thresholds = _best(outcomes, candidates, pick)
    every = [between(scores) for scores in outcomes.scores[:-1]]
    if all(len(some) == len(scores) for some, scores in zip(candidates, every, strict=True)):
        return thresholds
    for _ in range(_MOST_ROUNDS):
        before = thresholds
        for stage in range(len(every)):
            held = [np.array([value] if value > LEFT_OUT else []) for value in thresholds[:-1]]
            thresholds = _best(outcomes, [*held[:stage], every[stage], *held[stage + 1 :]], pick)
        if np.array_equal(before, thresholds):
            break
    return thresholds


def _best(outcomes: Outcomes, candidates: Sequence[Floats], pick: Callable[[Grid], int]) -> Floats:
    grid = grid_of(outcomes, candidates)
    return grid.thresholds(pick(grid))


def _early(outcomes: Outcomes, thresholds: Floats) -> tuple[int, int]:
    """How many examples are answered before the last stage, and how many of them wrong."""
    ends = routed(outcomes, thresholds)
    early = ends.stages < len(thresholds) - 1
    return int(early.sum()), int((early & ~ends.correct).sum())


def read_goal(text: str, delta: float = 0.1) -> Goal:
    """The goal from text such as ``"loss=0.002"``, ``"macs=0.5x"`` or ``"early_errors=0.02"``."""
    name, _, value = str(text).partition("=")
    for cost in get_args(CostName):
        if name == cost:
            return MeanCost(read_limit(name, value), cost)
    if name not in ("loss", "early_errors"):
        advice = "These are 0.2 points of accuracy, half of the full width's cost, 2 ms, and 2 % wrong early answers."
        raise ArgumentError(
            "goal", repr(text), "loss=0.002, macs=0.5x, latency_ms=2 or early_errors=0.02, for example", advice
        )
    try:
        share = finite_number(name, float(value))
    except ValueError:
        raise ArgumentError(name, repr(value), "a share such as 0.002", "Write the number without a unit.") from None
    if name == "early_errors":
        return EarlyErrors(inner_probability(name, share), inner_probability("delta", delta))
    if not 0 <= share < 1:
        raise RangeError(name, share, "a share of at least 0 and below 1", "0.002 stands for 0.2 points of accuracy.")
    return Loss(share)
