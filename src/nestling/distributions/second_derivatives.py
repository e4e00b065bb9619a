"""Gradients of functions whose backward pass is written by hand, where they are to be differentiated again."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def differentiable_gradients(
    function: Callable[..., Tensor], inputs: Sequence[Tensor], gradient: Tensor
) -> tuple[Tensor | None, ...]:
    """The gradients of a function for each of its inputs, by autograd, so that they have gradients too.

    A backward pass that is written by hand returns these if gradients are enabled in it, as ``create_graph=True`` does.
    torch's ``once_differentiable`` would not do: it raises no error if the output's gradient is a constant, as in
    gradient penalties, whose gradients are then silently wrong.

    Args:
        function: The function that was differentiated, in torch's operations.
        inputs: Its inputs; they count as independent, even if one was computed from another.
        gradient: The gradient of its output.
    """
    copies = [tensor.view_as(tensor) for tensor in inputs]
    needed = [tensor for tensor in copies if tensor.requires_grad]
    gradients = iter(torch.autograd.grad(function(*copies), needed, gradient, create_graph=True, allow_unused=True))
    return tuple(next(gradients) if tensor.requires_grad else None for tensor in copies)
