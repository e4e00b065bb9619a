"""Writes the folder of a run: its recipe, log, best weights, calibrations, and the state to resume from."""

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from platform import python_version
from typing import Any

import numpy
import torch

from nestling.errors import RunError
from nestling.prediction import Calibration
from nestling.running import Nested
from nestling.storage import (
    WEIGHTS_FILE,
    FolderLock,
    describe,
    make_folder,
    packed,
    read_json,
    read_tensors,
    remove_parts,
    save,
    unpack,
    weights_digest,
    write_json,
    write_tensors,
    write_whole,
)
from nestling.training.checkpoint import State, pack_checkpoint, state_of, unpack_checkpoint
from nestling.training.events import event_writer, write_events
from nestling.training.kept_state import Keeper
from nestling.training.recipe import Recipe
from nestling.training.run import (
    CALIBRATION_FILE,
    CHECK,
    FIRST_EPOCHS,
    IDENTITY_KEYS,
    LOG_FILE,
    RECIPE_FILE,
    check_of,
    identity_of,
    lines_until,
)
from nestling.training.trained_here import note
from nestling.version import __version__

CHECKPOINT_FILE = "checkpoint.safetensors"
PREVIOUS_FILE = "checkpoint.previous.safetensors"
EVENTS_FOLDER = "events"
_MISSING = "nothing"


class RunFolder(Keeper):
    """A folder on disk from which a stopped run is resumed."""

    def __init__(
        self, place: Path, nested: Nested, recipe: Recipe, about: Mapping[str, Any], num_processes: int = 1
    ) -> None:
        self.place = make_folder(place)
        self.lines = []
        self.how_to_go_on = f"{place} holds it: give the same command again to go on."
        self._lock = FolderLock(self.place)
        self._wanted = json.loads(json.dumps(_record(nested, recipe, about)))
        self._identity = identity_of(self._wanted)
        self._num_processes = num_processes
        self._events = recipe.tensorboard
        if self._events:
            event_writer()  # raises an error now rather than after an epoch

    def release(self) -> None:
        """Release the folder's lock for other processes."""
        self._lock.release()

    def take_up(self, nested: Nested, optimiser: torch.optim.Optimizer) -> State | None:
        """Resume the same run, raise if the folder has another one, or start a new folder."""
        self._lock.acquire()
        remove_parts(self.place)
        path = self.place / RECIPE_FILE
        begun = [file for file in (WEIGHTS_FILE, CHECKPOINT_FILE, PREVIOUS_FILE) if (self.place / file).exists()]
        if not path.exists() and begun:
            raise RunError(self.place, "holds a network but no recipe", "Choose another folder.")
        if not begun:  # an empty folder, or a run that ended before it saved anything
            write_json(path, self._wanted | {"made_by": environment(self._num_processes)})
            note(self._identity)
            return None
        saved = read_json(path)
        self._saved, self._identity = saved, identity_of(saved)
        self._check_same_run(saved)
        note(self._identity)
        state = self._resume_last_good(nested, optimiser)
        if state is not None:
            self._check_best(state)
            self.lines = lines_until(self.place / LOG_FILE, state.epoch, self._identity)
            self._write_log()
        return state

    def _check_same_run(self, saved: Mapping[str, Any]) -> None:
        """Raise if the folder has another run; one of fewer epochs is the same run, which may go on."""
        now = {**saved, "recipe": saved["recipe"] | {"epochs": self._epochs}} if self._gets_more(saved) else saved
        for key in IDENTITY_KEYS:
            if now.get(key) != self._wanted[key]:
                advice = "Choose another folder, or give the same command as before."
                raise RunError(self.place, f"holds another run: {_difference(key, now, self._wanted)}", advice)

    @property
    def _epochs(self) -> int:
        return int(self._wanted["recipe"]["epochs"])

    def _gets_more(self, saved: Mapping[str, Any]) -> bool:
        """Whether more epochs are wanted than the run in the folder has."""
        recipe = saved.get("recipe")
        epochs = recipe.get("epochs") if isinstance(recipe, dict) else None
        return isinstance(epochs, int) and epochs < self._epochs

    def _check_best(self, state: State) -> None:
        """Raise if the weights are not those that the run kept, for example restored from an earlier epoch."""
        if state.kept_epoch is None:
            return
        path = self.place / WEIGHTS_FILE
        _, record = read_tensors(path)
        self._check_run(path, record.get("notes"))
        epoch = record["notes"].get("epoch")
        if not isinstance(epoch, int) or epoch < state.kept_epoch:  # later weights were saved after the checkpoint
            advice = "Restore it from a copy, or train in another folder."
            raise RunError(path, f"is of epoch {epoch}, and the run kept {state.kept_epoch}", advice)

    def _resume_last_good(self, nested: Nested, optimiser: torch.optim.Optimizer) -> State | None:
        """Resume from the checkpoint, or from the one before it if the last can't be used."""
        first: RunError | None = None
        for path in (self.place / CHECKPOINT_FILE, self.place / PREVIOUS_FILE):
            if not path.exists():
                continue
            try:
                state = self._resume_from(path, nested, optimiser)
            except RunError as error:
                first = first or error
                continue
            if first is not None:
                self.notice = f"{first} Going on from the checkpoint before it."
            return state
        if first is not None:
            raise first
        return None

    def _resume_from(self, path: Path, nested: Nested, optimiser: torch.optim.Optimizer) -> State:
        tensors, record = read_tensors(path)
        self._check_run(path, record)
        state = state_of(path, record)
        if not state.finished:
            if self._gets_more(self._saved):
                wrong = f"holds another run: {_difference('recipe', self._saved, self._wanted)}"
                advice = "Give the same command as before: a run can have more epochs once it is complete."
                raise RunError(self.place, wrong, advice)
            return unpack_checkpoint(tensors, record, nested, optimiser, path)
        if not (self.place / WEIGHTS_FILE).exists():
            raise RunError(
                self.place / WEIGHTS_FILE, "is missing, though the run is complete", "Train in another folder."
            )
        first = self._saved.get(FIRST_EPOCHS, self._saved["recipe"]["epochs"])
        return state if record.get("epochs", first) >= self._epochs else self._go_on(state, first, nested, optimiser)

    def _go_on(self, state: State, first: int, nested: Nested, optimiser: torch.optim.Optimizer) -> State:
        """Begin the additional epochs of a complete run, from its best weights and with a new optimiser.

        The recipe is written first: a process that is killed in between begins them again.
        """
        write_json(self.place / RECIPE_FILE, {**self._saved, "recipe": self._wanted["recipe"], FIRST_EPOCHS: first})
        self.give_best(nested)
        nested.statistics = {}
        (self.place / CALIBRATION_FILE).unlink(missing_ok=True)  # it is fitted again to the weights of the end
        state = replace(state, finished=False, began=state.epoch)
        self.checkpoint(state, nested, optimiser)
        return state

    def checkpoint(self, state: State, nested: Nested, optimiser: torch.optim.Optimizer) -> None:
        """Write the checkpoint; the one before stays until this one was read back, and then as a fallback."""
        self._write_checkpoint(*pack_checkpoint(state, nested, optimiser))

    def log(self, line: dict[str, Any]) -> None:
        """Add a line to the log."""
        self.lines.append(line)
        self._write_log()
        if self._events:
            folder = self.place / EVENTS_FOLDER
            if folder.is_symlink():
                raise RunError(folder, "leads out of the run folder", "Remove it.")
            write_events(folder, line)

    def keep_best(self, nested: Nested, notes: Mapping[str, Any]) -> None:
        """Write the network's files."""
        save(nested, self.place, notes={"run": self._identity, **notes})

    def give_best(self, nested: Nested) -> None:
        """Read the weights back."""
        path = self.place / WEIGHTS_FILE
        tensors, record = read_tensors(path)
        self._check_run(path, record.get("notes"))
        unpack(nested, tensors, record, path)

    def finish(self, state: State, calibrations: list[Calibration]) -> None:
        """Write the calibrations, and a checkpoint that only says that the run is complete."""
        write_calibrations(self.place, calibrations)
        self._write_checkpoint({}, {"state": vars(state) | {"finished": True}, "epochs": self._epochs})
        with suppress(OSError):  # the file is no longer needed, and does no harm
            (self.place / PREVIOUS_FILE).unlink()

    def _write_checkpoint(self, tensors: Mapping[str, torch.Tensor], record: Mapping[str, Any]) -> None:
        path, before = self.place / CHECKPOINT_FILE, self.place / PREVIOUS_FILE
        try:
            if path.exists():
                before.unlink(missing_ok=True)  # first, so that the disk never needs room for three
        except OSError as error:
            raise RunError(before, f"can't be removed ({error.strerror or error})", "Remove it by hand.") from None
        write_tensors(path, tensors, {**record, "run": self._identity}, old=before)

    def _check_run(self, path: Path, record: object) -> None:
        if not isinstance(record, Mapping) or record.get("run") != self._identity:
            raise RunError(path, "belongs to another run", "Restore it from a copy, or train in another folder.")

    def _write_log(self) -> None:
        text = "".join(json.dumps(line | {CHECK: check_of(line, self._identity)}) + "\n" for line in self.lines)
        write_whole(self.place / LOG_FILE, text.encode())


