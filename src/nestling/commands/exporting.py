"""``export``: from a run, or the folder of a small network, to a file that another runtime runs."""

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from nestling.cascade import CASCADE_FILE, Cascade
from nestling.commands.chosen_cut import choose, recalibrated
from nestling.commands.options import BATCH
from nestling.commands.own_data import data_of
from nestling.delivery import (
    ABOUT_FILE,
    FORMATS,
    Destination,
    Exported,
    Layout,
    Quantised,
    UncertaintyName,
    averages_draws,
    known_of,
    load_small,
    to_int8,
    with_its_cuts,
    write_hub,
    write_triton,
)
from nestling.delivery import export as run_export
from nestling.errors import ArgumentError, RunError
from nestling.prediction import Calibration
from nestling.reading import Cut, make_cut
from nestling.running import cost
from nestling.storage import read_json
from nestling.training import RECIPE_FILE, Run, calibrate_mean, open_run, prepare_cuts

INT8_EXAMPLES = 1024
"""How many examples give the ranges of activations in 8 bits, and how many compare the two files."""


def export(
    folder: Path,
    to: Destination,
    *,
    cut: float | None = None,
    under: Sequence[str] = (),
    uncertainty: UncertaintyName | None = None,
    all_widths: bool = False,
    int8: bool = False,
    layout: Layout = "nchw",
    floats: bool = False,
    out: Path | None = None,
    trust: bool = False,
) -> str:
    """Write the network of a cut, or the best of the curve under a budget, with all that the run knows of it.

    ``all_widths`` writes the cuts of the recipe in one file, ``int8`` also a file that computes in 8 bits. For the hub
    the whole run is written, as a folder, and for Triton a folder with a model per cut of the recipe, or of one cut.
    """
    if to == "hub":
        return _export_hub(folder, out, narrowed=bool(cut is not None or under or uncertainty), trust=trust)
    if to == "triton":
        if uncertainty or all_widths or int8:
            needed = "left out for Triton, which has a file of float32 for each width"
            raise ArgumentError("uncertainty, all_widths or int8", "some", needed, "Pass --cut or --under for one.")
        form = {"layout": layout, "as_bytes": False if floats else None}
        chosen_cut = None if cut is None and not under else (cut, under)
        return _export_triton(folder, out, form, chosen_cut, trust=trust)
    if int8 and to != "onnx":
        raise ArgumentError("int8", f"the format {to}", "the format onnx", "OpenVINO opens the ONNX file too.")
    options: dict[str, Any] = {"to": to, "layout": layout, "as_bytes": False if floats else None}
    if (folder / ABOUT_FILE).exists() and not (folder / RECIPE_FILE).exists():
        if cut is not None or under or uncertainty or all_widths or int8:
            needed = "left out for a network that was extracted or pruned"
            raise ArgumentError("options of a run", "some", needed, "Export the run instead.")
        exported = _export_small(folder, folder / f"network{FORMATS[to].suffix}" if out is None else out, options)
    elif all_widths:
        if cut is not None or under or uncertainty or int8:
            raise ArgumentError("options of one cut", "some", "left out with all_widths", "Export each cut.")
        return _export_all_widths(folder, to, out, options, trust=trust)
    else:
        run = open_run(folder, trust=trust)
        wanted = choose(run, cut, under, trust=trust).cut
        recalibrated(run, [wanted], trust=trust)
        target = folder / f"small-{cost(run.nested, wanted).params}{FORMATS[to].suffix}" if out is None else out
        fitted = calibrations_of(run, [wanted], drawn=uncertainty is not None, trust=trust)
        options |= {"cut": wanted, "uncertainty": uncertainty, "calibration": fitted[0] if fitted else None}
        exported = run_export(run, target, **options)
        if int8:
            return f"{exported}\n\n{_in_int8(run, exported, trust=trust)}"
    return f"{exported}\n\nRun it: nestling.runtime.open('{exported.files[0]}').predict(inputs)"


def _export_all_widths(folder: Path, to: str, out: Path | None, options: dict[str, Any], *, trust: bool) -> str:
    """One file of the recipe's cuts, with the cascade of the run, if it has one that a file can run."""
    run = open_run(folder, trust=trust)
    cascade, why_not = saved_cascade(run)
    wanted = list(run.recipe.cuts) if cascade is None else with_its_cuts(run.recipe.cuts, cascade)
    cuts = [make_cut(run.nested.groups, cut) for cut in wanted]
    recalibrated(run, cuts, trust=trust)
    options["calibration"] = calibrations_of(run, cuts, drawn=False, trust=trust)
    target = folder / f"all-widths{FORMATS[to].suffix}" if out is None else out
    exported = run_export(run, target, widths="all", cascade=cascade, **options)
    lines = [
        f"{exported}",
        "",
        f"Run it: nestling.runtime.open('{exported.files[0]}', cut={run.recipe.cuts[0]:g}).predict(inputs)",
    ]
    if cascade is not None:
        lines.append(f"{cascade}: nestling.runtime.open_cascade('{exported.files[0]}').predict(inputs)")
    return "\n".join([*lines, *([why_not] if why_not else [])])


