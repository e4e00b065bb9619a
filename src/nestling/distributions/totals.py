"""Sums of divergences over many weights, piece by piece, so that each piece stays in the processor's caches."""

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from nestling.distributions.divergences import log_uniform_kl
from nestling.distributions.layout import flat_in_memory, piece_size
from nestling.distributions.second_derivatives import differentiable_gradients
from nestling.distributions.special import SECH_ENDS, SechWorkspace

Divergence = Callable[[Tensor], Tensor]


def total(divergence: Divergence, log_alpha: Tensor, bounds: tuple[float, float] = (-torch.inf, torch.inf)) -> Tensor:
    """The sum of a divergence over all elements, clamped to the bounds, with zero gradient outside them.

    One pass computes the sum and the slope; the gradient then overwrites the slope.
    """
    value: Tensor = _Total.apply(divergence, log_alpha, bounds)  # type: ignore[no-untyped-call]
    return value


class _Total(torch.autograd.Function):
    """The sum and, in the same pass, the slope. The first backward pass overwrites the slope; another recomputes it.

    For second derivatives the divergence itself is differentiated.
    """

    @staticmethod
    def forward(ctx: Any, divergence: Divergence, log_alpha: Tensor, bounds: tuple[float, float]) -> Tensor:  # noqa: ANN401
        ctx.divergence, ctx.bounds = divergence, bounds
        ctx.save_for_backward(log_alpha)
        value, slope = _sum_and_slope(divergence, log_alpha, bounds)
        ctx.slope = slope if ctx.needs_input_grad[1] else None
        return value

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        (log_alpha,) = ctx.saved_tensors
        if torch.is_grad_enabled():
            again = partial(_sum_within, ctx.divergence, ctx.bounds)
            return None, *differentiable_gradients(again, (log_alpha,), gradient), None
        slope, ctx.slope = ctx.slope, None
        if slope is None:
            _, slope = _sum_and_slope(ctx.divergence, log_alpha, ctx.bounds)
        return None, slope.mul_(gradient).to(log_alpha.dtype), None


def _sum_within(divergence: Divergence, bounds: tuple[float, float], log_alpha: Tensor) -> Tensor:
    """The sum over a tensor clamped to the bounds, in single precision or higher."""
    return divergence(F.hardtanh(log_alpha.to(torch.promote_types(log_alpha.dtype, torch.float32)), *bounds)).sum()


def _sum_and_slope(divergence: Divergence, log_alpha: Tensor, bounds: tuple[float, float]) -> tuple[Tensor, Tensor]:
    """The sum over a tensor and the slope at each of its elements, in single precision or higher."""
    dense = log_alpha.contiguous() if 0 in log_alpha.stride() else log_alpha
    dtype = torch.promote_types(log_alpha.dtype, torch.float32)
    slope = torch.empty_like(dense, dtype=dtype)
    by_table = divergence is log_uniform_kl and dtype == torch.float32 and dense.device.type == "cpu"
    workspace = SechWorkspace(min(dense.numel(), piece_size(dense))) if by_table else None
    pairs = zip(_pieces(dense), _pieces(slope), strict=True)
    sums = [_sum_of_piece(divergence, piece.to(dtype), into, bounds, workspace) for piece, into in pairs]
    return torch.stack(sums).sum(), slope


def _pieces(tensor: Tensor) -> Iterator[Tensor]:
    flat = flat_in_memory(tensor)
    return iter(torch.split(flat, piece_size(flat)))


def _sum_of_piece(
    divergence: Divergence, piece: Tensor, slope: Tensor, bounds: tuple[float, float], workspace: SechWorkspace | None
) -> Tensor:
    """The sum over a piece; writes the slope at each of its elements to ``slope``, zero outside the bounds."""
    least, most = _extremes(piece)
    inside = bounds[0] < least and most < bounds[1]
    clamped = piece if inside else piece.clamp(*bounds)
    in_table = max(least, bounds[0]) >= SECH_ENDS[0] and min(most, bounds[1]) <= SECH_ENDS[1]
    if workspace is not None and in_table:  # the table gives the sum and the slope
        value = workspace.falling_sech_sum(clamped, slope)
    else:
        with torch.enable_grad():
            leaf = clamped.detach().requires_grad_()
            value = divergence(leaf).sum()
            slope.copy_(torch.autograd.grad(value, leaf)[0])
    if not inside:
        slope.masked_fill_((piece <= bounds[0]) | (piece >= bounds[1]), 0.0)
    return value.detach()


def _extremes(piece: Tensor) -> tuple[float, float]:
    """The smallest and the largest element; NaN if an element is NaN, or if reading them would stall a device."""
    if piece.numel() == 0 or piece.device.type != "cpu":
        return math.nan, math.nan
    least, most = torch.aminmax(piece)
    return float(least), float(most)