def add_cuts(place: Path, nested: Nested, calibrations: Sequence[Calibration]) -> None:
    """Write the norm statistics and the calibrations of more cuts, unless the folder has other weights by now."""
    with FolderLock(place):
        tensors, record = read_tensors(place / WEIGHTS_FILE)
        if weights_digest(tensors) != weights_digest(packed(nested)[0]):
            raise RunError(place, "was trained further in the meantime", "Give the command again.")
        save(nested, place, notes=record.get("notes"))
        write_calibrations(place, calibrations)


def write_calibrations(place: Path, calibrations: Sequence[Calibration]) -> None:
    """Write the calibrations of the weights in a run's folder."""
    tensors, _ = read_tensors(place / WEIGHTS_FILE)
    rows = [calibration.to_dict() for calibration in calibrations]
    write_json(place / CALIBRATION_FILE, {"weights": weights_digest(tensors), "calibrations": rows})


def environment(num_processes: int = 1) -> dict[str, Any]:
    """The environment of a run: versions, command, threads and processes."""
    return {
        "nestling": __version__,
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "python": python_version(),
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "threads": torch.get_num_threads(),
        "processes": num_processes,
    }


def _record(nested: Nested, recipe: Recipe, about: Mapping[str, Any]) -> dict[str, Any]:
    return {"network": describe(nested), "recipe": recipe.to_dict(), "data": dict(about)}


def _difference(key: str, saved: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """The first entry, at any depth, that differs between the records of two runs under a key."""
    name, before, now = key, saved.get(key), wanted[key]
    while isinstance(before, dict) and isinstance(now, dict):
        entry = next(entry for entry in {**before, **now} if before.get(entry, _MISSING) != now.get(entry, _MISSING))
        name, before, now = f"{name}.{entry}", before.get(entry, _MISSING), now.get(entry, _MISSING)
    return f"its {name} is {_short(before)}, yours {_short(now)}"


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."
