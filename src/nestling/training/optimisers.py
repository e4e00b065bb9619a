"""The optimiser of a recipe, with its state as plain tensors and numbers, so that it can be saved without a pickle."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from nestling.distributions.gates import gates_of
from nestling.distributions.layout import axes_in_memory, laid_out_as
from nestling.network import Nested
from nestling.training.recipe import Recipe
from nestling.training.schedules import largest_lr


def make_optimiser(nested: Nested, recipe: Recipe, num_steps: int) -> torch.optim.Optimizer:
    """Weights with decay, parameters without, and those with a learning rate of their own.

    These are orders, gates and log sigma^2.
    """
    decayed, plain, orders = _parameters(nested)
    lr = largest_lr(recipe, num_steps)
    groups = [
        {"params": decayed, "lr": lr, "weight_decay": recipe.weight_decay},
        {"params": plain, "lr": lr, "weight_decay": 0.0},
        {"params": orders, "lr": recipe.order_lr, "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    if recipe.optimiser == "sgd":
        optimiser: torch.optim.Optimizer = torch.optim.SGD(groups, momentum=recipe.momentum)
    else:
        optimiser = AdamW(groups, fused=_can_be_fused(groups))
    for group in optimiser.param_groups:
        group["largest_lr"] = group["lr"]
    return optimiser


class AdamW(torch.optim.AdamW):
    """AdamW that sees every tensor as it lies in memory.

    The fused kernel of a CPU goes through memory from end to end whatever the axes are, so what belongs to a parameter
    has to lie as it does; and it makes a copy, which it does not use, of a gradient whose channels come last.
    """

    def _init_group(self, group: Any, params: list[Tensor], grads: list[Tensor], *state: list[Tensor]) -> Any:  # noqa: ANN401
        for own in group["params"]:
            known = self.state.get(own, {})
            known.update({name: laid_out_as(own, value) for name, value in known.items() if value.shape == own.shape})
        result = super()._init_group(group, params, grads, *state)  # type: ignore[no-untyped-call]
        grads[:] = [laid_out_as(own, gradient) for own, gradient in zip(params, grads, strict=True)]
        orders = [axes_in_memory(own) for own in params]
        for tensors in (params, grads, *state[:-1]):  # the last are numbers of steps
            tensors[:] = [own.permute(axes) for own, axes in zip(tensors, orders, strict=False)]
        return result


def _can_be_fused(groups: list[dict[str, Any]]) -> bool:
    """Whether one kernel can take the step of all these parameters."""
    parameters = [parameter for group in groups for parameter in group["params"]]
    dense = all(own.permute(axes_in_memory(own)).is_contiguous() for own in parameters)
    return dense and all(own.device.type in ("cpu", "cuda") for own in parameters)


def set_lr(optimiser: torch.optim.Optimizer, factor: float) -> None:
    """Give every group its largest learning rate times a factor."""
    for group in optimiser.param_groups:
        group["lr"] = group["largest_lr"] * factor


def optimiser_tensors(optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The state by parameter number and name; what is a plain number becomes a tensor."""
    state = optimiser.state_dict()["state"]
    return {f"{number}.{name}": torch.as_tensor(value) for number, own in state.items() for name, value in own.items()}


def check_optimiser(optimiser: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Refuse, with a ValueError, a state that is not one of this optimiser's."""
    parameters = [p for group in optimiser.param_groups for p in group["params"]]
    entries = {"momentum_buffer"} if isinstance(optimiser, torch.optim.SGD) else {"exp_avg", "exp_avg_sq", "step"}
    for number, own in _by_parameter(tensors).items():
        if number >= len(parameters) or own.keys() != entries:
            raise ValueError(f"state of parameter {number} of the optimiser")
        like = parameters[number]
        for name, value in own.items():
            shape, dtype = (torch.Size(), torch.float32) if name == "step" else (like.shape, like.dtype)
            if value.shape != shape or value.dtype != dtype:
                raise ValueError(f"{name} of parameter {number} of the optimiser is {value.dtype} {tuple(value.shape)}")
            if not bool(torch.isfinite(value).all()) or (name in ("step", "exp_avg_sq") and bool((value < 0).any())):
                raise ValueError(f"{name} of parameter {number} of the optimiser has values that none has")


def load_optimiser(optimiser: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Give an optimiser the state that ``optimiser_tensors`` gave."""
    groups = optimiser.state_dict()["param_groups"]
    optimiser.load_state_dict({"state": _by_parameter(tensors), "param_groups": groups})


def _by_parameter(tensors: Mapping[str, Tensor]) -> dict[int, dict[str, Any]]:
    state: dict[int, dict[str, Any]] = {}
    for key, value in tensors.items():
        number, _, name = key.partition(".")
        state.setdefault(int(number), {})[name] = value
    return state


def _parameters(nested: Nested) -> tuple[list[nn.Parameter], list[nn.Parameter], list[nn.Parameter]]:
    decayed, plain, orders = [], [], []
    learned: list[nn.Module] = [*nested.orders.values(), *gates_of(nested).values()]
    own = {id(parameter) for part in learned for parameter in part.parameters()}
    for name, parameter in nested.named_parameters():
        if not parameter.requires_grad:
            continue
        if id(parameter) in own or name.endswith(".posterior.log_sigma2"):
            orders.append(parameter)
        elif parameter.ndim > 1 and ".posterior." not in name:
            decayed.append(parameter)
        else:
            plain.append(parameter)
    return decayed, plain, orders
