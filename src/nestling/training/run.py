"""A finished run, and reading it back from its folder."""

import json
import sys
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from torch import nn

from nestling.errors import ArgumentError, NestlingError, RunError
from nestling.markup import card, html_table
from nestling.prediction import Calibration, likelihood_for
from nestling.reading import Cut, make_cut
from nestling.running import Nested
from nestling.storage import WEIGHTS_FILE, digest, loaded, parsed, read_bytes, read_json, read_tensors, weights_digest
from nestling.training.recipe import Recipe

RECIPE_FILE = "recipe.json"
LOG_FILE = "log.jsonl"
CALIBRATION_FILE = "calibration.json"
SCORES_FILE = "scores.json"
CHECK = "crc32"
IDENTITY_KEYS = ("data", "recipe", "network")
"""The keys of a record that are equal for two records of the same run."""
FIRST_EPOCHS = "first_epochs"
"""The key of a record for the epochs that the run was begun with, if it was given more when it was complete."""


@dataclass(frozen=True)
class Run:
    """A finished run: the network with its best weights, how it was trained, and a calibration per cut.

    ``train`` returns one, and ``open_run`` reads one from its folder.

    Attributes:
        nested: The network, in eval mode.
        recipe: All numbers of the training.
        likelihood: The name of what its outputs mean.
        log: A line per epoch: losses, divergences and validation scores, by cut.
        calibrations: Temperature and conformal thresholds at each of the recipe's cuts.
        data: What is known of the data: name, input shape, classes, mean and standard deviation.
        folder: Where the run is stored; None for a run in memory.

    Examples:
        >>> run
        Run(runs/digits: digits, categorical, epoch 8 of 8; 4 calibrated cuts)
        >>> run.log[-1]["epoch"], run.calibration(0.5).num_examples
        (8, 144)
    """

    nested: Nested
    recipe: Recipe
    likelihood: str
    log: Sequence[dict[str, Any]]
    calibrations: Sequence[Calibration]
    data: dict[str, Any]
    folder: Path | None

    def __repr__(self) -> str:
        place = "in memory" if self.folder is None else str(self.folder)
        source = self.data.get("name") or "data of yours"
        calibrated = f"{len(self.calibrations)} calibrated cuts"
        return f"Run({place}: {source}, {self.likelihood}, epoch {len(self.log)} of {self.recipe.epochs}; {calibrated})"

    @property
    def identity(self) -> str | None:
        """The name of the run in its files; None for a run without a folder."""
        return None if self.folder is None else identity_of(read_json(self.folder / RECIPE_FILE))

    def _repr_html_(self) -> str:
        validation = self.log[-1].get("validation") if self.log else None
        rows = []
        for name, scores in validation.items() if isinstance(validation, dict) else ():
            values = [scores.get(key) if isinstance(scores, dict) else None for key in ("accuracy", "nll")]
            rows.append([name, *(f"{value:.4f}" if isinstance(value, int | float) else "-" for value in values)])
        table = html_table(["cut", "validation accuracy", "validation NLL"], rows, styled=True)
        return card("Run", repr(self), table)

    def calibration(self, cut: Any) -> Calibration | None:  # noqa: ANN401
        """The calibration that was fitted at a cut.

        Args:
            cut: A fraction, widths by group, or a ``Cut``.

        Returns:
            The calibration; None if there is none at this cut.
        """
        wanted: Cut = make_cut(self.nested.groups, cut)
        return next((calibration for calibration in self.calibrations if calibration.cut == wanted), None)


def open_run(folder: str | PathLike[str], module: nn.Module | None = None, *, trust: bool = False) -> Run:
    """Read a run back from its folder.

    Args:
        folder: Where ``train`` wrote it.
        module: As in ``load``: the network itself, where the files can't say how it is built.
        trust: As in ``load``: whether to run code of yours that the files name.

    Returns:
        The run, its network in eval mode.

    Raises:
        RunError: If a file is missing, damaged, or of another run; the message says which.

    Examples:
        >>> again = nl.open_run("runs/digits")
        >>> torch.equal(again.nested(images), nested(images)), again.recipe == run.recipe
        (True, True)
    """
    place = Path(folder)
    nested, saved, calibrations = read_run(place, module, trust=trust)
    about = saved.get("data")
    if not isinstance(about, dict) or not describes_data(about):
        raise RunError(place / RECIPE_FILE, "does not say what data the run was trained on", "Restore it from a copy.")
    try:
        recipe = Recipe.from_dict(saved.get("recipe"))
        nested.likelihood = likelihood_for(nested, about["likelihood"])
    except ArgumentError as error:
        raise RunError(place / RECIPE_FILE, f"has a recipe that can't be used ({error})", "Restore it.") from None
    return Run(nested, recipe, about["likelihood"], read_log(place, identity_of(saved)), calibrations, about, place)


