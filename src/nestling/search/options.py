"""The options of ``search``, in a file that imports no torch."""

from dataclasses import dataclass
from typing import Literal

CostName = Literal["params", "macs", "bytes", "latency"]
StrategyName = Literal["dynamic", "beam", "greedy", "uniform", "random"]


@dataclass(frozen=True)
class Searching:
    """How ``search`` chooses the cuts that it scores."""

    strategy: StrategyName = "dynamic"
    """dynamic scores few cuts for all budgets at once, beam is FN3's; the others are for comparison."""
    num_points: int = 24
    """The largest number of networks of the curve."""
    num_kept: int = 3
    """How many trajectories a beam keeps."""
    num_candidates: int = 10
    """How many cuts each trajectory of a beam tries per step."""
    window: float = 0.125
    """In a beam, the share of its blocks that each group gives up before any group gives up more."""
    num_trajectories: int = 4
    """How many trajectories the random strategy follows."""
    seed: int = 0
    """Seed of the strategies that draw."""
