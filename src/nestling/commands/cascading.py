"""``cascade``: from a run to a cascade of its cuts."""

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from nestling.cascade import CASCADE_FILE, Cascading, MeasuredIn, read_goal
from nestling.cascade import cascade as fit_cascade
from nestling.commands.building import torch_device
from nestling.commands.options import BATCH, Device
from nestling.commands.own_data import data_of
from nestling.delivery import export as run_export
from nestling.reading import cut_names
from nestling.report import cascade_table, draw_cascade
from nestling.storage import FolderLock, remove_parts
from nestling.training import Run, make_feed, open_run, prepare_cuts


def cascade(
    folder: Path,
    cuts: Sequence[float],
    options: Cascading = Cascading(),  # noqa: B008 (frozen)
    *,
    measured_in: MeasuredIn = "torch",
    trust: bool = False,
    device: Device = "auto",
) -> str:
    """Fit a cascade on the validation data, write it to the run's folder, and give its test scores as a table.

    Cuts that the run does not know are recalibrated first. Times that are measured in onnxruntime are those that a goal
    counts; by default they are measured in torch, for the table.
    """
    goal = read_goal(options.goal, options.delta)
    with FolderLock(folder):  # an error now if nothing can be written there, or a run is being trained
        remove_parts(folder)
    run = open_run(folder, trust=trust)
    run.nested.to(torch_device(device))
    cut_names(run.nested.groups, cuts)  # an error for a fraction that is none, before anything is made
    data = data_of(run, trust=trust)
    run = prepare_cuts(run, list(cuts), data)
    feed = make_feed(data, run.recipe)
    times = _times_in_onnxruntime(run, cuts) if measured_in == "onnxruntime" else None
    given = vars(options) | {"goal": goal, "times": times}
    fitted = fit_cascade(run.nested, cuts, feed.validation, likelihood=run.likelihood, **given)
    scores = fitted.evaluate(data.batches("test", BATCH), latency=fitted.stages[0].ms is None)
    comparison = fitted.compare(data.batches("test", BATCH))
    fitted.save(folder)
    draw_cascade(folder / CASCADE_FILE.replace(".json", ".png"), comparison)
    return f"{cascade_table(fitted, scores, comparison)}\n\n{folder / CASCADE_FILE} has the cascade."


def _times_in_onnxruntime(run: Run, cuts: Sequence[float]) -> dict[str, float]:
    """The milliseconds of each cut for one example, in a file of these widths that is not kept."""
    with TemporaryDirectory() as place:
        return dict(run_export(run, Path(place) / "widths.onnx", widths=cuts).widths)
