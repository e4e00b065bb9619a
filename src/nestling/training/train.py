"""``train``: one run, from data to a network that is validated, recalibrated and calibrated at its cuts."""

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import nn

from nestling.data import Data
from nestling.errors import DtypeError
from nestling.prediction import Calibration, Likelihood, calibrate, likelihood_named
from nestling.processes import ALONE, Processes, connected
from nestling.reading import make_cut
from nestling.running import Nested, norms_with_statistics, recalibrate
from nestling.storage import tensors_digest
from nestling.training.folder import RunFolder, add_cuts
from nestling.training.kept_state import Keeper, Memory
from nestling.training.loop import Figures, Loop
from nestling.training.recipe import Recipe
from nestling.training.run import Run, read_calibrations
from nestling.training.run_batches import make_feed
from nestling.training.stopping import Stopping

COVERAGES = (0.8, 0.9, 0.95, 0.99)
"""How often conformal sets should hold the truth, as far as there are examples to tell."""


def train(
    nested: Nested,
    data: object,
    recipe: Recipe | None = None,
    *,
    out: str | PathLike[str] | None = None,
    likelihood: str | Likelihood | None = None,
    starts_from: str | None = None,
    teacher: nn.Module | None = None,
    figures: Figures | None = None,
    quiet: bool = False,
) -> Run:
    """Train a nested network in place by a recipe; return it with the weights that validated best, or as well.

    ``data`` is a data set's name or path, ``Data``, or your own (train, validation) DataLoaders or Datasets. With
    ``out`` the run is a folder: given the same arguments again, a run that was stopped goes on where it was, and a
    complete one is read back. ``likelihood`` follows from the data set, and is categorical for loaders.
    ``teacher`` is a trained network whose predictions all widths learn from beside the labels: to fine-tune a network
    that is trained already, pass the network as it was before ``nest`` (the recipe's auto choices follow).
    ``starts_from`` says which weights the network begins with, for the folder to tell one such run from another;
    ``figures`` gives numbers of the network that the log has for each epoch, and the progress shows.

    Started by torchrun, the processes share every batch: all draw the same widths, each its own noise of the weights.
    Ctrl-C and SIGTERM save the run first (in the main thread), and then raise ``Stopped``, a KeyboardInterrupt.
    """
    if not isinstance(nested, Nested):
        raise DtypeError("nested", f"a {type(nested).__name__}", "what nest gives", "Call nl.nest(module, example).")
    recipe = recipe or Recipe()
    with connected() as processes, Stopping().watching() as stopping:
        feed = processes.agree(lambda: make_feed(data, recipe, processes))
        model = likelihood_named(likelihood or feed.likelihood or "categorical")
        about = feed.about | {"likelihood": model.name, "starts_from": starts_from}
        about |= {} if teacher is None else {"teacher": tensors_digest(teacher.state_dict().values())}
        place = None if out is None else Path(out)
        with processes.agree(lambda: _keeper(place, nested, recipe, about, processes)) as keeper:
            loop = Loop(
                *(nested, feed, recipe, model, keeper),
                processes=processes,
                stopping=stopping,
                figures=figures,
                teacher=teacher,
            )
            state = loop.run(quiet=quiet)
            if state.finished and place is not None:
                calibrations = _known_calibrations(place, processes)
            else:
                spread = processes.count > 1
                calibrations = _calibrations(nested, feed.validation, recipe, model, spread=spread)
                if processes.is_first:
                    keeper.finish(state, calibrations)
    return Run(nested, recipe, model.name, keeper.lines, calibrations, about, place)


def _keeper(place: Path | None, nested: Nested, recipe: Recipe, about: dict[str, Any], processes: Processes) -> Keeper:
    """What keeps the run: the folder, by the first process alone, or the memory of each."""
    if place is None or not processes.is_first:
        return Memory(checkpoints=recipe.step_back > 0)
    return RunFolder(place, nested, recipe, about, processes.count)


def prepared(run: Run, cuts: Sequence[float], source: Data, processes: Processes = ALONE) -> Run:
    """The run ready at more cuts: norms recalibrated and calibrations fitted where they were not, and saved with it."""
    spread = processes.count > 1
    new = {make_cut(run.nested.groups, cut): cut for cut in cuts if run.calibration(cut) is None}
    missing = list(new.values())
    if not missing:
        return run
    feed = make_feed(source, run.recipe)
    if norms_with_statistics(run.nested):
        for cut in missing:
            recalibrate(run.nested, feed.recalibration, cut, spread=spread)
    model = likelihood_named(run.likelihood)
    recipe = run.recipe.but(cuts=tuple(missing))
    fitted = [*run.calibrations, *_calibrations(run.nested, feed.validation, recipe, model, spread=spread)]
    if run.folder is not None and processes.is_first:
        add_cuts(run.folder, run.nested, fitted)
    return replace(run, calibrations=fitted)


def _known_calibrations(place: Path, processes: Processes) -> list[Calibration]:
    """What the folder of a complete run has, read by the first process."""
    rows = processes.from_first(lambda: json.dumps([own.to_dict() for own in read_calibrations(place)]).encode())
    return [Calibration.from_dict(row) for row in json.loads(rows)]


def _calibrations(
    nested: Nested, validation: Iterable[Any], recipe: Recipe, model: Likelihood, *, spread: bool = False
) -> list[Calibration]:
    """A calibration for each cut, at every coverage that the validation data has enough examples for."""
    with torch.random.fork_rng(devices=[]):  # a loader draws a seed whenever it is begun
        num_examples = sum(len(targets) for _, targets in validation)
        coverage = [own for own in COVERAGES if num_examples >= math.ceil(own / (1 - own))]
        return calibrate(
            nested,
            validation,
            cut=sorted(set(recipe.cuts)),
            samples=recipe.samples,
            likelihood=model,
            coverage=coverage,
            spread=spread,
        )
