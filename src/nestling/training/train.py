"""``train``: one run, from data to a network that is validated, recalibrated and calibrated at its cuts."""

import json
import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import nn

from nestling.data import Data, DatasetBatches
from nestling.prediction import Calibration, Likelihood, calibrate, likelihood_for, pairs
from nestling.processes import ALONE, Processes, connected
from nestling.reading import Cut, make_cut
from nestling.running import Nested, Read, check_nested, norms_with_statistics, recalibrate
from nestling.storage import tensors_digest
from nestling.training.folder import RunFolder, add_cuts
from nestling.training.kept_state import Keeper, Memory
from nestling.training.loop import Figures, Loop
from nestling.training.objectives import check_objective
from nestling.training.recipe import Recipe
from nestling.training.run import Run, read_calibrations
from nestling.training.run_batches import Feed, chosen_likelihood, make_feed
from nestling.training.stopping import Stopping

COVERAGES = (0.8, 0.9, 0.95, 0.99)
"""The coverages of conformal sets that are calibrated, if there are enough validation examples."""


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
    batch: Read | None = None,
    quiet: bool = False,
) -> Run:
    """Train a nested network in place by a recipe; its final weights are the best in validation, or as good.

    With ``out`` the run is a folder: the same call made again resumes a run that was stopped, and reads back a complete
    one. With more epochs in the recipe a complete run goes on from its weights, with a new optimiser.

    For numbers the network learns targets that are standardised by their mean and standard deviation in the training
    data (for loaders in the first 10,000 examples, or as you pass with ``nl.prediction.Gaussian().fitted(targets)``).
    Log, scores and predictions are in the targets' own units.

    Started by torchrun, the processes share every batch: all draw the same widths, but different weight noise. Ctrl-C
    and SIGTERM save the run first (in the main thread), and then raise ``Stopped``, a KeyboardInterrupt.

    Args:
        nested: What ``nest`` gives.
        data: A data set's name or path, ``Data``, or your own (train, validation) DataLoaders or Datasets. A loader's
            batch size is used, and recorded in place of the recipe's. Batches of loaders are pairs (inputs, targets),
            or dictionaries with ``labels``.
        recipe: All numbers of the training; by default ``Recipe()``.
        out: The folder of the run; None keeps it in memory.
        likelihood: What an output means. By default the network's own (``nested.likelihood``), else the one for the
            data set, and categorical for loaders.
        starts_from: Names the initial weights, so that the folder can tell runs with different ones apart.
        teacher: A trained network; all widths learn from its predictions as well as from the labels. To fine-tune a
            trained network, pass the network as it was before ``nest`` (the recipe's auto choices follow).
        figures: Computes figures of the network after each epoch, for the log and the progress line.
        batch: A function that makes a pair or a dictionary of any other batch.
        quiet: Show no progress.

    Returns:
        The finished run.

    Raises:
        RunError: If the folder holds another run, is damaged or in use, or can't be written.
        DivergenceError: If numbers became NaN or infinite; the message says where, and what to change.
        ArgumentError: If data, recipe and network do not fit each other.

    Examples:
        >>> new = nl.nest(module, example, num_blocks=8)
        >>> short = nl.train(new, data, nl.Recipe(epochs=1, cuts=(0.5, 1.0)), quiet=True)
        >>> len(short.log), short.folder is None, len(short.calibrations)
        (1, True, 2)
    """
    check_nested(nested)
    wanted = recipe or Recipe()
    with connected() as processes, Stopping().watching() as stopping:
        feed = processes.agree(lambda: make_feed(data, wanted, processes, batch))
        with_loader = isinstance(feed.train, DatasetBatches)  # the caller's, whose batch size is recorded
        recipe = wanted.but(batch_size=feed.train.batch_size) if with_loader else wanted
        chosen = processes.agree(lambda: chosen_likelihood(feed, nested, likelihood))
        check_objective(recipe.objective, chosen, teacher)
        if chosen.needs_targets:
            chosen = processes.agree(lambda: chosen.fitted(feed.targets()))
        chosen = chosen.to(nested.device)
        about = feed.about | {"likelihood": chosen.name, "starts_from": starts_from}
        about |= {} if teacher is None else {"teacher": tensors_digest(teacher.state_dict().values())}
        place = None if out is None else Path(out)
        keeper = processes.agree(lambda: _keeper(place, nested, recipe, about, processes))
        with keeper, _learning(nested, chosen):
            loop = Loop(
                *(nested, feed, recipe, chosen, keeper),
                processes=processes,
                stopping=stopping,
                figures=figures,
                teacher=teacher,
            )
            state = loop.run(quiet=quiet)
            nested.likelihood = likelihood_for(nested, chosen.name)  # a finished run's folder brings one
            if state.finished and place is not None:
                calibrations = _saved_calibrations(place, processes)
            else:
                spread = processes.count > 1
                cuts = sorted(set(recipe.cuts))
                calibrations = _fit_calibrations(nested, feed.validation, cuts, recipe.samples, spread=spread)
                if processes.is_first:
                    keeper.finish(state, calibrations)
    return Run(nested, recipe, chosen.name, keeper.lines, calibrations, about, place)


