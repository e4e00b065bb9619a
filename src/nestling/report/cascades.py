"""A cascade as a table of its stages, and as a picture beside its cuts by themselves."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from nestling.cascade import Cascade, CascadeScores, Comparison, Point
from nestling.report.figures import new_figure, write_figure
from nestling.tables import percent, text_table, thousands


def cascade_table(cascade: Cascade, scores: CascadeScores, comparison: Comparison) -> str:
    """A table of the stages that run, and lines that say what the cascade comes to.

    Args:
        cascade: What ``nl.cascade`` fitted.
        scores: What ``cascade.evaluate`` measured.
        comparison: What ``cascade.compare`` measured.

    Returns:
        The text that ``nestling cascade`` prints.

    Examples:
        >>> from nestling.report import cascade_table
        >>> print(cascade_table(casc, casc.evaluate(loader), casc.compare(loader)))
        stage  cut  threshold  reached  answered  accuracy %  MACs  ms
        ...
    """
    header = ["stage", "cut", "threshold", "reached", "answered", "accuracy %", "MACs", "ms"]
    rows = []
    for number, stage in enumerate(scores.stages, 1):
        threshold = "-" if stage.threshold is None else f"{stage.threshold:.4f}"
        accuracy = "-" if stage.accuracy is None else f"{100 * stage.accuracy:.2f}"
        time = "-" if stage.latency_ms is None else f"{stage.latency_ms:.3f}"
        shares = [percent(stage.reached), percent(stage.answered)]
        rows.append([f"{number}", stage.name, threshold, *shares, accuracy, thousands(stage.macs), time])
    left_out = ", ".join(stage.name for stage in cascade.stages if not stage.runs)
    lines = [f"Left out, since the goal is reached at less cost without it: {left_out}."] if left_out else []
    return "\n".join([text_table(header, rows, names=3), "", *lines, *_summary(cascade, scores, comparison)])


def _summary(cascade: Cascade, scores: CascadeScores, comparison: Comparison) -> list[str]:
    lines = []
    if scores.scores is not None:
        low, high = scores.scores.bounds["accuracy"]
        figures = f"accuracy {100 * scores.scores.accuracy:.2f} % ±{50 * (high - low):.2f}"
        quality = f"NLL {scores.scores.nll:.4f}, ECE {100 * scores.scores.ece:.2f} %"
        low, high = comparison.loss_bounds
        less = f"{100 * comparison.loss:.2f} ±{50 * (high - low):.2f} points less than the widest cut alone"
        is_whole = scores.unanswered <= _NONE
        figures += f" ({less})" if is_whole else " of what is answered"
        lines.append(f"{figures}, {quality}, over {scores.count:,} test examples")
        if not is_whole:
            without = f"{percent(scores.unanswered)} of the inputs get no answer"
            lines.append(f"{without}; with these counted as wrong, the accuracy is {less}")
    average = f"{thousands(round(scores.mean_macs))} MACs on average, {percent(scores.macs_share)} of the widest cut's"
    if scores.mean_ms is not None and scores.ms_share is not None:
        average += f"; {scores.mean_ms:.3f} ms, {percent(scores.ms_share)}"
    lines.append(average)
    for coverage, sets in scores.sets.items():
        right = f"{percent(sets.coverage)} of the conformal sets for {percent(coverage)} have the right class"
        lines.append(f"{right}, with {sets.size:.2f} classes on average")
    if cascade.guarantee is not None:
        proof = cascade.guarantee
        seen = (
            f"{proof.num_errors} of {proof.num_early:,} early answers were wrong among {proof.num_examples:,} examples"
        )
        most = f"at most {percent(proof.most)} of what is answered early is wrong"
        lines.append(f"with probability {1 - proof.delta:g}, {most} ({seen})")
    return lines


def draw_cascade(path: Path, comparison: Comparison) -> None:
    """Draw accuracy against average cost, in multiply-adds and, if they are known, in milliseconds.

    The picture is written whole or not at all.

    Args:
        path: Where to write; the suffix is the format: ``.png``, ``.svg`` or ``.pdf``.
        comparison: What ``cascade.compare`` measured.

    Raises:
        RunError: If nothing can be written there.

    Examples:
        >>> from pathlib import Path
        >>> from nestling.report import draw_cascade
        >>> draw_cascade(Path("cascade.svg"), casc.compare(loader))
    """
    in_ms = comparison.chosen.ms is not None
    figure = new_figure(6.4 * (1 + in_ms), 4.2)
    axes = figure.subplots(1, 1 + in_ms, squeeze=False, sharey=True)[0]
    axes[0].xaxis.set_major_formatter(lambda place, _: thousands(round(place)))
    for panel, label, cost in zip(axes, ("multiply-adds", "milliseconds"), (_macs, _milliseconds), strict=False):
        _draw(panel, comparison, cost)
        panel.set_xlabel(f"{label} on average")
        panel.grid(alpha=0.25)
        panel.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("accuracy in percent")
    axes[0].legend(frameon=False, loc="lower right")
    write_figure(path, figure)


def _draw(axes: Any, comparison: Comparison, cost: Callable[[Point], float]) -> None:  # noqa: ANN401 (matplotlib's)
    looks = {"cascades": ("#1b6ca8", "."), "one cut for all inputs": ("#66717a", "s")}
    for (label, (colour, marker)), points in zip(looks.items(), (comparison.points, comparison.alone), strict=True):
        places = sorted((cost(point), 100 * point.accuracy) for point in points)
        axes.plot(*zip(*places, strict=True), color=colour, marker=marker, markersize=5, linewidth=1.4, label=label)
    chosen = comparison.chosen
    axes.plot(cost(chosen), 100 * chosen.accuracy, "o", color="#d1495b", markersize=8, label="chosen", zorder=3)


def _macs(point: Point) -> float:
    return point.macs


def _milliseconds(point: Point) -> float:
    return point.ms or 0.0


_NONE = 1e-9
"""A share that rounding alone can cause."""
