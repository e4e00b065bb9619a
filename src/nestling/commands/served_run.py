"""The engine of a run that is served: a file of all its widths, or the network in torch where there can be none."""

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from nestling.cascade import CASCADE_FILE, Cascade
from nestling.commands.chosen_cut import recalibrated
from nestling.commands.exporting import calibration_of
from nestling.delivery import export as run_export
from nestling.errors import NestlingError, RunError
from nestling.reading import Cut, cut_names, make_cut
from nestling.service import Cascading, Engine, FileEngine, Step, TorchEngine
from nestling.training import Run, open_run

Calibrations = Mapping[str, tuple[float, Mapping[float, float]]]


def engine_of(folder: Path, threads: int | None, *, trust: bool) -> tuple[Engine, Cascading | None]:
    """The engine for a run, at the cuts of its recipe and of its cascade, and the cascade if it was fitted."""
    run = open_run(folder, trust=trust)
    if any(run.data.get(key) is None for key in ("input_shape", "mean", "std")):
        raise RunError(folder, "was trained on loaders of yours, whose inputs no file describes", "Use nl.predict.")
    fitted = Cascade.load(folder, run.nested) if (folder / CASCADE_FILE).exists() else None
    wanted: list[float | Cut] = [*run.recipe.cuts, *(stage.cut for stage in (fitted.running if fitted else ()))]
    by_cut = {make_cut(run.nested.groups, cut): cut for cut in reversed(wanted)}  # by its fraction where it has one
    recalibrated(run, list(by_cut), trust=trust)
    cuts = list(by_cut.values())
    calibrations = _calibrations(run, cuts, trust=trust)
    engine = _in_onnx(run, cuts, threads, calibrations) or TorchEngine(
        run.nested, cuts, run.data, likelihood=run.likelihood, calibrations=calibrations
    )
    return engine, None if fitted is None else _steps(fitted, engine)


def _calibrations(run: Run, cuts: Sequence[float | Cut], *, trust: bool) -> Calibrations:
    """The temperature and thresholds of each cut, by its name; none if the data that they need are not there."""
    names = cut_names(run.nested.groups, cuts)
    try:
        found = {name: calibration_of(run, cut, drawn=False, trust=trust) for cut, name in names.items()}
    except NestlingError as error:
        print(f"Probabilities are not calibrated: {error}", flush=True)
        return {}
    return {name: (own.temperature, own.thresholds) for name, own in found.items() if own is not None}


def _in_onnx(run: Run, cuts: Sequence[float | Cut], threads: int | None, calibrations: Calibrations) -> Engine | None:
    """The run as one file of all widths, which is not kept; None if a package is missing or it can't be written."""
    missing = [package for package in ("onnx", "onnxscript", "onnxruntime") if find_spec(package) is None]
    if missing:
        print(f"Served in torch, since {missing[0]} is not installed: pip install 'nestling[onnx]'.", flush=True)
        return None
    try:
        with TemporaryDirectory() as folder:
            file = run_export(run, Path(folder) / "all-widths.onnx", widths=cuts).files[0]
            return FileEngine(file, threads=threads, calibrations=calibrations)
    except NestlingError as error:
        print(f"Served in torch, since no file can be written: {error}", flush=True)
        return None


def _steps(fitted: Cascade, engine: Engine) -> Cascading | None:
    """The steps of a cascade that was fitted; None if its thresholds are not for what the service computes."""
    if fitted.score == "mutual_information" or (fitted.samples and fitted.nested.num_uncertain):
        print(
            "The cascade is of weight samples, and the service runs the mean weights: fit it with --samples 0.",
            flush=True,
        )
        return None
    steps = []
    for stage in fitted.running:
        number = next(n for n, width in enumerate(engine.widths) if width.cut == stage.cut.as_dict())
        steps.append(Step(number, stage.finite_threshold, stage.calibration.temperature))
    return Cascading(tuple(steps), fitted.score)
