"""What keeps a run while it goes on: its log, best weights and state, in memory if no folder is asked for."""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from nestling.prediction import Calibration
from nestling.running import Nested
from nestling.storage import packed, unpack
from nestling.training.checkpoint import State, pack_checkpoint, unpack_checkpoint


class Keeper(ABC):
    """Where a run keeps what must outlive a step; inside ``with`` it is this run's alone."""

    lines: list[dict[str, Any]]
    said: str | None = None
    """Something that the user should know about how the run was taken up."""
    how_to_go_on: str
    """What to tell someone who stops the run."""

    def __enter__(self) -> "Keeper":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.release()

    @abstractmethod
    def release(self) -> None:
        """Let others have it."""

    @abstractmethod
    def take_up(self, nested: Nested, optimiser: torch.optim.Optimizer) -> State | None:
        """Put network and optimiser where they were when they were kept last; None if they never were."""

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
    """Keeps everything until the process ends, and no longer."""

    how_to_go_on = "Nothing of it is kept: give an out folder to be able to go on."

    def __init__(self, *, checkpoints: bool = True) -> None:
        self._checkpoints = checkpoints
        self.lines = []
        self._best: tuple[dict[str, torch.Tensor], dict[str, Any]] | None = None
        self._last: tuple[dict[str, torch.Tensor], dict[str, Any]] | None = None

    def take_up(self, nested: Nested, optimiser: torch.optim.Optimizer) -> State | None:
        """Give the copies back."""
        if self._last is None:
            return None
        tensors = {name: tensor.clone() for name, tensor in self._last[0].items()}
        return unpack_checkpoint(tensors, json.loads(json.dumps(self._last[1])), nested, optimiser, Path("memory"))

    def checkpoint(self, state: State, nested: Nested, optimiser: torch.optim.Optimizer) -> None:
        """Copy everything, if someone may come back to it."""
        if not self._checkpoints:
            return
        tensors, record = pack_checkpoint(state, nested, optimiser)
        self._last = {name: tensor.detach().clone() for name, tensor in tensors.items()}, record

    def release(self) -> None:
        """Nobody else can have it."""

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
