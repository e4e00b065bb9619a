"""The curve of a search, as a table and as a picture."""

from pathlib import Path

from nestling.report.figures import new_figure, write_figure
from nestling.search import Curve
from nestling.tables import percent, text_table, thousands

_AXES = {"params": "parameters", "macs": "multiply-adds", "bytes": "bytes", "latency": "milliseconds", "own": "cost"}


def curve_table(curve: Curve) -> str:
    """A table of the networks of a curve, from the smallest on.

    Args:
        curve: What ``nl.search`` found.

    Returns:
        The text that ``nestling search`` prints: what is kept, costs, score and NLL of each network.

    Examples:
        >>> from nestling.report import curve_table
        >>> print(curve_table(curve))
          kept  parameters   MACs  bytes  accuracy %     NLL
        ...
        100.0%...
    """
    as_accuracy = _are_shares(curve)
    header = ["kept", "parameters", "MACs", "bytes", "ms", "cost", "accuracy %" if as_accuracy else "score", "NLL"]
    whole = max((row.cut for row in curve.rows), key=lambda cut: cut.num_blocks)
    cells = []
    for row in curve.rows:
        ms = "-" if row.latency_ms is None else f"{row.latency_ms:.3g}"
        score = f"{100 * row.score:.2f}" if as_accuracy else f"{row.score:.4f}"
        sizes = [thousands(row.params), thousands(row.macs), thousands(row.bytes)]
        cells.append(
            [percent(row.cut.share_of(whole)), *sizes, ms, f"{row.cost:.4g}", score, f"{-row.log_likelihood:.4f}"]
        )
    columns = [i for i, name in enumerate(header) if _is_shown(curve, name)]
    return text_table([header[i] for i in columns], [[row[i] for i in columns] for row in cells])


def draw_front(path: Path, curve: Curve) -> None:
    """Draw the curve over all cuts that the search tried, and write the picture whole or not at all.

    Args:
        path: Where to write; the suffix is the format.
        curve: What ``nl.search`` found.

    Raises:
        RunError: If nothing can be written there.

    Examples:
        >>> from pathlib import Path
        >>> from nestling.report import draw_front
        >>> draw_front(Path("curve.svg"), curve)
    """
    scale = 100 if _are_shares(curve) else 1
    figure = new_figure(6.4, 4.2)
    axes = figure.subplots()
    costs, scores = [tried.cost for tried in curve.tried], [scale * tried.quality.score for tried in curve.tried]
    axes.scatter(costs, scores, s=9, color="#b9c2c9", label=f"{len(costs)} cuts tried", linewidths=0)
    best = [row for row in curve.rows if all(row.score > other.score for other in curve.rows if other.cost < row.cost)]
    costs, scores = [row.cost for row in best], [scale * row.score for row in best]
    axes.plot(costs, scores, color="#1b6ca8", marker="o", markersize=4, label=f"best ({curve.strategy})")
    whole = curve.rows[-1]
    axes.plot(whole.cost, scale * whole.score, "s", color="#d1495b", markersize=5, label="whole network", zorder=3)
    axes.set_xscale("log")
    if curve.cost != "latency":
        axes.xaxis.set_major_formatter(lambda place, _: thousands(round(place)))
        axes.xaxis.set_minor_formatter(lambda place, _: thousands(round(place)))
    axes.set_xlabel(_AXES[curve.cost])
    axes.set_ylabel("accuracy in percent" if scale == 100 else "score")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower right")
    write_figure(path, figure)


def _are_shares(curve: Curve) -> bool:
    """Whether scores are accuracies."""
    return all(0 <= row.score <= 1 for row in curve.rows)


def _is_shown(curve: Curve, name: str) -> bool:
    if name == "ms":
        return any(row.latency_ms is not None for row in curve.rows)
    return name != "cost" or curve.cost == "own"
