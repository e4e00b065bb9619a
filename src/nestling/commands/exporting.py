"""``export``: from a run, or the folder of a small network, to a file that another runtime runs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from nestling.commands.chosen_cut import choose, recalibrated
from nestling.commands.own_data import data_of
from nestling.delivery import ABOUT_FILE, FORMATS, Exported, FormatName, Layout, UncertaintyName, known_of, load_small
from nestling.delivery import export as run_export
from nestling.errors import ArgumentError, RunError
from nestling.prediction import Calibration
from nestling.reading import Cut
from nestling.running import cost
from nestling.storage import read_json
from nestling.training import RECIPE_FILE, Run, calibrate_mean, open_run, prepare_cuts


def export(
    folder: Path,
    to: FormatName,
    *,
    cut: float | None = None,
    under: Sequence[str] = (),
    uncertainty: UncertaintyName | None = None,
    layout: Layout = "nchw",
    floats: bool = False,
    out: Path | None = None,
    trust: bool = False,
) -> str:
    """Write the network of a cut, or the best of the curve under a budget, with all that the run knows of it."""
    options: dict[str, Any] = {"to": to, "layout": layout, "as_bytes": False if floats else None}
    if (folder / ABOUT_FILE).exists() and not (folder / RECIPE_FILE).exists():
        if cut is not None or under or uncertainty:
            needed = "left out for a network that was extracted or pruned"
            raise ArgumentError("cut, under or uncertainty", "some", needed, "Export the run instead.")
        exported = _export_small(folder, folder / f"network{FORMATS[to].suffix}" if out is None else out, options)
    else:
        run = open_run(folder, trust=trust)
        wanted = choose(run, cut, under, trust=trust).cut
        recalibrated(run, [wanted], trust=trust)
        target = folder / f"small-{cost(run.nested, wanted).params}{FORMATS[to].suffix}" if out is None else out
        calibration = _calibration(run, wanted, drawn=uncertainty is not None, trust=trust)
        options |= {"cut": wanted, "uncertainty": uncertainty, "calibration": calibration}
        exported = run_export(run, target, **options)
    return f"{exported}\n\nRun it: nestling.runtime.open('{exported.files[0]}').predict(inputs)"


def _export_small(folder: Path, target: Path, options: dict[str, Any]) -> Exported:
    known = known_of(read_json(folder / ABOUT_FILE))
    if not known.normalises:
        raise RunError(folder / ABOUT_FILE, "does not say what the network takes", "Export it from its run.")
    example = torch.zeros(2, *known.data["input_shape"])
    return run_export(load_small(folder), target, example, **vars(known), **options)


def _calibration(run: Run, cut: Cut, *, drawn: bool, trust: bool) -> Calibration | None:
    """The calibration for what the file computes: the run's own one if weights are drawn, else one of their means."""
    if run.data.get("loaded_with") is None:
        return run.calibration(cut)
    if run.nested.num_uncertain and not drawn:
        return calibrate_mean(run, cut, data_of(run, trust=trust))
    return run.calibration(cut) or prepare_cuts(run, [cut], data_of(run, trust=trust)).calibration(cut)
