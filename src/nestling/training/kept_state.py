"""Keeps the log, best weights and state of a run in progress, in memory if there is no folder."""

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
    """Keeps what must outlive a step; within ``with`` no other run can use the same place."""

    lines: list[dict[str, Any]]
    notice: str | None = None
    """A line for the user about how the run was resumed."""
    how_to_go_on: str
    """The line for a user who stops the run."""

    def __enter__(self) -> "Keeper":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.release()

    @abstractmethod
    def release(self) -> None:
        """Let other runs use the place."""

    @abstractmethod
    def take_up(self, nested: Nested, optimiser: torch.optim.Optimizer) -> State | None:
        """Restore network and optimiser from the last checkpoint, and return its state; None if there is none."""

    @abstractmethod
    def checkpoint(self, state: State, nested: Nested, optimiser: torch.optim.Optimizer) -> None:
        """Keep the state of the run."""

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
    """Keeps everything in memory, until the process ends."""

    how_to_go_on = "Nothing of it is kept: give an out folder to be able to go on."

    def __init__(self, *, checkpoints: bool = True) -> None:
        self._checkpoints = checkpoints
        self.lines = []
        self._best: tuple[dict[str, torch.Tensor], dict[str, Any]] | None = None
        self._last: tuple[dict[str, torch.Tensor], dict[str, Any]] | None = None

    def take_up(self, nested: Nested, optimiser: torch.optim.Optimizer) -> State | None:
        """Restore network and optimiser from the copies."""
        if self._last is None:
            return None
        tensors = {name: tensor.clone() for name, tensor in self._last[0].items()}
        return unpack_checkpoint(tensors, json.loads(json.dumps(self._last[1])), nested, optimiser, Path("memory"))

    def checkpoint(self, state: State, nested: Nested, optimiser: torch.optim.Optimizer) -> None:
        """Copy network and optimiser, if the run may go back to them."""
        if not self._checkpoints:
            return
        tensors, record = pack_checkpoint(state, nested, optimiser)
        self._last = {name: tensor.detach().clone() for name, tensor in tensors.items()}, record

    def release(self) -> None:
        """Do nothing: no other run can use this memory."""

    def log(self, line: dict[str, Any]) -> None:
        """Keep a line in memory."""
        self.lines.append(line)

    def keep_best(self, nested: Nested, notes: Mapping[str, Any]) -> None:
        """Copy the weights."""
        tensors, record = packed(nested)
        self._best = {name: tensor.clone() for name, tensor in tensors.items()}, record

    def give_best(self, nested: Nested) -> None:
        """Restore the weights from the copy."""
        if self._best is not None:
            unpack(nested, *self._best, Path("memory"))

    def finish(self, state: State, calibrations: list[Calibration]) -> None:
        """Do nothing."""
