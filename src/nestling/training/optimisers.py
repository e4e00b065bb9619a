"""The registry of optimisers, whose state is plain tensors and numbers, so that it is saved without a pickle."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nestling.distributions import axes_in_memory, laid_out_as
from nestling.torch_parts import ArrangedAdamW

Groups = list[dict[str, Any]]
_LONG_RUN = 5_000
_LONG_LR, _SHORT_LR, _SGD_LR = 3e-3, 1e-2, 1e-1
"""Learning rates of adamw in a long and in a very short run (experiments/bn3), and of sgd (docs/decisions/0014)."""


@dataclass(frozen=True)
class StateEntry:
    """An entry of an optimiser's state per parameter: a tensor of its shape and dtype, or one number of ``dtype``.

    A ``plain`` number is a Python float or int (torch.float64, torch.int64). No value is below ``least``.
    """

    dtype: torch.dtype | None = None
    plain: bool = False
    least: float = -math.inf


@dataclass(frozen=True)
class OptimiserType:
    """An optimiser that a recipe can name: its class, and its whole state between two steps."""

    kind: type[torch.optim.Optimizer]
    make: Callable[[Groups, float], torch.optim.Optimizer]
    """Makes the optimiser from groups of parameters with ``lr`` and ``weight_decay``, and the recipe's momentum."""
    state: Mapping[str, StateEntry]
    """The entries of its state per parameter, by name."""
    group_state: tuple[str, ...] = ()
    """Names of the numbers in each group that its steps change."""
    lr: Callable[[int, bool], float] = lambda num_steps, is_delicate: _LONG_LR
    """The largest learning rate if the recipe has none, by the number of steps and ``_is_delicate``."""


class AdamW(ArrangedAdamW):
    """AdamW whose kernel gets every tensor with its axes in the order of memory.

    The fused kernel of a CPU goes through memory from end to end whatever the axes are, so the state of a parameter and
    its gradient must have the parameter's layout. Of a gradient with its channels last the kernel would also make a
    copy that it does not use.
    """

    def lay_out(self, params: list[Tensor]) -> None:
        """Give the state of each parameter the parameter's layout."""
        for param in params:
            state = self.state.get(param, {})
            state.update({name: laid_out_as(param, t) for name, t in state.items() if t.shape == param.shape})

    def arrange(self, params: list[Tensor], grads: list[Tensor], *state: list[Tensor]) -> None:
        """Permute the axes of every tensor to the order of its parameter's memory."""
        grads[:] = [laid_out_as(param, gradient) for param, gradient in zip(params, grads, strict=True)]
        orders = [axes_in_memory(param) for param in params]
        for tensors in (params, grads, *state[:-1]):  # the last are numbers of steps
            tensors[:] = [tensor.permute(axes) for tensor, axes in zip(tensors, orders, strict=False)]


def _can_be_fused(groups: list[dict[str, Any]]) -> bool:
    """Whether the fused kernel can take the step of all these parameters."""
    parameters = [parameter for group in groups for parameter in group["params"]]
    dense = all(parameter.permute(axes_in_memory(parameter)).is_contiguous() for parameter in parameters)
    return dense and all(parameter.device.type in ("cpu", "cuda") for parameter in parameters)


def _adamw_lr(num_steps: int, is_delicate: bool) -> float:
    """The rate grows as the root of ``_LONG_RUN / num_steps``, except for networks with convolutions and no norms.

    Such networks, shared by several widths, do not learn at the larger rates (docs/decisions/0014).
    """
    return _LONG_LR if is_delicate else min(_SHORT_LR, _LONG_LR * math.sqrt(max(1.0, _LONG_RUN / num_steps)))


OPTIMISERS: dict[str, OptimiserType] = {
    "adamw": OptimiserType(
        AdamW,
        lambda groups, momentum: AdamW(groups, fused=_can_be_fused(groups)),
        {"exp_avg": StateEntry(), "exp_avg_sq": StateEntry(least=0), "step": StateEntry(torch.float32, least=0)},
        lr=_adamw_lr,
    ),
    "sgd": OptimiserType(
        torch.optim.SGD,
        lambda groups, momentum: torch.optim.SGD(groups, momentum=momentum),
        {"momentum_buffer": StateEntry()},
        lr=lambda num_steps, is_delicate: _SGD_LR,
    ),
}
"""The optimisers of a recipe by name; the ``auto`` of a recipe is one of them."""

_GROUP = "group"


def optimiser_tensors(optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The state by parameter number and name; plain numbers become tensors."""
    state = optimiser.state_dict()["state"]
    tensors = {f"{n}.{name}": _as_tensor(value) for n, entries in state.items() for name, value in entries.items()}
    for number, group in enumerate(optimiser.param_groups):
        tensors |= {f"{_GROUP}{number}.{name}": _as_tensor(group[name]) for name in _type_of(optimiser).group_state}
    return tensors


def check_optimiser(optimiser: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Raise a ValueError if the tensors can't be a state of this optimiser."""
    kind = _type_of(optimiser)
    parameters = [p for group in optimiser.param_groups for p in group["params"]]
    state, groups = _by_owner(tensors)
    if any(entries.keys() != set(kind.group_state) for entries in groups.values()) or (
        kind.group_state and groups.keys() != set(range(len(optimiser.param_groups)))
    ):
        raise ValueError("state of the groups of the optimiser")
    for number, entries in state.items():
        if number >= len(parameters) or entries.keys() != kind.state.keys():
            raise ValueError(f"state of parameter {number} of the optimiser")
        parameter = parameters[number]
        for name, value in entries.items():
            entry = kind.state[name]
            shape, dtype = (parameter.shape, parameter.dtype) if entry.dtype is None else (torch.Size(), entry.dtype)
            if value.shape != shape or value.dtype != dtype:
                raise ValueError(f"{name} of parameter {number} of the optimiser is {value.dtype} {tuple(value.shape)}")
            if not bool(torch.isfinite(value).all()) or bool((value < entry.least).any()):
                raise ValueError(f"{name} of parameter {number} of the optimiser has values that none has")


def load_optimiser(optimiser: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Give an optimiser the state that ``optimiser_tensors`` gave."""
    kind, (state, groups) = _type_of(optimiser), _by_owner(tensors)
    plain = {n: {k: v.item() if kind.state[k].plain else v for k, v in entries.items()} for n, entries in state.items()}
    optimiser.load_state_dict({"state": plain, "param_groups": optimiser.state_dict()["param_groups"]})
    for number, entries in groups.items():
        optimiser.param_groups[number].update({name: value.item() for name, value in entries.items()})


def _type_of(optimiser: torch.optim.Optimizer) -> OptimiserType:
    return next(known for known in OPTIMISERS.values() if known.kind is type(optimiser))


def _as_tensor(value: Any) -> Tensor:  # noqa: ANN401
    return torch.tensor(value, dtype=torch.float64) if isinstance(value, float) else torch.as_tensor(value)


def _by_owner(tensors: Mapping[str, Tensor]) -> tuple[dict[int, dict[str, Tensor]], dict[int, dict[str, Tensor]]]:
    """The state of each parameter, and of each group."""
    state: dict[int, dict[str, Tensor]] = {}
    groups: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        number, _, name = key.partition(".")
        owners = groups if number.startswith(_GROUP) else state
        owners.setdefault(int(number.removeprefix(_GROUP)), {})[name] = value
    return state, groups
