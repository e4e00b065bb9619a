"""The curve: the quality of networks of every size, and the best of them under a budget."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from nestling.budgets import BUDGETS, read_limit
from nestling.errors import ArgumentError, BudgetError, RunError
from nestling.markup import bar, card, html, html_table
from nestling.reading import Cut
from nestling.search.quality import Quality
from nestling.storage import read_json, write_json, write_whole
from nestling.tables import percent, thousands

CURVE_FILE = "curve.json"
"""The file of a curve in the folder of its run."""


@dataclass(frozen=True)
class Row:
    """A network of the curve: what is kept of each group, what it costs, and how good it is on the data of the search.

    Its norms have statistics of their own, and its costs are those of the network that ``extract`` gives.

    Attributes:
        cut: The width of each group.
        params: Parameters.
        macs: Multiply-adds per example.
        bytes: Bytes of its weights.
        latency_ms: Median milliseconds for one example on this machine; None unless the search was by latency.
        cost: The cost that the search used.
        score: Accuracy; for numbers and masks the log-likelihood.
        log_likelihood: Mean log-likelihood in nats per labelled element.

    Examples:
        >>> row = curve.row_under(macs="0.5x")
        >>> row.macs <= curve.rows[-1].macs / 2, row.latency_ms is None
        (True, True)
    """

    cut: Cut
    params: int
    macs: int
    bytes: int
    latency_ms: float | None
    cost: float
    score: float
    log_likelihood: float


@dataclass(frozen=True)
class Tried:
    """A cut that the search scored, with norms that use the statistics of the batch.

    Attributes:
        cut: The width of each group.
        removed: How many blocks it lacks.
        cost: The cost that the search used.
        quality: Score and log-likelihood on the data of the search.

    Examples:
        >>> whole = min(curve.tried, key=lambda tried: tried.removed)
        >>> whole.removed, len(curve.tried) >= len(curve.rows)
        (0, True)
    """

    cut: Cut
    removed: int
    cost: float
    quality: Quality


@dataclass(frozen=True)
class Curve:
    """The best networks of a search, from the smallest to the whole one, and all cuts that were tried.

    Attributes:
        rows: The networks, from the cheapest to the dearest.
        tried: Every cut that was scored.
        cost: What was searched by: ``"macs"``, ``"params"``, ``"bytes"``, ``"latency"``, or ``"own"`` for a function.
        strategy: How cuts were chosen.
        num_evaluations: How many cuts were scored.
        weights: A checksum of the weights that were searched; None in a curve of an earlier version.

    Examples:
        >>> cut = curve.under(macs="0.5x")  # the best network with half of the multiply-adds
        >>> small = nl.extract(nested, cut)
        >>> from pathlib import Path
        >>> curve.save(Path("curve.json"))
        >>> nl.Curve.read(Path("curve.json")).rows == curve.rows
        True
    """

    rows: tuple[Row, ...]
    tried: tuple[Tried, ...]
    cost: str
    strategy: str
    num_evaluations: int
    weights: str | None = None

    def __repr__(self) -> str:
        ends = " to ".join(f"{row.cost:.4g}" for row in dict.fromkeys((self.rows[0], self.rows[-1])))
        how = f"{len(self.tried)} cuts tried by {self.strategy}"
        return f"Curve({len(self.rows)} networks of {ends} {self.cost}; {how})"

    def _repr_html_(self) -> str:
        whole = max(self.rows, key=lambda row: row.cut.num_blocks)
        header = ["kept", "parameters", "multiply-adds", "bytes", "ms", "score", "NLL"]
        rows = []
        for row in self.rows:
            share = row.cut.share_of(whole.cut)
            sizes = [thousands(size) for size in (row.params, row.macs, row.bytes)]
            ms = "-" if row.latency_ms is None else f"{row.latency_ms:.3g}"
            quality = [f"{row.score:.4f}", f"{-row.log_likelihood:.4f}"]
            rows.append([html(bar(share), f" {percent(share)}"), *sizes, ms, *quality])
        return card("Curve", repr(self), html_table(header, rows, styled=True))

    def under(self, **budget: float | str) -> Cut:
        """The cut with the best score within all given budgets.

        Of cuts with the same score it is the cheapest, by the first of the budgets. Scores that differ, by however
        little, are not the same.

        Args:
            budget: ``params``, ``macs``, ``bytes``, ``latency_ms`` or ``cost``, each a number or a share of what the
                whole network costs, such as ``latency_ms=4.0, bytes="0.5x"``.

        Returns:
            The cut, for ``nested.at``, ``extract``, ``predict`` or ``export``.

        Raises:
            BudgetError: If even the smallest network costs more.
            ArgumentError: If no budget is given, or the curve does not have that cost.

        Examples:
            >>> nl.cost(nested, curve.under(macs="0.5x")).macs <= nl.cost(nested, 1.0).macs / 2
            True
        """
        return self.row_under(**budget).cut

    def row_under(self, **given: float | str) -> Row:
        """The row that ``under`` takes its cut from, with its costs and its score.

        Args:
            given: Budgets, as for ``under``.

        Returns:
            The row with the best score within all of them.

        Raises:
            BudgetError: If even the smallest network costs more.
            ArgumentError: If no budget is given, or the curve does not have that cost.

        Examples:
            >>> row = curve.row_under(params="0.5x")
            >>> row.params <= curve.rows[-1].params / 2, 0 <= row.score <= 1
            (True, True)
        """
        self._check(given)
        budget = {name: read_limit(name, most).most(getattr(self.rows[-1], name)) for name, most in given.items()}
        fitting = [row for row in self.rows if all(getattr(row, name) <= most for name, most in budget.items())]
        if not fitting:
            raise BudgetError(budget, {name: min(getattr(row, name) for row in self.rows) for name in budget})
        return min(fitting, key=lambda row: (-row.score, *(getattr(row, name) for name in budget), row.cost))

    def by_removed(self) -> list[tuple[int, float, float, float]]:
        """Per number of removed blocks: that number, and the largest, mean and standard deviation of the scores.

        Returns:
            One row (removed, largest, mean, standard deviation) per number, from none on.
        """
        groups: dict[int, list[float]] = {}
        for tried in self.tried:
            groups.setdefault(tried.removed, []).append(tried.quality.score)
        rows = []
        for removed, scores in sorted(groups.items()):
            mean = sum(scores) / len(scores)
            std = (sum((score - mean) ** 2 for score in scores) / len(scores)) ** 0.5
            rows.append((removed, max(scores), mean, std))
        return rows

    def save(self, path: Path) -> None:
        """Write the curve as JSON, and its rows as CSV beside it, for a spreadsheet.

        Args:
            path: The JSON file; the other has the same name with ``.csv``.

        Raises:
            RunError: If nothing can be written there.
        """
        write_json(path, self.to_dict())
        write_whole(path.with_suffix(".csv"), self.to_csv().encode())

    def to_csv(self) -> str:
        """The rows as CSV, for a spreadsheet.

        Returns:
            A header and a line per network: costs, quality, and a column for the width of each group.
        """
        groups = [name for name, _ in self.rows[0].cut.widths]
        text = io.StringIO()
        table = csv.writer(text)
        names = [column.name for column in fields(Row) if column.name != "cut"]
        table.writerow([*names, *groups])
        for row in self.rows:
            table.writerow([*(getattr(row, name) for name in names), *(width for _, width in row.cut.widths)])
        return text.getvalue()

    def to_dict(self) -> dict[str, Any]:
        """The curve as plain values for JSON."""
        rows = [asdict(row) | {"cut": row.cut.as_dict()} for row in self.rows]
        tried = [[list(row.cut.as_dict().values()), row.removed, row.cost, *row.quality] for row in self.tried]
        about = {"cost": self.cost, "strategy": self.strategy, "num_evaluations": self.num_evaluations}
        about["weights"] = self.weights
        return {**about, "groups": list(self.rows[0].cut.as_dict()), "rows": rows, "tried": tried}

    @classmethod
    def read(cls, path: Path) -> "Curve":
        """The curve that ``save`` wrote.

        Args:
            path: The JSON file.

        Returns:
            The curve, with all cuts that were tried.

        Raises:
            RunError: If the file is not there, is damaged, or is not a curve.
        """
        saved = read_json(path)
        try:
            return cls._from_dict(saved)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
            raise RunError(path, f"is not a curve ({error!r})", "Search again.") from None

    @classmethod
    def _from_dict(cls, saved: Mapping[str, Any]) -> "Curve":
        names = [str(name) for name in saved["groups"]]
        rows = tuple(map(_row, saved["rows"]))
        tried = tuple(
            Tried(_cut(dict(zip(names, widths, strict=True))), int(removed), float(cost), Quality(float(s), float(ll)))
            for widths, removed, cost, s, ll in saved["tried"]
        )
        if not rows:
            raise ValueError("it has no rows")
        about = str(saved["cost"]), str(saved["strategy"]), int(saved["num_evaluations"])
        return cls(rows, tried, *about, saved.get("weights"))

    def _check(self, budget: Mapping[str, float | str]) -> None:
        names = [name for name in (*BUDGETS, "cost") if all(getattr(row, name) is not None for row in self.rows)]
        if not budget:
            raise ArgumentError("budget", "none", f"some of {', '.join(names)}", "Write macs=1e6, for example.")
        for name in budget:
            if name not in names:
                advice = "Search with cost='latency' to have times." if name == "latency_ms" else "Check its spelling."
                raise ArgumentError("budget", name, f"one of {', '.join(names)}", advice)


def front(rows: Sequence[Tried]) -> list[Tried]:
    """The Pareto front, from the cheapest row on: each row is better than all that cost less."""
    best: list[Tried] = []
    for row in sorted(rows, key=lambda row: (row.cost, -row.quality.score, -row.quality.log_likelihood)):
        if not best or row.quality > best[-1].quality:
            best.append(row)
    return best


def _row(saved: Mapping[str, Any]) -> Row:
    """A row as it was saved; only its latency may be missing."""
    for name, value in saved.items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not (is_number or name == "cut" or (name == "latency_ms" and value is None)):
            raise TypeError(f"its {name} is {value!r}")
    return Row(**{**saved, "cut": _cut(saved["cut"])})


def _cut(widths: Mapping[str, Any]) -> Cut:
    return Cut(tuple((str(name), int(width)) for name, width in widths.items()))
