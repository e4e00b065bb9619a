"""A network's figures at each width: size, speed, accuracy, calibration, detection of out-of-distribution data."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import length_hint
from typing import Any

from nestling.prediction import Calibration, Likelihood, Scores, evaluate
from nestling.reading import Cut, cut_names, full_cut
from nestling.running import Cost, Nested, cost
from nestling.tables import percent, text_table, thousands
from nestling.training import Progress


@dataclass(frozen=True)
class WidthRow:
    """A network at one cut: its size, what it costs, and its scores.

    Attributes:
        cut: The fractions that mean it, such as ``"0.5"`` or ``"0.01, 0.25"``.
        kept: The share of all blocks that it keeps.
        cost: Parameters, multiply-adds, bytes and milliseconds.
        scores: Its scores.
        calibrated: Its scores after temperature scaling; None if it was not calibrated.

    Examples:
        >>> from nestling.report import score_widths
        >>> row = score_widths(nested, loader, [0.5])[0]
        >>> row.cut, row.kept, row.calibrated is None
        ('0.5', 0.5, True)
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
    quiet: bool = True,
) -> list[WidthRow]:
    """Score each different network among some cuts, with its latency for one input on this machine.

    Args:
        nested: A trained nested network.
        loader: Pairs of inputs and targets, read once per cut.
        cuts: Fractions or cuts. Fractions that mean the same network share a row.
        ood: A loader of out-of-distribution inputs, for detection.
        samples: Weight samples to average over.
        likelihood: By default the one that the network was trained with.
        calibrations: Looked up by their cuts.
        spread: Share the batches among processes, as in ``evaluate``.
        quiet: False shows progress: a bar on a terminal, and a line per cut.

    Returns:
        One row per network, in the order of the cuts.

    Examples:
        >>> from nestling.report import score_widths
        >>> rows = score_widths(nested, loader, [0.25, 1.0], calibrations=run.calibrations)
        >>> [row.cut for row in rows], rows[0].cost.params < rows[1].cost.params
        (['0.25', '1'], True)
    """
    fitted, whole = {calibration.cut: calibration for calibration in calibrations}, full_cut(nested.groups)
    named, rows = cut_names(nested.groups, cuts), list[WidthRow]()
    passes = len(named) + len(named.keys() & fitted.keys())
    total = passes * (length_hint(loader) + length_hint(ood or ()))
    with Progress(total, "evaluate", step="batch", shown=not quiet) as progress:
        for cut, name in named.items():

            def score(given: Calibration | None, at: Cut = cut) -> Scores:
                watched, foreign = (
                    None if batches is None else _stepping(batches, progress) for batches in (loader, ood)
                )
                options: dict[str, Any] = {"samples": samples, "likelihood": likelihood, "spread": spread}
                return evaluate(nested, watched or (), cut=at, ood=foreign, calibration=given, **options)

            scores, calibrated = score(None), score(fitted[cut]) if cut in fitted else None
            rows.append(WidthRow(name, cut.share_of(whole), cost(nested, cut, latency=True), scores, calibrated))
            progress.say(f"{name} scored ({len(rows)} of {len(named)})")
    return rows


def _stepping(batches: Iterable[Any], progress: Progress) -> Iterator[Any]:
    for batch in batches:
        yield batch
        progress.step()


def widths_table(rows: Sequence[WidthRow]) -> str:
    """The rows as text, with one column per figure that was measured, each with half of its 95 % interval.

    Args:
        rows: What ``score_widths`` gave.

    Returns:
        The table that ``nestling evaluate`` prints.

    Examples:
        >>> from nestling.report import score_widths, widths_table
        >>> print(widths_table(score_widths(nested, loader, [0.5])))
        cut   kept  parameters  MACs ...
        ...
        ± is half of the 95 % interval over the 144 test examples.
    """
    cells = [_cells(row) for row in rows]
    header = list(dict.fromkeys(name for row in cells for name in row))
    table = text_table(header, [[row.get(name, "-") for name in header] for row in cells])
    count = rows[0].scores.count if rows else 0
    return f"{table}\n\n± is half of the 95 % interval over the {count:,} test examples." if rows else table


def _cells(row: WidthRow) -> dict[str, str]:
    cells = {
        "cut": row.cut,
        "kept": percent(row.kept),
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
        half = "" if bounds is None else f" ±{_number(scale * (bounds[1] - bounds[0]) / 2, digits)}"
        cells[name] = _number(scale * value, digits) + half


def _number(value: float, digits: int) -> str:
    """A figure with so many decimals; without any from a thousand on, and in powers of ten from a billion on."""
    rounded = round(value, digits) + 0.0  # no minus before a zero
    return f"{rounded:.{digits}f}" if abs(value) < 1e3 else f"{value:,.0f}" if abs(value) < 1e9 else f"{value:.3e}"


_PERCENT = {
    "accuracy": "accuracy %",
    "ece": "ECE %",
    "aupr": "OOD AUPR % (a guess: {chance:.1f})",
    "auroc": "OOD AUROC % (a guess: 50)",
}
_PLAIN = {"nll": "NLL", "rmse": "RMSE", "ged": "GED", "dice": "Dice"}
