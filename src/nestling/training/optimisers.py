"""The optimiser of a recipe, with its state as plain tensors and numbers, so that it can be saved without a pickle."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from nestling.distributions.layout import axes_in_memory, laid_out_as
from nestling.distributions.learned import Learned
from nestling.network import Nested
from nestling.network.layers import layer_type
from nestling.torch_parts import ArrangedAdamW
from nestling.training.recipe import Recipe
from nestling.training.schedules import largest_lr


def make_optimiser(nested: Nested, recipe: Recipe, num_steps: int) -> torch.optim.Optimizer:
    """Weights with decay, parameters without, and those of distributions that say how they move (``Learned``)."""
    found = _by_rate(nested)
    lr = largest_lr(recipe, num_steps, is_delicate=_is_delicate(nested.module))
    groups = [
        {"params": found["decayed"], "lr": lr, "weight_decay": recipe.weight_decay},
        {"params": found["weights"], "lr": lr, "weight_decay": 0.0},
        {"params": found["distributions"], "lr": recipe.order_lr, "weight_decay": 0.0},
        {"params": found["natural"], "lr": 0.0, "weight_decay": 0.0, "natural_rate": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    if recipe.optimiser == "sgd":
        optimiser: torch.optim.Optimizer = SGD(groups, momentum=recipe.momentum)
    else:
        optimiser = AdamW(groups, fused=_can_be_fused(groups))
    for group in optimiser.param_groups:
        group["largest_lr"] = group["lr"]
    return optimiser


@torch.no_grad()
def natural_steps(optimiser: torch.optim.Optimizer) -> None:
    """Take a natural-gradient step in log sigma^2 wherever a group has a ``natural_rate``, and use the gradient up.

    With u = natural_rate * gradient, sigma^2 is divided by 1 + u + u^2 / 2, which keeps it positive. For a loss with
    the divergence from a normal prior and natural_rate = 2 (1 - beta2) num_examples this is IVON's step of the Hessian
    (Shen et al. 2024, algorithm 1, line 5): their h + delta is 1 / (num_examples sigma^2), and 2 / sigma^2 times the
    gradient in log sigma^2 is their estimate of the Hessian, by any way of drawing weights. A weight that no cut of the
    step keeps has the gradient zero, and stays.
    """
    for group in optimiser.param_groups:
        for scale in group["params"] if "natural_rate" in group else ():
            if scale.grad is not None:
                step = scale.grad * group["natural_rate"]
                scale.sub_(torch.log1p(step.addcmul(step, step, value=0.5)))
                scale.grad = None


class SGD(torch.optim.SGD):
    """SGD with momentum, and natural steps where a group asks for them."""

    def step(self, closure: Any = None) -> Any:  # noqa: ANN401
        """One step."""
        natural_steps(self)
        return super().step(closure)


class AdamW(ArrangedAdamW):
    """AdamW, and natural steps where a group asks for them, that sees every tensor as it lies in memory.

    The fused kernel of a CPU goes through memory from end to end whatever the axes are, so what belongs to a parameter
    has to lie as it does; and it makes a copy, which it does not use, of a gradient whose channels come last.
    """

    def step(self, closure: Any = None) -> Any:  # noqa: ANN401
        """One step."""
        natural_steps(self)
        return super().step(closure)

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


def _is_delicate(module: nn.Module) -> bool:
    """Whether a network has convolutions, and no norm that would undo a change of their scale."""
    has_kernels = any(parameter.ndim > 2 for parameter in module.parameters())
    return has_kernels and not any(layer_type(part).is_norm for part in module.modules())


def _can_be_fused(groups: list[dict[str, Any]]) -> bool:
    """Whether one kernel can take the step of all these parameters."""
    parameters = [parameter for group in groups for parameter in group["params"]]
    dense = all(own.permute(axes_in_memory(own)).is_contiguous() for own in parameters)
    return dense and all(own.device.type in ("cpu", "cuda") for own in parameters)


def set_lr(optimiser: torch.optim.Optimizer, factor: float) -> None:
    """Give every group its largest learning rate times a factor."""
    for group in optimiser.param_groups:
        group["lr"] = group["largest_lr"] * factor


def set_natural_rate(optimiser: torch.optim.Optimizer, rate: float) -> None:
    """Give the groups of natural steps their rate: the natural gradient is this times that of the mean loss."""
    for group in optimiser.param_groups:
        if "natural_rate" in group:
            group["natural_rate"] = rate


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


def clipped_parameters(optimiser: torch.optim.Optimizer) -> list[nn.Parameter]:
    """The parameters whose gradients are clipped together: all but those of natural steps, which have other units."""
    groups = [group for group in optimiser.param_groups if "natural_rate" not in group]
    return [parameter for group in groups for parameter in group["params"]]


def _by_rate(nested: Nested) -> dict[str, list[nn.Parameter]]:
    """The parameters that are learned, by how they move; one distribution speaks for those within it."""
    rates: dict[int, str] = {}
    for part in nested.modules():
        if isinstance(part, Learned):
            rates = {id(parameter): rate for parameter, rate in part.by_rate()} | rates
    found: dict[str, list[nn.Parameter]] = {name: [] for name in ("decayed", "weights", "distributions", "natural")}
    for parameter in nested.parameters():
        if parameter.requires_grad:
            usual = "decayed" if parameter.ndim > 1 else "weights"
            found[rates.get(id(parameter), usual)].append(parameter)
    return found
