"""Where a run keeps its recipe, log, best weights and state: a folder, or memory if none is asked for."""

import json
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from platform import python_version
from typing import Any

import numpy
import torch

from nestling.errors import RunError
from nestling.network import Nested
from nestling.prediction import Calibration
from nestling.training.checkpoint import CHECKPOINT_FILE, State, read_checkpoint, state_of, write_checkpoint
from nestling.training.events import event_writer, write_events
from nestling.training.files import (
    FORMAT,
    check_format,
    read_json,
    read_tensors,
    write_json,
    write_tensors,
    write_whole,
)
from nestling.training.recipe import Recipe
from nestling.training.saving import (
    GROUPS_FILE,
    NETWORK_FILE,
    WEIGHTS_FILE,
    describe,
    made_folder,
    packed,
    save,
    unpack,
)
from nestling.version import __version__

RECIPE_FILE = "recipe.json"
LOG_FILE = "log.jsonl"
CALIBRATION_FILE = "calibration.json"


class Keeper(ABC):
    """Where a run keeps what must outlive a step."""

    lines: list[dict[str, Any]]

    @abstractmethod
    def begin(self, nested: Nested, optimiser: torch.optim.Optimizer) -> State | None:
        """Take up what was kept: put network and optimiser where they were; None if there is nothing."""

    @abstractmethod
    def checkpoint(self, state: State, nested: Nested, optimiser: torch.optim.Optimizer) -> None:
        """Keep where the run stands."""

    @abstractmethod
    def log(self, line: dict[str, Any]) -> None:
        """Keep a line of the log."""

    @abstractmethod
    def keep_best(self, nested: Nested, notes: Mapping[str, Any]) -> None:
        """Keep the best weights so far."""

    @abstractmethod
    def give_best(self, nested: Nested) -> None:
        """Give the network the best weights."""

    @abstractmethod
    def finish(self, state: State, calibrations: list[Calibration]) -> None:
        """Note that the run is complete."""


class Memory(Keeper):
    """Keeps the best weights, and nothing once the process ends."""

    def __init__(self) -> None:
        self.lines = []
        self._best: tuple[dict[str, torch.Tensor], dict[str, Any]] | None = None

    def begin(self, nested: Nested, optimiser: torch.optim.Optimizer) -> State | None:
        """Nothing was kept."""
        return None

    def checkpoint(self, state: State, nested: Nested, optimiser: torch.optim.Optimizer) -> None:
        """Nothing is kept."""

    def log(self, line: dict[str, Any]) -> None:
        """Keep a line in memory."""
        self.lines.append(line)

    def keep_best(self, nested: Nested, notes: Mapping[str, Any]) -> None:
        """Copy the weights."""
        tensors, record = packed(nested)
        self._best = {name: tensor.clone() for name, tensor in tensors.items()}, record

    def give_best(self, nested: Nested) -> None:
        """Give the copy back."""
        if self._best is not None:
            unpack(nested, *self._best, Path("memory"))

    def finish(self, state: State, calibrations: list[Calibration]) -> None:
        """Nothing is kept."""


