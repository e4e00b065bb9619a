"""A cascade beside each of its cuts by itself, on one data set: accuracy against average cost."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from nestling.cascade.grid import front, grid_of, spread_candidates, thinned
from nestling.cascade.outcomes import ANSWERS_ALL, LEFT_OUT, Floats, Outcomes, routed
from nestling.cascade.stages import Stage
from nestling.prediction import Bounds, normal_bounds, standard_error

MOST_POINTS = 24
"""How many pairs of cost and accuracy stand for all that other thresholds can do."""


@dataclass(frozen=True)
class Point:
    """An average cost and the accuracy that comes with it.

    Attributes:
        macs: Average multiply-adds per example.
        accuracy: The share of right answers, from 0 to 1.
        thresholds: The threshold of each stage but the last; -inf for a stage that is left out. Empty for a single cut.
        ms: Average milliseconds per example, if the times of the stages are known.

    Examples:
        >>> from nestling.cascade import Point
        >>> Point(1e6, 0.91, (0.2,)).to_dict()
        {'macs': 1000000.0, 'accuracy': 0.91, 'thresholds': [0.2], 'ms': None}
    """

    macs: float
    accuracy: float
    thresholds: tuple[float, ...] = ()
    ms: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; the threshold of a stage that is left out is None."""
        thresholds = [None if value == LEFT_OUT else value for value in self.thresholds]
        return {"macs": self.macs, "accuracy": self.accuracy, "thresholds": thresholds, "ms": self.ms}


@dataclass(frozen=True)
class Comparison:
    """A cascade beside each of its cuts, all on the same data set.

    Attributes:
        chosen: The cascade with the thresholds that were fitted.
        points: The cascade with other thresholds, from the cheapest to the dearest.
        alone: Each cut by itself, in the order of the stages.
        loss: How much less accurate the cascade is than its widest cut; 0.002 is 0.2 points. An example without an
            answer counts as wrong here, and in no accuracy.
        loss_bounds: The 95 % interval of ``loss`` over the examples.

    Examples:
        >>> comparison = casc.compare(loader)
        >>> len(comparison.alone), comparison.loss_bounds[0] <= comparison.loss <= comparison.loss_bounds[1]
        (3, True)
    """

    chosen: Point
    points: tuple[Point, ...]
    alone: tuple[Point, ...]
    loss: float
    loss_bounds: Bounds

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**asdict(self), "chosen": asdict(self.chosen)}


def compared(outcomes: Outcomes, thresholds: Floats, points: Sequence[Point], stages: Sequence[Stage]) -> Comparison:
    """What a cascade, other thresholds and each stage alone come to, given the outcomes of every stage."""
    ends = routed(outcomes, thresholds)
    lost = outcomes.correct[-1].astype(float) - ends.correct
    num, loss = len(lost), float(lost.mean())
    error = standard_error(float(lost.sum()), float(np.square(lost).sum()), num)
    alone = zip(stages, outcomes.correct.mean(1), strict=True)
    return Comparison(
        _point(outcomes, thresholds, stages),
        tuple(_point(outcomes, np.array([*point.thresholds, ANSWERS_ALL]), stages) for point in points),
        tuple(Point(float(stage.macs), float(accuracy), (), stage.ms) for stage, accuracy in alone),
        loss,
        normal_bounds(loss, error, -1.0, 1.0),
    )


def best_points(outcomes: Outcomes, stages: Sequence[Stage]) -> tuple[Point, ...]:
    """The most accurate thresholds for each average cost, from the cheapest on."""
    grid = grid_of(outcomes, spread_candidates(outcomes))
    cells = thinned(front(grid.costs, -grid.lost), grid.costs, MOST_POINTS)
    return tuple(_point(outcomes, grid.thresholds(int(cell)), stages) for cell in cells)


def _point(outcomes: Outcomes, thresholds: Floats, stages: Sequence[Stage]) -> Point:
    ends = routed(outcomes, thresholds)
    macs = float(ends.reached @ [stage.macs for stage in stages])
    return Point(macs, ends.accuracy, tuple(map(float, thresholds[:-1])), _mean_ms(stages, ends.reached))


def _mean_ms(stages: Sequence[Stage], reached: Floats) -> float | None:
    """The average milliseconds of an example, if they are known: of each stage, times the share that reaches it."""
    times = [stage.ms for stage in stages if stage.ms is not None]
    return float(reached @ times) if len(times) == len(stages) else None