@contextmanager
def _learning(nested: Nested, likelihood: Likelihood) -> Iterator[None]:
    """Give a network the likelihood that it learns with; after an error it has the one of before."""
    before, nested.likelihood = nested.likelihood, likelihood
    try:
        yield
    except Exception:
        nested.likelihood = before
        raise


def _keeper(place: Path | None, nested: Nested, recipe: Recipe, about: dict[str, Any], processes: Processes) -> Keeper:
    """The keeper of a run: its folder in the first process, if there is one, else memory."""
    if place is None or not processes.is_first:
        return Memory(checkpoints=recipe.step_back > 0)
    return RunFolder(place, nested, recipe, about, processes.count)


def prepare_cuts(run: Run, cuts: Sequence[float | Cut], source: Data, processes: Processes = ALONE) -> Run:
    """Recalibrate norms and fit calibrations at cuts that have none yet, save both with the run, and return it."""
    spread = processes.count > 1
    new = {make_cut(run.nested.groups, cut): cut for cut in cuts if run.calibration(cut) is None}
    missing = list(new.values())
    if not missing:
        return run
    feed = make_feed(source, run.recipe)
    make_statistics(run, new, feed, spread=spread)
    fitted = _fit_calibrations(run.nested, feed.validation, missing, run.recipe.samples, spread=spread)
    fitted = [*run.calibrations, *fitted]
    if run.folder is not None and processes.is_first:
        add_cuts(run.folder, run.nested, fitted)
    return replace(run, calibrations=fitted)


def calibrate_mean(run: Run, cut: Cut, source: Data) -> Calibration:
    """A calibration of the network at a cut with its mean weights, as files without uncertainty have them."""
    return _fit_calibrations(run.nested, make_feed(source, run.recipe).validation, [cut], samples=0)[0]


def make_statistics(run: Run, cuts: Iterable[Cut], feed: Feed, *, spread: bool = False) -> None:
    """Collect the statistics of norms at the cuts of a run that have none, from the recipe's batches."""
    if norms_with_statistics(run.nested):
        for cut in cuts:
            if cut not in run.nested.statistics:
                recalibrate(run.nested, feed.recalibration, cut, spread=spread)


def keep_statistics(run: Run, cuts: Collection[Cut]) -> None:
    """Keep in a run's folder the statistics of norms at these cuts and at those with a calibration, and no others."""
    if run.folder is not None and norms_with_statistics(run.nested):
        kept = {*cuts, *(calibration.cut for calibration in run.calibrations)}
        run.nested.statistics = {cut: values for cut, values in run.nested.statistics.items() if cut in kept}
        add_cuts(run.folder, run.nested, run.calibrations)


def _saved_calibrations(place: Path, processes: Processes) -> list[Calibration]:
    """The calibrations in the folder of a complete run, read by the first process."""
    rows = processes.from_first(lambda: json.dumps([c.to_dict() for c in read_calibrations(place)]).encode())
    return [Calibration.from_dict(row) for row in json.loads(rows)]


def _fit_calibrations(
    nested: Nested, validation: Iterable[Any], cuts: Sequence[float | Cut], samples: int, *, spread: bool = False
) -> list[Calibration]:
    """One calibration per cut, at every coverage for which the validation data has enough examples."""
    with torch.random.fork_rng(devices=[]):  # a loader draws a seed whenever an iteration begins
        num_examples = sum(len(targets) for _, targets in pairs(validation))
        coverage = [share for share in COVERAGES if num_examples >= math.ceil(share / (1 - share))]
        return calibrate(nested, validation, cut=cuts, samples=samples, coverage=coverage, spread=spread)