class RunFolder(Keeper):
    """A folder on disk that a run which was stopped goes on from."""

    def __init__(self, place: Path, nested: Nested, recipe: Recipe, about: Mapping[str, Any]) -> None:
        self.place = made_folder(place)
        self.lines = []
        self._wanted = json.loads(json.dumps(_record(nested, recipe, about)))
        self._events = recipe.tensorboard
        if self._events:
            event_writer()  # an error now rather than after an epoch

    def begin(self, nested: Nested, optimiser: torch.optim.Optimizer) -> State | None:
        """Go on with the same run, refuse another one, or start a fresh folder."""
        path = self.place / RECIPE_FILE
        begun = [file for file in (WEIGHTS_FILE, CHECKPOINT_FILE) if (self.place / file).exists()]
        if not path.exists() and begun:
            raise RunError(self.place, "holds a network but no recipe", "Choose another folder.")
        if not begun:  # nothing, or a run that ended before it kept anything
            write_json(path, self._wanted | {"made_by": environment()})
            return None
        saved = read_json(path)
        if not isinstance(saved, dict):
            raise RunError(path, "is not a run's recipe", "Choose another folder.")
        check_format(path, saved.get("format"))
        for part in ("data", "recipe", "network"):
            if saved.get(part) != self._wanted[part]:
                advice = "Choose another folder, or give the same command as before."
                raise RunError(self.place, f"holds another run: {_difference(part, saved, self._wanted)}", advice)
        if not (self.place / CHECKPOINT_FILE).exists():
            return None
        _, record = read_tensors(self.place / CHECKPOINT_FILE)
        state = state_of(self.place / CHECKPOINT_FILE, record)
        for file in (NETWORK_FILE, GROUPS_FILE, WEIGHTS_FILE) if state.finished else ():
            if not (self.place / file).exists():
                raise RunError(self.place / file, "is missing, though the run is complete", "Train in another folder.")
        if not state.finished:
            state = read_checkpoint(self.place / CHECKPOINT_FILE, nested, optimiser)
        self.lines = _lines_until(self.place / LOG_FILE, state.epoch)
        self._write_log()
        return state

    def checkpoint(self, state: State, nested: Nested, optimiser: torch.optim.Optimizer) -> None:
        """Write the checkpoint."""
        write_checkpoint(self.place / CHECKPOINT_FILE, state, nested, optimiser)

    def log(self, line: dict[str, Any]) -> None:
        """Add a line to the log."""
        self.lines.append(line)
        self._write_log()
        if self._events:
            write_events(self.place / "events", line)

    def keep_best(self, nested: Nested, notes: Mapping[str, Any]) -> None:
        """Write the network's files."""
        save(nested, self.place, notes=notes)

    def give_best(self, nested: Nested) -> None:
        """Read the weights back."""
        path = self.place / WEIGHTS_FILE
        unpack(nested, *read_tensors(path), path)

    def finish(self, state: State, calibrations: list[Calibration]) -> None:
        """Write the calibrations, and a checkpoint that holds nothing but that the run is complete."""
        write_calibrations(self.place, calibrations)
        write_tensors(self.place / CHECKPOINT_FILE, {}, {"state": vars(state) | {"finished": True}})

    def _write_log(self) -> None:
        text = "".join(json.dumps(line) + "\n" for line in self.lines)
        write_whole(self.place / LOG_FILE, text.encode())


def write_calibrations(place: Path, calibrations: list[Calibration]) -> None:
    """Write the calibrations of a run."""
    rows = [calibration.to_dict() for calibration in calibrations]
    write_json(place / CALIBRATION_FILE, {"format": FORMAT, "calibrations": rows})


def read_calibrations(place: Path) -> list[Calibration]:
    """The calibrations of a run; none if it was never calibrated."""
    path = place / CALIBRATION_FILE
    if not path.exists():
        return []
    saved = read_json(path)
    if not isinstance(saved, dict) or not isinstance(saved.get("calibrations"), list):
        raise RunError(path, "is not a list of calibrations", "Delete it, and calibrate again.")
    check_format(path, saved.get("format"))
    return [Calibration.from_dict(row) for row in saved["calibrations"]]


def read_log(place: Path) -> list[dict[str, Any]]:
    """The lines of a run's log."""
    return _lines_until(place / LOG_FILE, sys.maxsize)


def environment() -> dict[str, Any]:
    """What a run was made by: versions, command, threads and device."""
    return {
        "nestling": __version__,
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "python": python_version(),
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "threads": torch.get_num_threads(),
    }


def _record(nested: Nested, recipe: Recipe, about: Mapping[str, Any]) -> dict[str, Any]:
    return {"format": FORMAT, "network": describe(nested), "recipe": recipe.to_dict(), "data": dict(about)}


def _difference(part: str, saved: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """The first entry, at any depth, in which a part of two runs differs."""
    name, before, now = part, saved.get(part), wanted[part]
    while isinstance(before, dict) and isinstance(now, dict):
        key = next(key for key in {**before, **now} if before.get(key) != now.get(key))
        name, before, now = f"{name}.{key}", before.get(key), now.get(key)
    return f"its {name} is {_short(before)}, yours {_short(now)}"


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _lines_until(path: Path, epoch: int) -> list[dict[str, Any]]:
    """The lines of a log that belong to the first ``epoch`` epochs; one that was cut off is left out."""
    lines = []
    for text in path.read_text(errors="replace").splitlines() if path.exists() else ():
        try:
            line = json.loads(text)
        except ValueError:
            continue
        if isinstance(line, dict) and isinstance(line.get("epoch"), int) and line["epoch"] <= epoch:
            lines.append(line)
    return lines
