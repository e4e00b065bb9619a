"""Sends what the first process reads from a run folder to all processes: the others need no folder."""

import json
from pathlib import Path

import torch
from safetensors.torch import load, save

from nestling.processes import Processes
from nestling.running import Nested
from nestling.storage import packed, unpack
from nestling.training.checkpoint import State, pack_checkpoint, unpack_checkpoint
from nestling.training.kept_state import Keeper

_SENT = Path("the first process")


def take_up(keeper: Keeper, nested: Nested, optimiser: torch.optim.Optimizer, processes: Processes) -> State | None:
    """``keeper.take_up`` by the first process; then all processes get its state."""
    if processes.count == 1:
        return keeper.take_up(nested, optimiser)
    states: list[State | None] = []

    def take_up_here() -> bytes:
        states.append(keeper.take_up(nested, optimiser))
        _, record = pack_checkpoint(states[0] or State(), nested, optimiser)
        return json.dumps([states[0] is None, record, keeper.lines]).encode()

    is_new, record, lines = json.loads(processes.from_first(take_up_here))
    tensors = processes.from_first(lambda: _bytes(pack_checkpoint(State(), nested, optimiser)[0]))
    if processes.is_first:
        return states[0]
    keeper.lines = lines
    state = unpack_checkpoint(load(tensors), record, nested, optimiser, _SENT)
    return None if is_new else state


def share_buffers(nested: Nested, processes: Processes) -> None:
    """Give all processes the buffers of the first, such as running statistics: gradients do not keep them equal."""
    if processes.count == 1 or not list(nested.buffers()):
        return
    buffers = dict(nested.named_buffers())
    from_first = load(processes.from_first(lambda: _bytes(buffers)))
    for name, buffer in buffers.items():
        buffer.copy_(from_first[name])


def give_best(keeper: Keeper, nested: Nested, processes: Processes) -> None:
    """``keeper.give_best`` by the first process; then all processes get those weights."""
    if processes.count == 1:
        keeper.give_best(nested)
        return

    def give_best_here() -> bytes:
        keeper.give_best(nested)
        return json.dumps(packed(nested)[1]).encode()

    record = json.loads(processes.from_first(give_best_here))
    tensors = processes.from_first(lambda: _bytes(packed(nested)[0]))
    if not processes.is_first:
        unpack(nested, load(tensors), record, _SENT)


def _bytes(tensors: dict[str, torch.Tensor]) -> bytes:
    return save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})
