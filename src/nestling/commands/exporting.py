"""``export``: from a run, or the folder of a small network, to a file that another runtime runs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

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
    known_of,
    load_small,
    to_int8,
    write_hub,
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
    the whole run is written, as a folder.
    """
    if to == "hub":
        return _export_hub(folder, out, narrowed=bool(cut is not None or under or uncertainty), trust=trust)
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
        run = open_run(folder, trust=trust)
        cuts = [make_cut(run.nested.groups, fraction) for fraction in run.recipe.cuts]
        recalibrated(run, cuts, trust=trust)
        target = folder / f"all-widths{FORMATS[to].suffix}" if out is None else out
        options["calibration"] = _calibrations(run, cuts, drawn=False, trust=trust)
        exported = run_export(run, target, widths="all", **options)
    else:
        run = open_run(folder, trust=trust)
        wanted = choose(run, cut, under, trust=trust).cut
        recalibrated(run, [wanted], trust=trust)
        target = folder / f"small-{cost(run.nested, wanted).params}{FORMATS[to].suffix}" if out is None else out
        fitted = _calibrations(run, [wanted], drawn=uncertainty is not None, trust=trust)
        options |= {"cut": wanted, "uncertainty": uncertainty, "calibration": fitted[0] if fitted else None}
        exported = run_export(run, target, **options)
        if int8:
            return f"{exported}\n\n{_in_int8(run, exported, trust=trust)}"
    return f"{exported}\n\nRun it: nestling.runtime.open('{exported.files[0]}').predict(inputs)"


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


def _calibrations(run: Run, cuts: Sequence[Cut], *, drawn: bool, trust: bool) -> list[Calibration]:
    """The calibrations for what the file computes: the run's own if weights are drawn, else those of their means."""
    if run.data.get("loaded_with") is not None:
        data = data_of(run, trust=trust)
        if run.nested.num_uncertain and not drawn:
            return [calibrate_mean(run, cut, data) for cut in cuts]
        run = prepare_cuts(run, cuts, data)
    return [calibration for calibration in map(run.calibration, cuts) if calibration is not None]
