"""The state of a training run between two steps, as tensors and a record."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nestling.errors import NestlingError, RunError
from nestling.running import Nested
from nestling.storage import packed, unpack
from nestling.training.optimisers import check_optimiser, load_optimiser, optimiser_tensors

_ADVICE = "Delete it to start from the beginning."
_PREFIX = "optimiser."
_MOST, _LARGEST = 2**53, 1e300
"""No run counts further, and no figure of it is larger."""


@dataclass
class State:
    """How far a run is: the next ``batch`` of ``epoch``, what it has seen in this epoch, and the best so far.

    ``best_score`` and ``best_epoch`` are the highest validation; the weights in store are those of ``kept_epoch``.
    Data, widths and noise of a step follow from the recipe's seed and the step's number, so that no random state is
    part of it. ``steps_back`` counts how often the run went back to lower its learning rates.
    """

    step: int = 0
    epoch: int = 0
    batch: int = 0
    sums: dict[str, float] = field(default_factory=dict)
    best_score: float | None = None
    best_epoch: int | None = None
    kept_epoch: int | None = None
    seconds: float = 0.0
    steps_back: int = 0
    finished: bool = False


def pack_checkpoint(
    state: State, nested: Nested, optimiser: torch.optim.Optimizer
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Everything that the rest of a run depends on."""
    tensors, record = packed(nested)
    tensors |= {_PREFIX + name: tensor for name, tensor in optimiser_tensors(optimiser).items()}
    return tensors, {**record, "state": vars(state).copy()}


def unpack_checkpoint(
    tensors: Mapping[str, Tensor],
    record: Mapping[str, Any],
    nested: Nested,
    optimiser: torch.optim.Optimizer,
    path: Path,
) -> State:
    """Put a run where it was when ``pack_checkpoint`` was called; if that can't be, neither of them is changed."""
    state = state_of(path, record)
    own = {name.removeprefix(_PREFIX): t for name, t in tensors.items() if name.startswith(_PREFIX)}
    try:
        check_optimiser(optimiser, own)
        unpack(nested, tensors, record, path)
    except RunError:
        raise
    except (KeyError, ValueError, RuntimeError, TypeError, AttributeError, NestlingError) as error:
        raise RunError(path, f"does not fit the run ({error})", _ADVICE) from None
    load_optimiser(optimiser, own)
    return state


def state_of(path: Path, record: Mapping[str, Any]) -> State:
    """The state that a checkpoint's record holds."""
    saved = record.get("state")
    if not isinstance(saved, dict) or saved.keys() != {own.name for own in fields(State)}:
        raise RunError(path, "does not say how far the run is", _ADVICE)
    state = State(**saved)
    counts = [state.step, state.epoch, state.batch, state.steps_back]
    counts += [own for own in (state.best_epoch, state.kept_epoch) if own is not None]
    numbers: list[Any] = [state.seconds, *([] if state.best_score is None else [state.best_score])]
    whole = all(isinstance(own, int) and not isinstance(own, bool) and 0 <= own < _MOST for own in counts)
    numbers += state.sums.values() if isinstance(state.sums, dict) else [None]
    sound = all(isinstance(own, int | float) and abs(own) < _LARGEST for own in numbers)
    if not (whole and sound and isinstance(state.finished, bool)):
        raise RunError(path, "does not say how far the run is", _ADVICE)
    return state