def saved_cascade(run: Run) -> tuple[Cascade | None, str]:
    """The cascade in a run's folder, or none, and why a file can't have the one that is there."""
    assert run.folder is not None
    if not (run.folder / CASCADE_FILE).exists():
        return None, ""
    try:
        cascade = Cascade.load(run.folder, run.nested)
    except RunError as error:
        return None, f"The cascade is not in the file. {error}"
    if averages_draws(cascade):
        drawn = f"it averages {cascade.samples} draws of the weights, and the file has their means"
        return None, f"The cascade is not in the file: {drawn}. Fit it with nestling cascade {run.folder} --samples 0."
    return cascade, ""


def _in_int8(run: Run, exported: Exported, *, trust: bool) -> Quantised:
    """The file in 8 bits beside the file in float: ranges from training images, compared on validation images."""
    source = exported.files[0]
    data, first = data_of(run, trust=trust), exported.about["inputs"][0]

    def batches(split: str) -> list[dict[str, np.ndarray]]:
        inputs = data.split(split).inputs[:INT8_EXAMPLES].numpy()
        inputs = np.moveaxis(inputs, 1, -1) if first.get("layout") == "nhwc" else inputs
        scaled = inputs / np.float32(255) if inputs.dtype == np.uint8 and first["dtype"] == "float32" else inputs
        parts = np.array_split(scaled.astype(first["dtype"]), max(1, len(scaled) // BATCH))
        return [{first["name"]: part} for part in parts]

    target = source.with_name(f"{source.stem}-int8.onnx")
    return to_int8(source, target, batches("train"), batches("validation"))


def _export_triton(
    folder: Path,
    out: Path | None,
    options: dict[str, Any],
    chosen_cut: tuple[float | None, Sequence[str]] | None,
    *,
    trust: bool,
) -> str:
    """A model repository: a model per cut of the recipe and of the run's cascade with it, or of the chosen cut."""
    run = open_run(folder, trust=trust)
    cascade, why_not = saved_cascade(run) if chosen_cut is None else (None, "")
    if chosen_cut is not None:
        wanted: list[Any] = [choose(run, *chosen_cut, trust=trust).cut]
    else:
        wanted = list(run.recipe.cuts) if cascade is None else with_its_cuts(run.recipe.cuts, cascade)
    by_cut = {make_cut(run.nested.groups, cut): cut for cut in wanted}
    recalibrated(run, list(by_cut), trust=trust)
    target = folder.with_name(f"{folder.name}-triton") if out is None else out
    with TemporaryDirectory() as place:
        files = []
        for number, (cut, asked) in enumerate(by_cut.items()):
            fitted = calibrations_of(run, [cut], drawn=False, trust=trust)
            file = Path(place) / f"{number}.onnx"
            run_export(run, file, cut=asked, calibration=fitted[0] if fitted else None, compare=False, **options)
            files.append(file)
        write_triton(files, target, name=folder.name, cascade=cascade)
    lines = [f"{target} is a model repository: " + ", ".join(sorted(entry.name for entry in target.iterdir()))]
    lines.append(f"Serve it: tritonserver --model-repository {target}")
    return "\n".join([*lines, *([why_not] if why_not else [])])


def _export_hub(folder: Path, out: Path | None, *, narrowed: bool, trust: bool) -> str:
    if narrowed:
        raise ArgumentError("options of one cut", "some", "left out for the hub", "Every width is in its folder.")
    place = write_hub(open_run(folder, trust=trust), folder.with_name(f"{folder.name}-hub") if out is None else out)
    return f"{place} is a run as data, with a model card. Read it: nestling.delivery.load_hub('{place}')"


def _export_small(folder: Path, target: Path, options: dict[str, Any]) -> Exported:
    known = known_of(read_json(folder / ABOUT_FILE))
    if not known.normalises:
        raise RunError(folder / ABOUT_FILE, "does not say what the network takes", "Export it from its run.")
    example = torch.zeros(2, *known.data["input_shape"])
    return run_export(load_small(folder), target, example, **vars(known), **options)


def calibrations_of(run: Run, cuts: Sequence[Cut], *, drawn: bool, trust: bool) -> list[Calibration]:
    """The calibrations for what the file computes: the run's own if weights are drawn, else those of their means."""
    if run.data.get("loaded_with") is not None:
        data = data_of(run, trust=trust)
        if run.nested.num_uncertain and not drawn:
            return [calibrate_mean(run, cut, data) for cut in cuts]
        run = prepare_cuts(run, cuts, data)
    return [calibration for calibration in map(run.calibration, cuts) if calibration is not None]
