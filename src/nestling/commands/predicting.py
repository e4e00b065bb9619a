"""``predict``, and ``data``, which lists the data sets."""

from pathlib import Path

from nestling import data as sets
from nestling.commands.options import BATCH
from nestling.data import read_inputs
from nestling.errors import RangeError, RunError
from nestling.prediction import Calibration, ClassPrediction
from nestling.prediction import predict as run_prediction
from nestling.report import answers, text_table, write_csv
from nestling.training import RECIPE_FILE, open_run

USUAL_COVERAGE = 0.9
"""The coverage of sets and intervals where none is asked for."""


def predict(
    folder: Path,
    inputs: Path,
    cut: float,
    samples: int,
    coverage: float | None,
    *,
    resize: bool = False,
    out: Path | None = None,
    trust: bool = False,
) -> str:
    """Predict at a cut, with the calibration that was fitted there."""
    run = open_run(folder, trust=trust)
    about = run.data
    if any(about.get(key) is None for key in ("input_shape", "mean", "std", "classes")):
        raise RunError(folder, "was trained on loaders of yours, whose inputs no file describes", "Use nl.predict.")
    normalising = {"shape": about["input_shape"], "mean": about["mean"], "std": about["std"]}
    trained_with = about.get("loaded_with")
    resize = resize or (isinstance(trained_with, dict) and "resize" in trained_with)
    names, x = read_inputs(inputs, **normalising, as_bytes=bool(about.get("as_bytes")), resize=resize)
    if run.calibration(cut) is None:
        from nestling.commands.own_data import data_of  # here, since a calibrated cut needs no training code
        from nestling.training import prepare_cuts

        run = prepare_cuts(run, [cut], data_of(run, trust=trust))
    calibration = run.calibration(cut)
    assert calibration is not None
    coverage = _coverage(calibration, coverage)
    prediction = run_prediction(
        run.nested,
        x,
        cut=cut,
        samples=samples,
        likelihood=run.likelihood,
        calibration=calibration,
        batch_size=BATCH,
        seed=0,
    )
    if isinstance(prediction, ClassPrediction) and prediction.probs.shape[1] != len(about["classes"]):
        problem = f"names {len(about['classes'])} classes for a network of {prediction.probs.shape[1]}"
        raise RunError(folder / RECIPE_FILE, problem, "Restore it from a copy, or train again.")
    header, rows = answers(prediction, names, tuple(about["classes"]), coverage)
    if out is not None:
        write_csv(out, header, rows)
    return text_table(header, rows)


def _coverage(calibration: Calibration, wanted: float | None) -> float:
    """The wanted coverage; by default 0.9, or the largest below it that there were enough validation examples for."""
    fitted = calibration.thresholds
    if wanted is None:
        return max((coverage for coverage in fitted if coverage <= USUAL_COVERAGE), default=USUAL_COVERAGE)
    if fitted and wanted not in fitted:
        possible = ", ".join(f"{coverage:g}" for coverage in fitted)
        raise RangeError("coverage", wanted, f"one of {possible}", "The run was calibrated for these.")
    return wanted


def data() -> str:
    """The data sets by name, which splits of each are present, and how to get the others."""
    rows = []
    for entry in sets.found():
        splits = ", ".join(entry.splits) or "-"
        count = f"{entry.num_examples:,}" if entry.num_examples else "-"
        where = str(entry.where or "comes with nestling")
        if not entry.splits:
            where = "fetched when it is first used" if entry.can_fetch else "put there by hand: see docs/data.md"
        rows.append([entry.name, entry.task, splits, count, where])
    folder = f"Data is looked for in {sets.data_root()} ($NESTLING_DATA), and fetched into it where there is a network."
    return text_table(["name", "task", "splits", "examples", "where"], rows) + f"\n\n{folder}"