def describes_data(about: Mapping[str, Any]) -> bool:
    """Whether a record has the entries of ``Feed.about`` that predictions need."""
    if not isinstance(about.get("likelihood"), str):
        return False
    if about.get("name") is None:
        return True
    shape, mean, std, classes = (about.get(key) for key in ("input_shape", "mean", "std", "classes"))
    if not (isinstance(shape, list) and isinstance(mean, list) and isinstance(std, list) and isinstance(classes, list)):
        return False
    if not shape or not all(isinstance(size, int) and 0 < size < 2**31 for size in shape):
        return False
    numbers = all(isinstance(value, int | float) and abs(value) < 1e30 for value in (*mean, *std))
    fits = len(mean) == len(std) == shape[0] and all(isinstance(name, str) for name in classes)
    return numbers and fits and all(value > 0 for value in std)


def identity_of(record: Mapping[str, Any]) -> str:
    """The name of a run in its files: a checksum of its data, network, and the recipe that it was begun with."""
    named = {key: record.get(key) for key in IDENTITY_KEYS}
    if FIRST_EPOCHS in record and isinstance(named["recipe"], dict):
        named["recipe"] = named["recipe"] | {"epochs": record[FIRST_EPOCHS]}
    return digest(named)


def read_run(place: Path, module: nn.Module | None, *, trust: bool) -> tuple[Nested, dict[str, Any], list[Calibration]]:
    """The network of a run folder, the content of its recipe file, and its calibrations, checked to be of one run."""
    saved = read_json(place / RECIPE_FILE)
    path = place / WEIGHTS_FILE
    tensors, record = read_tensors(path)
    notes = record.get("notes")
    if not isinstance(notes, dict) or notes.get("run") != identity_of(saved):
        raise RunError(path, "belongs to another run than recipe.json", "Restore them from a copy, or train again.")
    nested = loaded(path, tensors, record, module, trust=trust)
    saved_calibrations = _calibrations_for(place, weights_digest(tensors))
    calibrations = [c for c in saved_calibrations if c.cut in nested.statistics or not nested.statistics]
    return nested, saved, calibrations


def read_calibrations(place: Path) -> list[Calibration]:
    """The calibrations of a run; none if it was never calibrated."""
    tensors, _ = read_tensors(place / WEIGHTS_FILE)
    return _calibrations_for(place, weights_digest(tensors))


def _calibrations_for(place: Path, weights: str) -> list[Calibration]:
    path = place / CALIBRATION_FILE
    if not path.exists():
        return []
    saved = read_json(path)
    advice = "Delete it, and calibrate again."
    if saved.get("weights") != weights:
        raise RunError(path, "was fitted to other weights than model.safetensors has", advice)
    try:
        return [Calibration.from_dict(row) for row in saved["calibrations"]]
    except (NestlingError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise RunError(path, f"is not a list of calibrations ({error})", advice) from None


def read_log(place: Path, identity: str) -> list[dict[str, Any]]:
    """The lines of a run's log."""
    return lines_until(place / LOG_FILE, sys.maxsize, identity)


def log_of(folder: str | PathLike[str]) -> list[dict[str, Any]]:
    """The lines of the log in a run's folder, one per epoch; the network is not read."""
    place = Path(folder)
    return read_log(place, identity_of(read_json(place / RECIPE_FILE)))


def check_of(line: Mapping[str, Any], identity: str) -> int:
    """A checksum of a line of the log and of the run it is from."""
    return zlib.crc32(json.dumps(line, sort_keys=True).encode() + identity.encode())


def lines_until(path: Path, epoch: int, identity: str) -> list[dict[str, Any]]:
    """The lines of a run's log up to ``epoch``, one per epoch; damaged lines and those of other runs are left out."""
    lines: list[dict[str, Any]] = []
    for text in read_bytes(path).decode(errors="replace").splitlines() if path.exists() else ():
        with suppress(ValueError, RecursionError):
            line = parsed(text)
            if not isinstance(line, dict) or line.pop(CHECK, None) != check_of(line, identity):
                continue
            if isinstance(line.get("epoch"), int) and (lines[-1]["epoch"] if lines else 0) < line["epoch"] <= epoch:
                lines.append(line)
    return lines
