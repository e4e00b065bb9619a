"""The result of pruning: a smaller network, and how much was kept of each of its layers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from nestling.errors import RunError
from nestling.markup import bar, card, element, html, html_table
from nestling.prediction import Likelihood
from nestling.running import Cost, Nested, Program
from nestling.storage import write_whole
from nestling.tables import text_table

LITTLE_GONE = 0.9
"""If more than this share of the file and of the multiply-adds is left, the record says why, and what to change."""


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

    ``before`` and ``after`` are the costs of the original and of the pruned network as they are delivered: parameters
    that are not zero, multiply-adds as they are computed, and the bytes and latency of the ``program`` (None if torch
    can't export the network: then those of its tensors and of the module). ``trained`` is the network with its gates or
    posteriors after training, ``kept`` the flags of what is kept of each layer, ``left`` the reasons why other groups
    could not be pruned. ``uncertain`` is the pruned network with the noise of its weights or units, for ``predict`` and
    ``evaluate`` (None for dependent_beta_bernoulli). ``num_beyond`` units or weights were dropped for the ``target``
    though the threshold keeps them. If little was pruned, ``advice`` says why and what to change.
    ``likelihood`` is the one it was trained with, to be passed to them with ``network`` or ``uncertain``.
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
    target: str = ""
    num_beyond: int = 0
    program: Program | None = field(default=None, repr=False)
    advice: str = ""

    @property
    def headline(self) -> str:
        """How much smaller and faster the network is as it is delivered, in one line."""
        before, after = self.before, self.after
        assert before.latency_ms is not None
        assert after.latency_ms is not None
        size = f"{before.bytes / after.bytes:.1f} times smaller as a file ({after.bytes:,} of {before.bytes:,} bytes)"
        times = f"{after.latency_ms:.3g} of {before.latency_ms:.3g} ms"
        return f"{size}, {before.latency_ms / after.latency_ms:.1f} times as fast ({times} for one example)"

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
            "target": self.target,
            "num_beyond": self.num_beyond,
            "layers": [{"name": layer.name, "kept": layer.kept, "total": layer.total} for layer in self.layers],
            "compression": self.compression,
            "before": vars(self.before),
            "after": vars(self.after),
            "left": dict(self.left),
            "likelihood": None if self.likelihood is None else self.likelihood.settled().to_dict(),
        }

    def save_program(self, path: str | PathLike[str]) -> None:
        """Write the network as one compressed file: ``torch.export.load(path).module()`` runs it, without nestling."""
        if self.program is None:
            advice = "Save its weights with nl.save_pruned, and read them with nl.load_pruned."
            raise RunError(path, "can't be written, since torch can't export this network", advice)
        write_whole(Path(path), self.program.content)

    def __repr__(self) -> str:
        rows = [(r.name, str(r.kept), str(r.total), f"{r.sparsity:.2%}") for r in self.layers]
        for name, label in _COSTS.items():
            before, after = getattr(self.before, name), getattr(self.after, name)
            gone = f"{1 - after / before:.2%}" if before else "-"
            now, then = (f"{v:.3g}" if name == "latency_ms" else str(v) for v in (after, before))
            rows.append((label, now, then, gone))
        target = f", under {self.target} ({self.num_beyond} more {self.structure} dropped)" if self.target else ""
        title = f"{self.method}, {self.structure}, threshold {self.threshold:g}{target}: {self.headline}"
        table = text_table(("what", "kept", "of", "gone"), rows, names=1)
        return "\n".join(filter(None, (title, table, self.advice)))

    def _repr_html_(self) -> str:
        rows = [
            [
                layer.name,
                html(bar(layer.kept / layer.total), f" {layer.kept:,}"),
                f"{layer.total:,}",
                f"{layer.sparsity:.2%}",
            ]
            for layer in self.layers
        ]
        table = html_table(["layer", f"{self.structure} kept", "of", "gone"], rows, styled=True)
        return card(f"Pruned by {self.method}", self.headline, table, element("div", self.advice))


_COSTS = {"params": "params not 0", "macs": "macs", "bytes": "bytes of file", "latency_ms": "ms"}


def why_little_went(
    structure: str, keeps: str, layers: Sequence[LayerReport], before: Cost, after: Cost, left: Mapping[str, str]
) -> str:
    """Why little was pruned and what to change, or nothing if enough was; ``keeps`` is the rule of the threshold."""
    if after.bytes <= LITTLE_GONE * before.bytes or after.macs <= LITTLE_GONE * before.macs:
        return ""
    kept, total = sum(layer.kept for layer in layers), sum(layer.total for layer in layers)
    if kept > LITTLE_GONE * total:
        why = f"{kept} of {total} {structure} have {keeps}, so that the noise leaves them in place. Train for more "
        why += "epochs, or with a larger kappa or order_lr, or name a target, such as under macs=0.5x."
    else:
        why = f"the {structure} that were dropped are a small part of the network."
    others = "; ".join(f"{name}: {reason}" for name, reason in list(left.items())[:3])
    return f"Little was pruned: {why}" + (f" What can't be pruned: {others}." if others else "")
