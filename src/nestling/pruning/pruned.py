"""What pruning gives: a smaller network, and what was kept of each of its layers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from nestling.running import Cost, Nested
from nestling.tables import text_table


@dataclass(frozen=True)
class LayerReport:
    """How many of the ``total`` weights or units of a layer or group are ``kept``."""

    name: str
    kept: int
    total: int

    @property
    def sparsity(self) -> float:
        """The share that is gone."""
        return 1 - self.kept / self.total


@dataclass(frozen=True)
class Pruned:
    """A pruned ``network``, plain and in eval mode, with how it came about; prints as a table.

    ``before`` and ``after`` are the costs of the network that was given and of this one. ``trained`` is the network
    with its gates or posteriors as training left it, ``kept`` what the threshold keeps of each layer, ``left`` why
    other groups could not be pruned. ``uncertain`` is the network with the noise of what is left, for ``predict`` and
    ``evaluate`` to draw (None for dependent_beta_bernoulli).
    """

    network: nn.Module
    method: str
    structure: str
    threshold: float
    layers: Sequence[LayerReport]
    before: Cost
    after: Cost
    trained: Nested = field(repr=False)
    kept: Mapping[str, Tensor] = field(repr=False)
    left: Mapping[str, str] = field(default_factory=dict)
    uncertain: nn.Module | None = field(default=None, repr=False)
    log: Sequence[dict[str, Any]] = field(default=(), repr=False)
    folder: Path | None = None

    @property
    def compression(self) -> float:
        """All weights over kept weights, of the layers that were pruned (biases and norms not counted); of units, all
        parameters of the network over those of the smaller one."""
        if self.structure == "units":
            return self.before.params / self.after.params
        return sum(own.total for own in self.layers) / max(1, sum(own.kept for own in self.layers))

    def to_dict(self) -> dict[str, Any]:
        """What is known of it, as JSON has it."""
        return {
            "method": self.method,
            "structure": self.structure,
            "threshold": self.threshold,
            "layers": [{"name": own.name, "kept": own.kept, "total": own.total} for own in self.layers],
            "compression": self.compression,
            "before": vars(self.before),
            "after": vars(self.after),
            "left": dict(self.left),
        }

    def __repr__(self) -> str:
        header = ("what", "kept", "of", "gone")
        rows = [(r.name, str(r.kept), str(r.total), f"{r.sparsity:.2%}") for r in self.layers]
        rows += [
            (name, str(getattr(self.after, name)), str(getattr(self.before, name)), _gone(self, name))
            for name in ("params", "macs", "bytes")
        ]
        title = f"{self.method}, {self.structure}, threshold {self.threshold:g}: {self.compression:.1f} times smaller"
        return f"{title}\n{text_table(header, rows, names=1)}"


def _gone(pruned: Pruned, name: str) -> str:
    before, after = getattr(pruned.before, name), getattr(pruned.after, name)
    return f"{1 - after / before:.2%}" if before else "-"
