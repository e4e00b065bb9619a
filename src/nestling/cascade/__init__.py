"""Cascades: the narrowest cut answers first, and what it is too unsure of goes on to a wider one."""

from typing import TYPE_CHECKING

from nestling.lazily import imports_lazily

if TYPE_CHECKING:
    from nestling.cascade.answers import CascadePrediction, CascadeScores, StageScores
    from nestling.cascade.cascade import cascade
    from nestling.cascade.comparison import Comparison, Point
    from nestling.cascade.goals import EarlyErrors, Goal, Loss, MeanCost, read_goal
    from nestling.cascade.guarantee import Guarantee
    from nestling.cascade.options import Cascading, MeasuredIn
    from nestling.cascade.record import CASCADE_FILE, Cascade
    from nestling.cascade.stages import Stage

__all__ = [
    "Cascade",
    "CascadePrediction",
    "CascadeScores",
    "Cascading",
    "Comparison",
    "EarlyErrors",
    "Goal",
    "Guarantee",
    "Loss",
    "MeanCost",
    "Point",
    "Stage",
    "StageScores",
    "cascade",
]

imports_lazily(__name__)
