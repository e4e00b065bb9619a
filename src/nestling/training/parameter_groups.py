"""The parameters of a network in the groups of an optimiser, and the learning rates of the groups."""

from typing import Any

import torch
from torch import nn

from nestling.distributions import Learned
from nestling.running import Nested
from nestling.running.layers import layer_type
from nestling.training.optimisers import OPTIMISERS
from nestling.training.recipe import Recipe
from nestling.training.schedules import largest_lr


def make_optimiser(nested: Nested, recipe: Recipe, num_steps: int) -> torch.optim.Optimizer:
    """The recipe's optimiser, with groups for weights with decay, other parameters, and the parameters of distributions
    (``Learned``), some of which are moved by natural-gradient steps before each step of the optimiser."""
    by_rate = _by_rate(nested)
    lr = largest_lr(recipe, num_steps, is_delicate=_is_delicate(nested.module))
    groups = [
        {"params": by_rate["decayed"], "lr": lr, "weight_decay": recipe.weight_decay},
        {"params": by_rate["weights"], "lr": lr, "weight_decay": 0.0},
        {"params": by_rate["distributions"], "lr": recipe.order_lr, "weight_decay": 0.0},
        {"params": by_rate["natural"], "lr": 0.0, "weight_decay": 0.0, "natural_rate": 0.0},
    ]
    name = "adamw" if recipe.optimiser == "auto" else recipe.optimiser
    optimiser = OPTIMISERS[name].make([group for group in groups if group["params"]], recipe.momentum)
    optimiser.register_step_pre_hook(natural_steps)
    for group in optimiser.param_groups:
        group["largest_lr"] = group["lr"]
    return optimiser


@torch.no_grad()
def natural_steps(optimiser: torch.optim.Optimizer, *_: Any) -> None:  # noqa: ANN401
    """Take a natural-gradient step in log sigma^2 for groups with a ``natural_rate``, and clear their gradients.

    With u = natural_rate * gradient, sigma^2 is divided by 1 + u + u^2 / 2, which keeps it positive. For a loss with
    the divergence from a normal prior and natural_rate = 2 (1 - beta2) num_examples this is IVON's step of the Hessian
    (Shen et al. 2024, algorithm 1, line 5): their h + delta is 1 / (num_examples sigma^2), and 2 / sigma^2 times the
    gradient in log sigma^2 is their estimate of the Hessian, by any way of drawing weights. A weight that no cut of the
    step keeps has a zero gradient, and does not change.
    """
    for group in optimiser.param_groups:
        for scale in group["params"] if "natural_rate" in group else ():
            if scale.grad is not None:
                step = scale.grad * group["natural_rate"]
                scale.sub_(torch.log1p(step.addcmul(step, step, value=0.5)))
                scale.grad = None


def _is_delicate(module: nn.Module) -> bool:
    """Whether a network has convolutions, and no norm that would undo a change of their scale."""
    has_kernels = any(parameter.ndim > 2 for parameter in module.parameters())
    return has_kernels and not any(layer_type(layer).is_norm for layer in module.modules())


def set_lr(optimiser: torch.optim.Optimizer, factor: float) -> None:
    """Give every group its largest learning rate times a factor."""
    for group in optimiser.param_groups:
        group["lr"] = group["largest_lr"] * factor


def set_natural_rate(optimiser: torch.optim.Optimizer, rate: float) -> None:
    """Set the rate of natural steps: the factor from the gradient of the mean loss to the natural gradient."""
    for group in optimiser.param_groups:
        if "natural_rate" in group:
            group["natural_rate"] = rate


def clipped_parameters(optimiser: torch.optim.Optimizer) -> list[nn.Parameter]:
    """The parameters whose gradients are clipped together: all except those of natural steps, whose units differ."""
    groups = [group for group in optimiser.param_groups if "natural_rate" not in group]
    return [parameter for group in groups for parameter in group["params"]]


def _by_rate(nested: Nested) -> dict[str, list[nn.Parameter]]:
    """The trainable parameters by kind of step; an outer distribution overrules those within it."""
    rates: dict[int, str] = {}
    for module in nested.modules():
        if isinstance(module, Learned):
            rates = {id(parameter): rate for parameter, rate in module.by_rate()} | rates
    groups: dict[str, list[nn.Parameter]] = {name: [] for name in ("decayed", "weights", "distributions", "natural")}
    for parameter in nested.parameters():
        if parameter.requires_grad:
            default = "decayed" if parameter.ndim > 1 else "weights"
            groups[rates.get(id(parameter), default)].append(parameter)
    return groups
