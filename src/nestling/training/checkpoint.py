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
"""Limits on the counts and on the figures of a valid state."""


@dataclass
class State:
    """How far a run is: the next ``batch`` of ``epoch``, the sums of this epoch's figures, and the best epoch so far.

    ``best_score`` and ``best_epoch`` are of the highest validation; the saved weights are those of ``kept_epoch``. The
    data, widths and noise of a step depend only on the recipe's seed and the step's number, so that no random state is
    saved. ``steps_back`` counts how often the run went back to lower its learning rates. ``began`` is the epoch after
    which a complete run went on, 0 in a run that never did.
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
    began: int = 0


def pack_checkpoint(
    state: State, nested: Nested, optimiser: torch.optim.Optimizer
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the record that the rest of a run depends on."""
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
    """Restore network and optimiser as ``pack_checkpoint`` saved them; on an error neither is changed."""
    state = state_of(path, record)
    optimiser_state = {name.removeprefix(_PREFIX): t for name, t in tensors.items() if name.startswith(_PREFIX)}
    try:
        check_optimiser(optimiser, optimiser_state)
        unpack(nested, tensors, record, path)
    except RunError:
        raise
    except (KeyError, ValueError, RuntimeError, TypeError, AttributeError, NestlingError) as error:
        raise RunError(path, f"does not fit the run ({error})", _ADVICE) from None
    load_optimiser(optimiser, optimiser_state)
    return state


def state_of(path: Path, record: Mapping[str, Any]) -> State:
    """The state in a checkpoint's record, checked."""
    saved = record.get("state")
    saved = {"began": 0, **saved} if isinstance(saved, dict) else {}  # earlier versions have no began
    if saved.keys() != {field.name for field in fields(State)}:
        raise RunError(path, "does not say how far the run is", _ADVICE)
    state = State(**saved)
    counts = [state.step, state.epoch, state.batch, state.steps_back, state.began]
    counts += [epoch for epoch in (state.best_epoch, state.kept_epoch) if epoch is not None]
    counts += [record["epochs"]] if "epochs" in record else []  # of a run that is complete
    numbers: list[Any] = [state.seconds, *([] if state.best_score is None else [state.best_score])]
    valid_counts = all(isinstance(n, int) and not isinstance(n, bool) and 0 <= n < _MOST for n in counts)
    numbers += state.sums.values() if isinstance(state.sums, dict) else [None]
    valid_numbers = all(isinstance(number, int | float) and abs(number) < _LARGEST for number in numbers)
    if not (valid_counts and valid_numbers and isinstance(state.finished, bool)):
        raise RunError(path, "does not say how far the run is", _ADVICE)
    return state
