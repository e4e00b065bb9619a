"""What an engine is made of: its widths, and the inputs that it takes."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Calibrated:
    """What logits are divided by, and the thresholds of conformal sets by their coverage."""

    temperature: float = 1.0
    thresholds: Mapping[float, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Width:
    """A width by its name: the share of blocks that it ``kept``, its calibration, and its widths by group."""

    name: str
    kept: float
    calibrated: Calibrated = Calibrated()
    cut: Mapping[str, int] | None = None


@dataclass(frozen=True)
class Port:
    """An input of the network: ``shape`` is that of one example, with None for a size that is open."""

    name: str
    dtype: str
    shape: tuple[int | None, ...]

    def fits(self, shape: tuple[int, ...]) -> bool:
        """Whether an array with a batch axis has the shape of this input."""
        own = shape[1:]
        return len(own) == len(self.shape) and all(
            wanted in (None, size) for wanted, size in zip(self.shape, own, strict=True)
        )
