"""A network's figures at each width: size, speed, accuracy, calibration, detection of out-of-distribution data."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import length_hint
from typing import Any

from nestling.prediction import Calibration, Scores, evaluate
from nestling.reading import Cut, make_cut
from nestling.running import Cost, Nested, cost
from nestling.tables import text_table, thousands
from nestling.training import Progress


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
    likelihood: str = "categorical",
    calibrations: Sequence[Calibration | None] | None = None,
    spread: bool = False,
    quiet: bool = True,
) -> list[WidthRow]:
    """Score a network at each cut, with its latency for one input on this machine; ``spread`` is as in ``evaluate``.

    ``quiet=False`` shows progress: a bar on a terminal, a line per cut elsewhere.
    """
    rows: list[WidthRow] = []
    chosen = list(calibrations or [None] * len(cuts))
    passes = len(cuts) + sum(calibration is not None for calibration in chosen)
    total = passes * (length_hint(loader) + length_hint(ood or ()))
    with Progress(total, "evaluate", shown=not quiet) as progress:
        for cut, calibration in zip(cuts, chosen, strict=True):

            def score(given: Calibration | None, at: float | Cut = cut) -> Scores:
                watched, strange = (None if own is None else _stepping(own, progress) for own in (loader, ood))
                options: dict[str, Any] = {"samples": samples, "likelihood": likelihood, "spread": spread}
                return evaluate(nested, watched or (), cut=at, ood=strange, calibration=given, **options)

            scores, calibrated = score(None), None if calibration is None else score(calibration)
            rows.append(WidthRow(cut_name(nested, cut), cost(nested, cut, latency=True), scores, calibrated))
            progress.say(f"{rows[-1].width} scored ({len(rows)} of {len(cuts)})")
    return rows


def _stepping(batches: Iterable[Any], progress: Progress) -> Iterator[Any]:
    for batch in batches:
        yield batch
        progress.step()


def widths_table(rows: Sequence[WidthRow]) -> str:
    """The rows as text, with one column per figure that was measured, each with half of its 95 % interval."""
    cells = [_cells(row) for row in rows]
    header = list(dict.fromkeys(name for row in cells for name in row))
    table = text_table(header, [[row.get(name, "-") for name in header] for row in cells])
    count = rows[0].scores.count if rows else 0
    return f"{table}\n\n± is half of the 95 % interval over the {count:,} test examples." if rows else table


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
    for key, name in _PERCENT.items():
        _add(cells, row.scores, key, name.format(chance=100 * (row.scores.base_rate or 0.0)), 100.0, 2)
        if key == "ece" and row.calibrated is not None:
            _add(cells, row.calibrated, key, "ECE % calibrated", 100.0, 2)
    for key, name in _PLAIN.items():
        _add(cells, row.scores, key, name, 1.0, 4)
    return cells


def _add(cells: dict[str, str], scores: Scores, key: str, name: str, scale: float, digits: int) -> None:
    """Put a score into a row, if it was measured, with half of its interval."""
    value, bounds = getattr(scores, key, None), scores.bounds.get(key)
    if value is not None:
        half = "" if bounds is None else f" ±{scale * (bounds[1] - bounds[0]) / 2:.{digits}f}"
        cells[name] = f"{scale * value:.{digits}f}{half}"


_PERCENT = {
    "accuracy": "accuracy %",
    "ece": "ECE %",
    "aupr": "OOD AUPR % (a guess: {chance:.1f})",
    "auroc": "OOD AUROC % (a guess: 50)",
}
_PLAIN = {"nll": "NLL", "rmse": "RMSE", "ged": "GED", "dice": "Dice"}
