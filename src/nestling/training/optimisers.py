"""The registry of optimisers, whose state is plain tensors and numbers, so that it can be saved without a pickle."""

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
class Held:
    """What an optimiser holds for a parameter: a tensor of its shape and dtype, or one number of some ``dtype``.

    A ``plain`` number is a Python float or int (torch.float64, torch.int64). No value is below ``least``.
    """

    dtype: torch.dtype | None = None
    plain: bool = False
    least: float = -math.inf


@dataclass(frozen=True)
class OptimiserType:
    """An optimiser that a recipe can name: its class, and all of what it remembers between two steps."""

    kind: type[torch.optim.Optimizer]
    make: Callable[[Groups, float], torch.optim.Optimizer]
    """Makes it from groups of parameters, which have ``lr`` and ``weight_decay``, and the recipe's momentum."""
    state: Mapping[str, Held]
    """What it holds for each parameter, by name."""
    group_state: tuple[str, ...] = ()
    """Names of the numbers in each group that its own steps change."""
    lr: Callable[[int, bool], float] = lambda num_steps, is_delicate: _LONG_LR
    """The largest learning rate where the recipe leaves it open, by the number of steps and ``_is_delicate``."""


class AdamW(ArrangedAdamW):
    """AdamW that sees every tensor as it lies in memory.

    The fused kernel of a CPU goes through memory from end to end whatever the axes are, so what belongs to a parameter
    has to lie as it does; and it makes a copy, which it does not use, of a gradient whose channels come last.
    """

    def lay_out(self, params: list[Tensor]) -> None:
        """The state as the parameters lie."""
        for own in params:
            known = self.state.get(own, {})
            known.update({name: laid_out_as(own, value) for name, value in known.items() if value.shape == own.shape})

    def arrange(self, params: list[Tensor], grads: list[Tensor], *state: list[Tensor]) -> None:
        """Every tensor with its axes in the order of its parameter's memory."""
        grads[:] = [laid_out_as(own, gradient) for own, gradient in zip(params, grads, strict=True)]
        orders = [axes_in_memory(own) for own in params]
        for tensors in (params, grads, *state[:-1]):  # the last are numbers of steps
            tensors[:] = [own.permute(axes) for own, axes in zip(tensors, orders, strict=False)]


def _can_be_fused(groups: list[dict[str, Any]]) -> bool:
    """Whether one kernel can take the step of all these parameters."""
    parameters = [parameter for group in groups for parameter in group["params"]]
    dense = all(own.permute(axes_in_memory(own)).is_contiguous() for own in parameters)
    return dense and all(own.device.type in ("cpu", "cuda") for own in parameters)


def _adamw_lr(num_steps: int, is_delicate: bool) -> float:
    """Grows with the root of the steps that a short run lacks, but for networks with convolutions and without norms.

    Shared by several widths, such a network stays where it started at the larger rates (docs/decisions/0014).
    """
    return _LONG_LR if is_delicate else min(_SHORT_LR, _LONG_LR * math.sqrt(max(1.0, _LONG_RUN / num_steps)))


OPTIMISERS: dict[str, OptimiserType] = {
    "adamw": OptimiserType(
        AdamW,
        lambda groups, momentum: AdamW(groups, fused=_can_be_fused(groups)),
        {"exp_avg": Held(), "exp_avg_sq": Held(least=0), "step": Held(torch.float32, least=0)},
        lr=_adamw_lr,
    ),
    "sgd": OptimiserType(
        torch.optim.SGD,
        lambda groups, momentum: torch.optim.SGD(groups, momentum=momentum),
        {"momentum_buffer": Held()},
        lr=lambda num_steps, is_delicate: _SGD_LR,
    ),
}
"""The optimisers of a recipe by name; the ``auto`` of a recipe is one of them."""

_GROUP = "group"


def optimiser_tensors(optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The state by parameter number and name; what is a plain number becomes a tensor."""
    state = optimiser.state_dict()["state"]
    found = {f"{number}.{name}": _as_tensor(value) for number, own in state.items() for name, value in own.items()}
    for number, group in enumerate(optimiser.param_groups):
        found |= {f"{_GROUP}{number}.{name}": _as_tensor(group[name]) for name in _type_of(optimiser).group_state}
    return found


def check_optimiser(optimiser: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Refuse, with a ValueError, a state that is not one of this optimiser's."""
    known = _type_of(optimiser)
    parameters = [p for group in optimiser.param_groups for p in group["params"]]
    state, groups = _by_owner(tensors)
    if any(own.keys() != set(known.group_state) for own in groups.values()) or (
        known.group_state and groups.keys() != set(range(len(optimiser.param_groups)))
    ):
        raise ValueError("state of the groups of the optimiser")
    for number, own in state.items():
        if number >= len(parameters) or own.keys() != known.state.keys():
            raise ValueError(f"state of parameter {number} of the optimiser")
        like = parameters[number]
        for name, value in own.items():
            held = known.state[name]
            shape, dtype = (like.shape, like.dtype) if held.dtype is None else (torch.Size(), held.dtype)
            if value.shape != shape or value.dtype != dtype:
                raise ValueError(f"{name} of parameter {number} of the optimiser is {value.dtype} {tuple(value.shape)}")
            if not bool(torch.isfinite(value).all()) or bool((value < held.least).any()):
                raise ValueError(f"{name} of parameter {number} of the optimiser has values that none has")


def load_optimiser(optimiser: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Give an optimiser the state that ``optimiser_tensors`` gave."""
    known, (state, groups) = _type_of(optimiser), _by_owner(tensors)
    plain = {n: {k: v.item() if known.state[k].plain else v for k, v in own.items()} for n, own in state.items()}
    optimiser.load_state_dict({"state": plain, "param_groups": optimiser.state_dict()["param_groups"]})
    for number, own in groups.items():
        optimiser.param_groups[number].update({name: value.item() for name, value in own.items()})


def _type_of(optimiser: torch.optim.Optimizer) -> OptimiserType:
    return next(own for own in OPTIMISERS.values() if own.kind is type(optimiser))


def _as_tensor(value: Any) -> Tensor:  # noqa: ANN401
    return torch.tensor(value, dtype=torch.float64) if isinstance(value, float) else torch.as_tensor(value)


def _by_owner(tensors: Mapping[str, Tensor]) -> tuple[dict[int, dict[str, Tensor]], dict[int, dict[str, Tensor]]]:
    """The state of each parameter, and of each group."""
    state: dict[int, dict[str, Tensor]] = {}
    groups: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        number, _, name = key.partition(".")
        of = groups if number.startswith(_GROUP) else state
        of.setdefault(int(number.removeprefix(_GROUP)), {})[name] = value
    return state, groups
