"""What the options of ``search`` may be, by name: to be had without torch."""

from typing import Literal

CostName = Literal["params", "macs", "bytes", "latency"]
StrategyName = Literal["dynamic", "beam", "greedy", "uniform", "random"]
