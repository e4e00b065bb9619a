"""A network's figures at each width: size, speed, accuracy, calibration, detection of out-of-distribution data."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from nestling.prediction import Calibration, Likelihood, Scores, evaluate
from nestling.reading import Cut, cut_names, full_cut
from nestling.running import Cost, Nested, cost
from nestling.tables import percent, text_table, thousands


@dataclass(frozen=True)
class WidthRow:
    """A network at a cut: the fractions that mean it (``cut``), the share of its blocks that is ``kept``, and scores.

    ``calibrated`` has its scores after temperature scaling, if it was calibrated.
    """

    cut: str
    kept: float
    cost: Cost
    scores: Scores
    calibrated: Scores | None = None

    def to_dict(self) -> dict[str, Any]:
        """The row as plain values for JSON."""
        row = {"cut": self.cut, "kept": self.kept, "cost": vars(self.cost), "scores": self.scores.to_dict()}
        return row if self.calibrated is None else row | {"calibrated": self.calibrated.to_dict()}


def score_widths(
    nested: Nested,
    loader: Iterable[Any],
    cuts: Sequence[float | Cut],
    *,
    ood: Iterable[Any] | None = None,
    samples: int = 6,
    likelihood: str | Likelihood | None = None,
    calibrations: Sequence[Calibration] = (),
    spread: bool = False,
) -> list[WidthRow]:
    """Score each different network among some cuts, with its latency for one input on this machine.

    ``calibrations`` are looked up by their cuts; ``spread`` is as in ``evaluate``.
    """
    by_cut, whole = {calibration.cut: calibration for calibration in calibrations}, full_cut(nested.groups)
    rows = []
    for cut, name in cut_names(nested.groups, cuts).items():
        common: dict[str, Any] = {
            "cut": cut,
            "samples": samples,
            "ood": ood,
            "likelihood": likelihood,
            "spread": spread,
        }
        scores = evaluate(nested, loader, **common)
        fitted = by_cut.get(cut)
        calibrated = None if fitted is None else evaluate(nested, loader, calibration=fitted, **common)
        rows.append(WidthRow(name, cut.share_of(whole), cost(nested, cut, latency=True), scores, calibrated))
    return rows


def widths_table(rows: Sequence[WidthRow]) -> str:
    """The rows as text, with one column per figure that was measured."""
    cells = [_cells(row) for row in rows]
    header = list(dict.fromkeys(name for row in cells for name in row))
    return text_table(header, [[row.get(name, "-") for name in header] for row in cells])


def _cells(row: WidthRow) -> dict[str, str]:
    cells = {
        "cut": row.cut,
        "kept": percent(row.kept),
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
