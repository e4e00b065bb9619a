"""The engine of a run that is served: a file of all its widths, or the network in torch where there can be none."""

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from nestling.cascade import Cascade
from nestling.commands.chosen_cut import recalibrated
from nestling.commands.exporting import calibrations_of, saved_cascade
from nestling.delivery import cascade_record, with_its_cuts
from nestling.delivery import export as run_export
from nestling.errors import NestlingError, RunError
from nestling.prediction import Calibration
from nestling.reading import Cut, make_cut
from nestling.service import Engine, FileEngine, TorchEngine
from nestling.training import Run, open_run

CutLike = float | Mapping[str, int] | Cut


def engine_of(folder: Path, threads: int | None, *, trust: bool) -> Engine:
    """The engine for a run, at the cuts of its recipe and of its cascade, if one was fitted."""
    run = open_run(folder, trust=trust)
    if any(run.data.get(key) is None for key in ("input_shape", "mean", "std")):
        raise RunError(folder, "was trained on loaders of yours, whose inputs no file describes", "Use nl.predict.")
    cascade, why_not = saved_cascade(run)
    if why_not:
        _say(why_not)
    cuts: Sequence[CutLike] = run.recipe.cuts if cascade is None else with_its_cuts(run.recipe.cuts, cascade)
    recalibrated(run, [make_cut(run.nested.groups, cut) for cut in cuts], trust=trust)
    calibrations = _calibrations(run, [make_cut(run.nested.groups, cut) for cut in cuts], trust=trust)
    missing = [package for package in ("onnx", "onnxscript", "onnxruntime") if find_spec(package) is None]
    if missing:
        _say(f"Served in torch, since {missing[0]} is not installed: pip install 'nestling[onnx]'.")
        return _in_torch(run, cuts, calibrations, cascade)
    try:
        with TemporaryDirectory() as place:
            path = Path(place) / "all-widths.onnx"
            run_export(run, path, widths=cuts, cascade=cascade, calibration=calibrations)
            return FileEngine(path, threads=threads)
    except NestlingError as error:
        _say(f"Served in torch, since no file can be written: {error}")
        return _in_torch(run, cuts, calibrations, cascade)


def _in_torch(
    run: Run, cuts: Sequence[CutLike], calibrations: Sequence[Calibration], cascade: Cascade | None
) -> Engine:
    record = None if cascade is None else cascade_record(cascade, run.nested)
    return TorchEngine(run.nested, cuts, run.data, likelihood=run.likelihood, calibrations=calibrations, cascade=record)


def _calibrations(run: Run, cuts: Sequence[Cut], *, trust: bool) -> list[Calibration]:
    """The calibrations of the cuts; none if the data that they need are not there."""
    try:
        return calibrations_of(run, cuts, drawn=False, trust=trust)
    except NestlingError as error:
        _say(f"Probabilities are not calibrated: {error}")
        return []


def _say(line: str) -> None:
    print(line, flush=True)
