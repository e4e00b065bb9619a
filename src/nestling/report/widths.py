"""A network's figures at each width: size, speed, accuracy, calibration, detection of out-of-distribution data."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from nestling.prediction import Calibration, Likelihood, Scores, evaluate
from nestling.reading import Cut, make_cut
from nestling.running import Cost, Nested, cost
from nestling.tables import text_table, thousands


@dataclass(frozen=True)
class WidthRow:
    """One width of a network; ``calibrated`` has its scores after temperature scaling, if it was calibrated."""

    width: str
    cost: Cost
    scores: Scores
    calibrated: Scores | None = None

    def to_dict(self) -> dict[str, Any]:
        """The row as plain values for JSON."""
        row = {"width": self.width, "cost": vars(self.cost), "scores": self.scores.to_dict()}
        return row if self.calibrated is None else row | {"calibrated": self.calibrated.to_dict()}


def score_widths(
    nested: Nested,
    loader: Iterable[Any],
    cuts: Sequence[float | Cut],
    *,
    ood: Iterable[Any] | None = None,
    samples: int = 6,
    likelihood: str | Likelihood | None = None,
    calibrations: Sequence[Calibration | None] | None = None,
    spread: bool = False,
) -> list[WidthRow]:
    """Score a network at each cut, with its latency for one input on this machine; ``spread`` is as in ``evaluate``."""
    rows = []
    for cut, calibration in zip(cuts, calibrations or [None] * len(cuts), strict=True):
        common: dict[str, Any] = {
            "cut": cut,
            "samples": samples,
            "ood": ood,
            "likelihood": likelihood,
            "spread": spread,
        }
        scores = evaluate(nested, loader, **common)
        calibrated = None if calibration is None else evaluate(nested, loader, calibration=calibration, **common)
        rows.append(WidthRow(cut_name(nested, cut), cost(nested, cut, latency=True), scores, calibrated))
    return rows


def widths_table(rows: Sequence[WidthRow]) -> str:
    """The rows as text, with one column per figure that was measured."""
    cells = [_cells(row) for row in rows]
    header = list(dict.fromkeys(name for row in cells for name in row))
    return text_table(header, [[row.get(name, "-") for name in header] for row in cells])


def cut_name(nested: Nested, cut: float | Cut) -> str:
    """The share of blocks that a cut really keeps, averaged over the groups."""
    widths = make_cut(nested.groups, cut)
    shares = [widths[group.name] / group.num_blocks for group in nested.groups.free]
    return f"{100 * sum(shares) / len(shares):.4g}%" if shares else "100%"


def _cells(row: WidthRow) -> dict[str, str]:
    cells = {
        "width": row.width,
        "parameters": thousands(row.cost.params),
        "MACs": thousands(row.cost.macs),
        "ms": f"{row.cost.latency_ms:.3f}",
    }
    scores = row.scores.to_dict()
    for key, name in _PERCENT.items():
        if isinstance(scores.get(key), float):
            cells[name] = f"{100 * scores[key]:.2f}"  # type: ignore[operator]
        if key == "ece" and row.calibrated is not None:
            cells["ECE % calibrated"] = f"{100 * row.calibrated.ece:.2f}"
    for key, name in _PLAIN.items():
        if isinstance(scores.get(key), float):
            cells[name] = f"{scores[key]:.4f}"
    return cells


_PERCENT = {"accuracy": "accuracy %", "ece": "ECE %", "aupr": "OOD AUPR %", "auroc": "OOD AUROC %"}
_PLAIN = {"nll": "NLL", "rmse": "RMSE", "ged": "GED", "dice": "Dice"}
