"""Divergences summed over very many weights, in pieces that stay in the caches of a processor."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from nestling.distributions.divergences import log_uniform_kl
from nestling.distributions.layout import flat_in_memory, piece_size
from nestling.distributions.special import SECH_ENDS, SechRoom

Divergence = Callable[[Tensor], Tensor]


def total(divergence: Divergence, log_alpha: Tensor, bounds: tuple[float, float] = (-torch.inf, torch.inf)) -> Tensor:
    """The sum of a divergence over all elements, each read within the bounds and without gradient past them.

    One pass finds the sum and the slope, in whose place the gradient is made.
    """
    value: Tensor = _Total.apply(divergence, log_alpha, bounds)  # type: ignore[no-untyped-call]
    return value


class _Total(torch.autograd.Function):
    """The sum and, from the same pass, the slope: the first gradient is made in its place, another finds it anew."""

    @staticmethod
    def forward(ctx: Any, divergence: Divergence, log_alpha: Tensor, bounds: tuple[float, float]) -> Tensor:  # noqa: ANN401
        ctx.divergence, ctx.bounds = divergence, bounds
        ctx.save_for_backward(log_alpha)
        value, slope = _parts(divergence, log_alpha, bounds)
        ctx.slope = slope if ctx.needs_input_grad[1] else None
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor, None]:  # noqa: ANN401
        (log_alpha,) = ctx.saved_tensors
        slope, ctx.slope = ctx.slope, None
        if slope is None:
            _, slope = _parts(ctx.divergence, log_alpha, ctx.bounds)
        return None, slope.mul_(gradient).to(log_alpha.dtype), None


def _parts(divergence: Divergence, log_alpha: Tensor, bounds: tuple[float, float]) -> tuple[Tensor, Tensor]:
    """The sum over a tensor and the slope at each of its elements, in no less than single precision."""
    dense = log_alpha.contiguous() if 0 in log_alpha.stride() else log_alpha
    dtype = torch.promote_types(log_alpha.dtype, torch.float32)
    slope = torch.empty_like(dense, dtype=dtype)
    by_table = divergence is log_uniform_kl and dtype == torch.float32 and dense.device.type == "cpu"
    room = SechRoom(min(dense.numel(), piece_size(dense))) if by_table else None
    pairs = zip(_pieces(dense), _pieces(slope), strict=True)
    return torch.stack([_of_piece(divergence, piece.to(dtype), own, bounds, room) for piece, own in pairs]).sum(), slope


def _pieces(tensor: Tensor) -> Iterator[Tensor]:
    flat = flat_in_memory(tensor)
    return iter(torch.split(flat, piece_size(flat)))


def _of_piece(
    divergence: Divergence, piece: Tensor, slope: Tensor, bounds: tuple[float, float], room: SechRoom | None
) -> Tensor:
    """The sum over a piece; the slope at each of its elements, zero past the bounds, goes to ``slope``."""
    least, most = _extremes(piece)
    inside = bounds[0] < least and most < bounds[1]
    held = piece if inside else piece.clamp(*bounds)
    known = max(least, bounds[0]) >= SECH_ENDS[0] and min(most, bounds[1]) <= SECH_ENDS[1]
    if room is not None and known:  # read off a table, the slope with it
        value = room.falling_sech_sum(held, slope)
    else:
        with torch.enable_grad():
            own = held.detach().requires_grad_()
            value = divergence(own).sum()
            slope.copy_(torch.autograd.grad(value, own)[0])
    if not inside:
        slope.masked_fill_((piece <= bounds[0]) | (piece >= bounds[1]), 0.0)
    return value.detach()


def _extremes(piece: Tensor) -> tuple[float, float]:
    """The least and the largest element; NaN if one is, or if to ask would keep a device waiting."""
    if piece.numel() == 0 or piece.device.type != "cpu":
        return math.nan, math.nan
    least, most = torch.aminmax(piece)
    return float(least), float(most)
