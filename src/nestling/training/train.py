"""``train``: one run, from data to a network that is validated, recalibrated and calibrated at its cuts."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import nn

from nestling.data import Data
from nestling.errors import ArgumentError, DtypeError, RunError
from nestling.network import Cut, Nested, recalibrate
from nestling.network.cut import make_cut
from nestling.prediction import Calibration, Likelihood, calibrate, likelihood_named
from nestling.training.feeds import make_feed
from nestling.training.files import check_format, read_json
from nestling.training.folder import (
    RECIPE_FILE,
    Keeper,
    Memory,
    RunFolder,
    read_calibrations,
    read_log,
    write_calibrations,
)
from nestling.training.loop import Loop, has_norms
from nestling.training.recipe import Recipe
from nestling.training.saving import load, save

COVERAGES = (0.8, 0.9, 0.95, 0.99)
"""How often conformal sets should hold the truth, as far as there are examples to tell."""


@dataclass(frozen=True)
class Run:
    """A finished run: the network with its best weights, how it came about, and a calibration for each cut."""

    nested: Nested
    recipe: Recipe
    likelihood: str
    log: Sequence[dict[str, Any]]
    calibrations: Sequence[Calibration]
    data: dict[str, Any]
    folder: Path | None

    def calibration(self, cut: Any) -> Calibration | None:  # noqa: ANN401
        """The calibration that was fitted at a cut, if there is one."""
        wanted: Cut = make_cut(self.nested.groups, cut)
        return next((own for own in self.calibrations if own.cut == wanted), None)


def train(
    nested: Nested,
    data: object,
    recipe: Recipe | None = None,
    *,
    out: str | PathLike[str] | None = None,
    likelihood: str | Likelihood | None = None,
    starts_from: str | None = None,
    quiet: bool = False,
) -> Run:
    """Train a nested network in place by a recipe; return it with the weights that validated best.

    ``data`` is a data set's name or path, ``Data``, or your own (train, validation) DataLoaders or Datasets. With
    ``out`` the run is a folder: given the same arguments again, a run that was stopped goes on where it was, and a
    complete one is read back. ``likelihood`` follows from the data set, and is categorical for loaders.
    ``starts_from`` says which weights the network begins with, for the folder to tell one such run from another.
    """
    if not isinstance(nested, Nested):
        raise DtypeError("nested", f"a {type(nested).__name__}", "what nest gives", "Call nl.nest(module, example).")
    recipe = recipe or Recipe()
    feed = make_feed(data, recipe)
    model = likelihood_named(likelihood or feed.likelihood or "categorical")
    about = feed.about | {"likelihood": model.name, "starts_from": starts_from}
    keeper: Keeper = Memory() if out is None else RunFolder(Path(out), nested, recipe, about)
    loop = Loop(nested, feed, recipe, model, keeper)
    state = loop.run(quiet=quiet)
    if state.finished and out is not None:
        calibrations = read_calibrations(Path(out))
    else:
        calibrations = _calibrations(nested, feed.validation, sorted(set(recipe.cuts)), recipe.samples, model)
        keeper.finish(state, calibrations)
    return Run(nested, recipe, model.name, keeper.lines, calibrations, about, None if out is None else Path(out))


def prepared(run: Run, cuts: Sequence[float], source: Data) -> Run:
    """The run ready at more cuts: norms recalibrated and calibrations fitted where they were not, and saved with it."""
    new = {make_cut(run.nested.groups, cut): cut for cut in cuts if run.calibration(cut) is None}
    missing = list(new.values())
    if not missing:
        return run
    feed = make_feed(source, run.recipe)
    if has_norms(run.nested):
        for cut in missing:
            recalibrate(run.nested, feed.recalibration, cut)
    model = likelihood_named(run.likelihood)
    fitted = [*run.calibrations, *_calibrations(run.nested, feed.validation, missing, run.recipe.samples, model)]
    if run.folder is not None:
        save(run.nested, run.folder, notes={"cuts_added": missing})
        write_calibrations(run.folder, fitted)
    return replace(run, calibrations=fitted)


def _calibrations(
    nested: Nested, validation: Iterable[Any], cuts: Sequence[float], samples: int, model: Likelihood
) -> list[Calibration]:
    """A calibration for each cut, at every coverage that the validation data has enough examples for."""
    with torch.random.fork_rng(devices=[]):  # a loader draws a seed whenever it is begun
        num_examples = sum(len(targets) for _, targets in validation)
    coverage = [own for own in COVERAGES if num_examples >= math.ceil(own / (1 - own))]
    return calibrate(nested, validation, cut=list(cuts), samples=samples, likelihood=model, coverage=coverage)


def open_run(folder: str | PathLike[str], module: nn.Module | None = None, *, trust: bool = False) -> Run:
    """Read a run back from its folder; ``module`` and ``trust`` are those of ``load``."""
    place = Path(folder)
    saved = read_json(place / RECIPE_FILE)
    if not isinstance(saved, dict):
        raise RunError(place / RECIPE_FILE, "is not a run's recipe", "Give the folder that a run was written to.")
    check_format(place / RECIPE_FILE, saved.get("format"))
    about = saved.get("data")
    if not isinstance(about, dict) or not isinstance(about.get("likelihood"), str):
        raise RunError(place / RECIPE_FILE, "does not say what data the run was trained on", "Restore it from a copy.")
    try:
        recipe = Recipe.from_dict(saved.get("recipe"))
    except ArgumentError as error:
        raise RunError(place / RECIPE_FILE, f"has a recipe that can't be used ({error})", "Restore it.") from None
    nested = load(place, module, trust=trust)
    return Run(nested, recipe, about["likelihood"], read_log(place), read_calibrations(place), about, place)
