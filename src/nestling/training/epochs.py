"""What the log says of an epoch: as one line of text, and as a table with a row per width."""

from typing import Any

from nestling.prediction import Scores
from nestling.reading import Groups, cut_names, make_cut
from nestling.tables import text_table, thousands

_NAMES = {"dice": "Dice", "accuracy": "accuracy", "rmse": "RMSE", "nll": "NLL", "ece": "ECE"}
"""The figures of a width in the log, the most important first, and what a table calls them."""
_SHARES = ("accuracy", "ece")


def figures_of(scores: Scores) -> dict[str, float]:
    """The figures of a width that the log has."""
    return {name: value for name in _NAMES if (value := getattr(scores, name, None)) is not None}


def epoch_line(line: dict[str, Any], groups: Groups, epochs: int) -> str:
    """An epoch in one line: its loss, the most important figure of each width, and the caller's figures."""
    at = "  ".join(f"{name}: {_headline(figures)}" for name, figures in _by_width(line, groups).items())
    parts = [f"epoch {line['epoch']}/{epochs}", f"loss {line['loss']:.4f}", f"validation {at}", _own_figures(line)]
    return "  ".join(filter(None, parts))


def epoch_table(line: dict[str, Any], groups: Groups) -> str:
    """The figures of each width after an epoch, and those of the caller."""
    widths = _by_width(line, groups)
    names = [name for name in _NAMES if any(name in figures for figures in widths.values())]
    rows = [[width, *(_cell(name, figures[name]) for name in names)] for width, figures in widths.items()]
    table = text_table(["width", *(_NAMES[name] for name in names)], rows)
    return "\n".join([table, *([figures] if (figures := _own_figures(line)) else [])])


def short(value: float) -> str:
    """A number in few digits."""
    return thousands(round(value)) if abs(value) >= 1000 else f"{value:.3g}"


def _own_figures(line: dict[str, Any]) -> str:
    """The figures that the caller of ``train`` had computed."""
    return "  ".join(f"{name} {value:.4g}" for name, value in line["figures"].items())


def _by_width(line: dict[str, Any], groups: Groups) -> dict[str, dict[str, float]]:
    scores = {make_cut(groups, float(cut)): figures for cut, figures in line["validation"].items()}
    names = cut_names(groups, map(float, line["validation"]))
    return {name: scores[cut] for cut, name in names.items()}


def _headline(figures: dict[str, float]) -> str:
    """The most important figure."""
    if "dice" in figures:  # accuracy says little for images: nearly all pixels are background, and correct
        return f"Dice {figures['dice']:.3f}"
    if "accuracy" in figures:
        return _cell("accuracy", figures["accuracy"])
    name = "rmse" if "rmse" in figures else "nll"
    return f"{name} {_cell(name, figures[name])}"


def _cell(name: str, value: float) -> str:
    return f"{value:.2%}" if name in _SHARES else f"{value:.4g}"
