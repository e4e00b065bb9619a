"""``export``: from a run to a file that another runtime runs."""

from collections.abc import Sequence
from pathlib import Path

from nestling.commands.chosen_cut import choose, recalibrated
from nestling.commands.own_data import data_of
from nestling.delivery import FORMATS, FormatName, Layout
from nestling.delivery import export as run_export
from nestling.prediction import Calibration
from nestling.reading import Cut
from nestling.running import cost
from nestling.training import Run, calibrate_mean, open_run, prepare_cuts


def export(
    folder: Path,
    to: FormatName,
    *,
    cut: float | None = None,
    under: Sequence[str] = (),
    uncertainty: str | None = None,
    layout: Layout = "nchw",
    floats: bool = False,
    out: Path | None = None,
    trust: bool = False,
) -> str:
    """Write the network of a cut, or the best of the curve under a budget, with all that the run knows of it."""
    run = open_run(folder, trust=trust)
    wanted = choose(run, cut, under, trust=trust).cut
    recalibrated(run, [wanted], trust=trust)
    target = folder / f"small-{cost(run.nested, wanted).params}{FORMATS[to].suffix}" if out is None else out
    exported = run_export(
        run,
        target,
        cut=wanted,
        to=to,
        uncertainty=uncertainty,
        calibration=_calibration(run, wanted, drawn=uncertainty is not None, trust=trust),
        layout=layout,
        as_bytes=False if floats else None,
    )
    return f"{exported}\n\nRun it: nestling.runtime.open('{exported.files[0]}').predict(inputs)"


def _calibration(run: Run, cut: Cut, *, drawn: bool, trust: bool) -> Calibration | None:
    """The calibration for what the file computes: the run's own one if weights are drawn, else one of their means."""
    if run.data.get("loaded_with") is None:
        return run.calibration(cut)
    if run.nested.num_uncertain and not drawn:
        return calibrate_mean(run, cut, data_of(run, trust=trust))
    return run.calibration(cut) or prepare_cuts(run, [cut], data_of(run, trust=trust)).calibration(cut)
