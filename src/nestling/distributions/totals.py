"""Divergences summed over very many weights, in pieces that stay in the caches of a processor."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from nestling.distributions.divergences import log_uniform_kl
from nestling.distributions.layout import flat_in_memory
from nestling.distributions.special import piece_size, sech_integral_with_slope


def total(divergence: Callable[[Tensor], Tensor], log_alpha: Tensor) -> Tensor:
    """The sum of a divergence over all elements; what it keeps for its gradient is the gradient."""
    value: Tensor = _Total.apply(divergence, log_alpha)  # type: ignore[no-untyped-call]
    return value


class _Total(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, divergence: Callable[[Tensor], Tensor], log_alpha: Tensor) -> Tensor:  # noqa: ANN401
        log_alpha = log_alpha.contiguous() if 0 in log_alpha.stride() else log_alpha
        slope = torch.empty_like(log_alpha) if ctx.needs_input_grad[1] else None
        size = piece_size(log_alpha)
        sums = []
        for number, piece in enumerate(torch.split(flat_in_memory(log_alpha), size)):
            value, own_slope = _with_slope(divergence, piece)
            sums.append(value)
            if slope is not None:
                flat_in_memory(slope)[number * size : number * size + len(piece)] = own_slope
        ctx.save_for_backward(slope)
        return torch.stack(sums).sum() if sums else log_alpha.new_zeros(())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor]:  # noqa: ANN401
        return None, gradient * ctx.saved_tensors[0]


def _with_slope(divergence: Callable[[Tensor], Tensor], piece: Tensor) -> tuple[Tensor, Tensor]:
    """The sum over a piece and the slope of each of its elements."""
    if divergence is log_uniform_kl:  # which knows its slope
        value, slope = sech_integral_with_slope(-piece)
        return value.sum(), slope.neg_()
    with torch.enable_grad():
        own = piece.detach().requires_grad_()
        value = divergence(own).sum()
    return value.detach(), torch.autograd.grad(value, own)[0]
