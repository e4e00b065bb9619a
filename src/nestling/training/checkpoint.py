"""The state of a training run between two steps, as one file."""

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nestling.errors import NestlingError, RunError
from nestling.network import Nested
from nestling.training.files import read_tensors, write_tensors
from nestling.training.optimisers import load_optimiser, optimiser_tensors
from nestling.training.saving import packed, unpack

CHECKPOINT_FILE = "checkpoint.safetensors"


@dataclass
class State:
    """How far a run is: the next ``batch`` of ``epoch``, what it has seen in this epoch, and the best so far."""

    step: int = 0
    epoch: int = 0
    batch: int = 0
    sums: dict[str, float] = field(default_factory=dict)
    best_score: float | None = None
    best_epoch: int | None = None
    seconds: float = 0.0
    finished: bool = False


def write_checkpoint(path: Path, state: State, nested: Nested, optimiser: torch.optim.Optimizer) -> None:
    """Write everything that the rest of a run depends on."""
    tensors, record = packed(nested)
    tensors |= {f"optimiser.{name}": tensor for name, tensor in optimiser_tensors(optimiser).items()}
    tensors["random"] = torch.get_rng_state()
    if torch.cuda.is_available():
        tensors["random_cuda"] = torch.cuda.get_rng_state()
    write_tensors(path, tensors, {**record, "state": vars(state).copy()})


def read_checkpoint(path: Path, nested: Nested, optimiser: torch.optim.Optimizer) -> State:
    """Put a run back where ``write_checkpoint`` left it, torch's random state included."""
    tensors, record = read_tensors(path)
    state = state_of(path, record)
    prefix = "optimiser."
    own: dict[str, Tensor] = {name[len(prefix) :]: t for name, t in tensors.items() if name.startswith(prefix)}
    try:
        unpack(nested, tensors, record, path)
        load_optimiser(optimiser, own)
        torch.set_rng_state(tensors["random"])
        if "random_cuda" in tensors and torch.cuda.is_available():
            torch.cuda.set_rng_state(tensors["random_cuda"])
    except RunError:
        raise
    except (KeyError, ValueError, RuntimeError, TypeError, AttributeError, NestlingError) as error:
        raise RunError(path, f"does not fit the run ({error})", "Delete it to start from the beginning.") from None
    return state


def state_of(path: Path, record: dict[str, Any]) -> State:
    """The state that a checkpoint's record holds."""
    saved = record.get("state")
    if not isinstance(saved, dict) or saved.keys() != {own.name for own in fields(State)}:
        raise RunError(path, "does not say how far the run is", "Delete it to start from the beginning.")
    state = State(**saved)
    counts = (state.step, state.epoch, state.batch)
    numbers = [own for own in (state.best_score, state.best_epoch, state.seconds) if own is not None]
    whole = all(isinstance(own, int) and own >= 0 for own in counts) and isinstance(state.sums, dict)
    if not whole or not all(isinstance(own, int | float) for own in numbers):
        raise RunError(path, "does not say how far the run is", "Delete it to start from the beginning.")
    return state
