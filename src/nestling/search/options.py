"""The options of ``search``: to be had without torch."""

from dataclasses import dataclass
from typing import Literal

CostName = Literal["params", "macs", "bytes", "latency"]
StrategyName = Literal["dynamic", "beam", "greedy", "uniform", "random"]


@dataclass(frozen=True)
class Searching:
    """How ``search`` goes about it."""

    strategy: StrategyName = "dynamic"
    """dynamic scores few cuts for all budgets at once, beam is FN3's; the others are to compare with."""
    num_points: int = 24
    """How many networks the curve has at most."""
    num_kept: int = 3
    """How many trajectories a beam keeps."""
    num_candidates: int = 10
    """How many cuts each of them tries in a step."""
    window: float = 0.125
    """The share of its blocks that each group gives up before any of them gives up more, in a beam."""
    num_trajectories: int = 4
    """How many trajectories random follows."""
    seed: int = 0
    """Seed of the strategies that draw."""
