"""Predictions as text: one row per input, with its uncertainty, on the screen or in a .csv file."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from nestling.prediction import ClassPrediction, Prediction, RegressionPrediction
from nestling.storage import write_whole

Table = tuple[list[str], list[list[str]]]
"""A header and its rows."""


def answers(prediction: Prediction, names: Sequence[str], classes: Sequence[str], coverage: float) -> Table:
    """Predictions as rows of text, one per input; ``write_csv`` and ``text_table`` take them.

    Args:
        prediction: What ``nl.predict`` gave for N inputs: classes, masks or numbers.
        names: The name of each input, such as its file.
        classes: The names of the classes; not used for numbers.
        coverage: The coverage of the sets or intervals that are shown, if the prediction has them.

    Returns:
        The header, and the rows.

    Examples:
        >>> from nestling.report import answers
        >>> header, rows = answers(p, [f"image {number}" for number in range(100)], data.classes, 0.9)
        >>> header
        ['input', 'class', 'probability', 'uncertainty', 'of it epistemic', '90% set']
        >>> len(rows), rows[0][0]
        (100, 'image 0')
    """
    if isinstance(prediction, RegressionPrediction):
        return _regression_answers(prediction, names, coverage)
    assert isinstance(prediction, ClassPrediction)
    return (_mask_answers if prediction.probs.ndim > 2 else _class_answers)(prediction, names, classes, coverage)


def write_csv(path: Path, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Write a table as a .csv file, whole or not at all.

    Args:
        path: Where to write.
        header: The names of the columns.
        rows: One list of texts per row.

    Raises:
        RunError: If nothing can be written there.

    Examples:
        >>> from pathlib import Path
        >>> from nestling.report import write_csv
        >>> write_csv(Path("answers.csv"), ["input", "class"], [["a.png", "7"]])
        >>> Path("answers.csv").read_text().splitlines()
        ['input,class', 'a.png,7']
    """
    text = io.StringIO()
    csv.writer(text).writerows([header, *rows])
    write_whole(path, text.getvalue().encode())


def _class_answers(prediction: ClassPrediction, names: Sequence[str], classes: Sequence[str], coverage: float) -> Table:
    header = ["input", "class", "probability", "uncertainty", "of it epistemic", f"{coverage:.0%} set"]
    has_sets = coverage in prediction.thresholds
    sets = prediction.sets(coverage).tolist() if has_sets else [[False] * len(classes)] * len(names)
    rows = []
    for i, name in enumerate(names):
        labels = " ".join(label for label, is_inside in zip(classes, sets[i], strict=True) if is_inside)
        figures = (
            f"{float(values[i]):.4f}" for values in (prediction.confidence, prediction.entropy, prediction.epistemic)
        )
        rows.append([name, classes[int(prediction.labels[i])], *figures, labels or ("none" if has_sets else "-")])
    return header, rows


def _mask_answers(prediction: ClassPrediction, names: Sequence[str], classes: Sequence[str], _: float) -> Table:
    """A mask is summarised by the share of its pixels in each class and the mean uncertainty of a pixel."""
    header = ["input", *(f"share of {name}" for name in classes), "uncertainty", "of it epistemic"]
    rows = []
    for i, name in enumerate(names):
        shares = (f"{float((prediction.labels[i] == number).double().mean()):.4f}" for number in range(len(classes)))
        rows.append(
            [
                name,
                *shares,
                *(f"{float(values[i].mean()):.4f}" for values in (prediction.entropy, prediction.epistemic)),
            ]
        )
    return header, rows


def _regression_answers(prediction: RegressionPrediction, names: Sequence[str], coverage: float) -> Table:
    if coverage not in prediction.thresholds:
        header = ["input", "mean", "std"]
        return header, [
            [name, _numbers(prediction.mean[i]), _numbers(prediction.std[i])] for i, name in enumerate(names)
        ]
    low, high = prediction.interval(coverage)
    header = ["input", "mean", "std", f"{coverage:.0%} interval"]
    return header, [
        [name, _numbers(prediction.mean[i]), _numbers(prediction.std[i]), f"{_numbers(low[i])} to {_numbers(high[i])}"]
        for i, name in enumerate(names)
    ]


def _numbers(values: Tensor) -> str:
    return " ".join(f"{float(value):.4g}" for value in values.reshape(-1))
