"""Predictions as text: a row for each input, with its uncertainty, on the screen or in a .csv file."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from nestling.prediction import ClassPrediction, Prediction, RegressionPrediction
from nestling.storage import write_whole

Table = tuple[list[str], list[list[str]]]
"""A header and its rows."""


def answers(found: Prediction, names: Sequence[str], classes: Sequence[str], coverage: float) -> Table:
    """A row of text for each input."""
    if isinstance(found, RegressionPrediction):
        return _regression_answers(found, names, coverage)
    assert isinstance(found, ClassPrediction)
    return (_mask_answers if found.probs.ndim > 2 else _class_answers)(found, names, classes, coverage)


def write_csv(path: Path, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Write a table as a .csv file."""
    text = io.StringIO()
    csv.writer(text).writerows([header, *rows])
    write_whole(path, text.getvalue().encode())


def _class_answers(found: ClassPrediction, names: Sequence[str], classes: Sequence[str], coverage: float) -> Table:
    header = ["input", "class", "probability", "uncertainty", "of it epistemic", f"{coverage:.0%} set"]
    known = coverage in found.thresholds
    inside = found.sets(coverage).tolist() if known else [[False] * len(classes)] * len(names)
    rows = []
    for i, name in enumerate(names):
        held = " ".join(label for label, held in zip(classes, inside[i], strict=True) if held)
        figures = (f"{float(own[i]):.4f}" for own in (found.confidence, found.entropy, found.epistemic))
        rows.append([name, classes[int(found.labels[i])], *figures, held or ("none" if known else "-")])
    return header, rows


def _mask_answers(found: ClassPrediction, names: Sequence[str], classes: Sequence[str], _: float) -> Table:
    """A mask is summed up by the share of its pixels in each class and the mean uncertainty of a pixel."""
    header = ["input", *(f"share of {name}" for name in classes), "uncertainty", "of it epistemic"]
    rows = []
    for i, name in enumerate(names):
        shares = (f"{float((found.labels[i] == number).double().mean()):.4f}" for number in range(len(classes)))
        rows.append([name, *shares, *(f"{float(own[i].mean()):.4f}" for own in (found.entropy, found.epistemic))])
    return header, rows


def _regression_answers(found: RegressionPrediction, names: Sequence[str], coverage: float) -> Table:
    if coverage not in found.thresholds:
        header = ["input", "mean", "std"]
        return header, [[name, _numbers(found.mean[i]), _numbers(found.std[i])] for i, name in enumerate(names)]
    low, high = found.interval(coverage)
    header = ["input", "mean", "std", f"{coverage:.0%} interval"]
    return header, [
        [name, _numbers(found.mean[i]), _numbers(found.std[i]), f"{_numbers(low[i])} to {_numbers(high[i])}"]
        for i, name in enumerate(names)
    ]


def _numbers(values: Tensor) -> str:
    return " ".join(f"{float(value):.4g}" for value in values.reshape(-1))
