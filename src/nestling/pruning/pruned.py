"""The result of pruning: a smaller network, and how much was kept of each of its layers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from nestling.prediction import Likelihood
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
        """The share that was pruned."""
        return 1 - self.kept / self.total


@dataclass(frozen=True)
class Pruned:
    """A pruned ``network``, plain and in eval mode, with a record of its pruning; prints as a table.

    ``before`` and ``after`` are the costs of the original and of the pruned network. ``trained`` is the network with
    its gates or posteriors after training, ``kept`` the flags of what the threshold keeps of each layer, ``left`` the
    reasons why other groups could not be pruned. ``uncertain`` is the pruned network with the noise of its weights or
    units, for ``predict`` and ``evaluate`` (None for dependent_beta_bernoulli). ``likelihood`` is the one it was
    trained with, to be passed to them with ``network`` or ``uncertain``.
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
    likelihood: Likelihood | None = field(default=None, repr=False)
    log: Sequence[dict[str, Any]] = field(default=(), repr=False)
    folder: Path | None = None

    @property
    def compression(self) -> float:
        """For weights, all over kept weights of the pruned layers, without biases and norms; for units, parameters of
        the network over those of the smaller one."""
        if self.structure == "units":
            return self.before.params / self.after.params
        return sum(layer.total for layer in self.layers) / max(1, sum(layer.kept for layer in self.layers))

    def to_dict(self) -> dict[str, Any]:
        """The record as plain values for JSON, without tensors and networks."""
        return {
            "method": self.method,
            "structure": self.structure,
            "threshold": self.threshold,
            "layers": [{"name": layer.name, "kept": layer.kept, "total": layer.total} for layer in self.layers],
            "compression": self.compression,
            "before": vars(self.before),
            "after": vars(self.after),
            "left": dict(self.left),
            "likelihood": None if self.likelihood is None else self.likelihood.settled().to_dict(),
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
