"""The result of pruning: a smaller network, and how much was kept of each of its layers."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from nestling.errors import RunError
from nestling.markup import bar, card, element, html, html_table
from nestling.prediction import Likelihood
from nestling.running import Cost, Nested, as_call, program_of
from nestling.storage import PlainFiles, write_whole
from nestling.tables import text_table
from nestling.torch_parts import pytree

LITTLE_GONE = 0.9
"""If more than this share of the file and of the multiply-adds is left, the record says why, and what to change."""


@dataclass(frozen=True)
class LayerReport:
    """What pruning left of one layer or group.

    Attributes:
        name: The layer or the group.
        kept: How many of its weights or units are kept.
        total: How many it had.

    Examples:
        >>> from nestling.pruning import LayerReport
        >>> LayerReport("layers.1", kept=24, total=32).sparsity
        0.25
    """

    name: str
    kept: int
    total: int

    @property
    def sparsity(self) -> float:
        """The share that was pruned."""
        return 1 - self.kept / self.total


@dataclass(frozen=True)
class Pruned:
    """A pruned network, plain and in eval mode, with a record of its pruning; prints as a table.

    Attributes:
        network: The smaller network.
        method: How it was pruned.
        structure: ``"weights"`` or ``"units"``.
        threshold: What decided which of them are kept.
        layers: What is left of each layer or group.
        before: The cost of the original network as it is delivered: parameters that are not zero, multiply-adds as they
            are computed, and the bytes and latency of the network in its files.
        after: The same of the pruned network.
        trained: The network with its gates or posteriors after training.
        kept: Flags of what is kept of each layer.
        left: Why other groups could not be pruned.
        uncertain: The pruned network with the noise of its weights or units, for ``predict`` and ``evaluate``; None for
            dependent_beta_bernoulli.
        likelihood: The one it was trained with, to be passed to them.
        log: A line per epoch of all stages.
        folder: Where the stages are stored; None in memory.
        target: The budgets, as text.
        num_beyond: How many units or weights were dropped for the target though the threshold keeps them.
        files: The network as files; None if JSON can't hold its graph.
        advice: Why little was pruned, or a budget is not kept, and what to change; else empty.
        example: What the network is called with.

    Examples:
        >>> short = nl.Recipe(epochs=1, cuts=(1.0,))
        >>> pruned = nl.prune(module, example, data, "vbd", recipe=short, quiet=True)
        >>> pruned.method, pruned.structure, len(pruned.layers)
        ('vbd', 'units', 2)
        >>> sorted(pruned.to_dict())[:4]
        ['after', 'before', 'compression', 'layers']
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
    files: PlainFiles | None = field(default=None, repr=False)
    advice: str = ""
    example: Any = field(default=None, repr=False)

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
        """Write the network as one compressed file: ``torch.export.load(path).module()`` runs it, without nestling.

        torch unpickles parts of such a file, which can run any code: load only files of your own. What
        ``nestling.delivery.save_small`` writes is data alone, for ``load_small``.

        Args:
            path: Where to write.

        Raises:
            RunError: If torch can't export this network, or nothing can be written there.
        """
        try:
            args, kwargs = pytree.tree_map_only(Tensor, Tensor.cpu, as_call(self.example))
            program = program_of(deepcopy(self.network).cpu().eval(), (args, kwargs))
        except Exception as error:  # torch raises errors of many kinds for code that it can't export
            advice = "Save its weights with nl.save_pruned, and read them with nl.load_pruned."
            raise RunError(path, "can't be written, since torch can't export this network", advice) from error
        write_whole(Path(path), program.content)

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
