"""Divergences summed over very many weights, in pieces that stay in the caches of a processor."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from nestling.distributions.divergences import log_uniform_kl
from nestling.distributions.layout import flat_in_memory
from nestling.distributions.special import piece_size, sech_integral_slope, sech_integral_sum

Divergence = Callable[[Tensor], Tensor]


def total(divergence: Divergence, log_alpha: Tensor, bounds: tuple[float, float] = (-torch.inf, torch.inf)) -> Tensor:
    """The sum of a divergence over all elements, each read within the bounds and without gradient past them.

    Nothing is kept for the gradient but the argument itself.
    """
    value: Tensor = _Total.apply(divergence, log_alpha, bounds)  # type: ignore[no-untyped-call]
    return value


class _Total(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, divergence: Divergence, log_alpha: Tensor, bounds: tuple[float, float]) -> Tensor:  # noqa: ANN401
        ctx.divergence, ctx.bounds = divergence, bounds
        ctx.save_for_backward(log_alpha)
        return torch.stack([_value(divergence, piece, bounds) for piece in _pieces(log_alpha)]).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor, None]:  # noqa: ANN401
        (log_alpha,) = ctx.saved_tensors
        dense = log_alpha.contiguous() if 0 in log_alpha.stride() else log_alpha
        result = torch.empty_like(dense)
        for piece, out in zip(_pieces(dense), _pieces(result), strict=True):
            out.copy_(_slope(ctx.divergence, piece, ctx.bounds).mul_(gradient))
        return None, result, None


def _pieces(tensor: Tensor) -> Iterator[Tensor]:
    flat = flat_in_memory(tensor)
    return iter(torch.split(flat, piece_size(flat)))


def _value(divergence: Divergence, piece: Tensor, bounds: tuple[float, float]) -> Tensor:
    """The sum over a piece, in no less than single precision."""
    held = piece.to(torch.promote_types(piece.dtype, torch.float32)).clamp(*bounds)
    if divergence is log_uniform_kl:  # which has a sum of its own
        return sech_integral_sum(held.neg_())
    return divergence(held).sum()


def _slope(divergence: Divergence, piece: Tensor, bounds: tuple[float, float]) -> Tensor:
    """The slope of a divergence at each element, zero past the bounds."""
    if divergence is log_uniform_kl:  # and a slope
        slope = sech_integral_slope(-piece).neg_()
    else:
        with torch.enable_grad():
            own = piece.detach().requires_grad_()
            slope = torch.autograd.grad(divergence(own).sum(), own)[0]
    result: Tensor = torch.ops.aten.hardtanh_backward(slope, piece.to(slope.dtype), *bounds)
    return result
