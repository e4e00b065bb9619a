"""Special functions the distributions need, stable over the whole float range."""

import math
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from nestling.distributions.layout import piece_size

EULER_GAMMA = 0.5772156649015329


def log1mexp(x: Tensor) -> Tensor:
    """log(1 - exp(x)) for x < 0, without cancellation on either side of -log 2.

    Each branch gets a harmless argument where the other branch is used, so that no NaN reaches the gradient.
    """
    near = x > -math.log(2)
    small = torch.log(-torch.expm1(torch.where(near, x, -1.0)))
    large = torch.log1p(-torch.exp(torch.where(near, -1.0, x)))
    return torch.where(near, small, large)


def within(x: Tensor, low: float, high: float) -> Tensor:
    """x clamped to bounds, with a gradient of one on the bounds, where the gradient of ``clamp`` depends on torch."""
    return torch.where((x >= low) & (x <= high), x, x.detach().clamp(low, high))


def logit_from_log(log_p: Tensor) -> Tensor:
    """log(p / (1 - p)) of a probability given by its logarithm, exact also where p rounds to 0 or 1."""
    return log_p - log1mexp(log_p)


def log_beta(x: Tensor, y: Tensor) -> Tensor:
    """log B(x, y) for positive arguments, without the cancellation of three large log-gammas.

    If the larger argument is 8 or more, its log-gamma and that of the sum are computed by Stirling's series, whose
    leading terms are cancelled by hand. The smaller argument's log-gamma is computed directly.
    """
    small, large = torch.minimum(x, y), torch.maximum(x, y)
    direct = torch.lgamma(small) + torch.lgamma(large) - torch.lgamma(small + large)
    big = within(large, 8.0, math.inf)
    total = small + big
    shrinkage = -(big - 0.5) * torch.log1p(small / big) - small * torch.log(total) + small
    asymptotic = torch.lgamma(small) + shrinkage + _stirling_remainder(big) - _stirling_remainder(total)
    return torch.where(large < 8.0, direct, asymptotic)


def log_normal_interval(low: Tensor, high: Tensor) -> Tensor:
    """log(Phi(high) - Phi(low)) for low < high, accurate in both tails of the standard normal distribution."""
    flip = low > 0
    low, high = torch.where(flip, -high, low), torch.where(flip, -low, high)
    log_high = _log_ndtr(high)
    return log_high + log1mexp(_log_ndtr(low) - log_high)


def sech_integral(log_scale: Tensor) -> Tensor:
    """I(t) = int_0^inf [1 - exp(-exp(t) sech^2(s) / 2)] ds, with the slope dI/dt as its gradient.

    With w = sigmoid(t - log 16), I = softplus(t - log 16) / 2 + w V(w) and dI/dt = w S(w), where V and S are smooth on
    [0, 1] (analytic at 0, asymptotic at 1). Both are Chebyshev series, computed once by numerical integration, and
    replace Dawson's function, which torch lacks. Single precision uses a table, which takes a third of the time.
    """
    value: Tensor = _SechIntegral.apply(log_scale)[0]  # type: ignore[no-untyped-call]
    return value


class _SechIntegral(torch.autograd.Function):
    """The integral; its slope is computed in the same pass and saved for the backward pass."""

    @staticmethod
    def forward(log_scale: Tensor) -> tuple[Tensor, Tensor]:
        flat = log_scale.reshape(-1)
        integrate = _sech_by_series if log_scale.dtype == torch.float64 else _sech_by_table
        columns = [integrate(piece) for piece in torch.split(flat, piece_size(flat))]
        value, slope = (torch.cat(column).to(log_scale.dtype) for column in zip(*columns, strict=True))
        return value.view(log_scale.shape), slope.view(log_scale.shape)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: tuple[Tensor, Tensor]) -> None:  # noqa: ANN401
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(inputs[0], output[1])

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None], log_scale: Tensor) -> Any:  # noqa: ANN401
        return _SechIntegral.apply(log_scale), (in_dims[0], in_dims[0])  # type: ignore[no-untyped-call]

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> Tensor:  # noqa: ANN401
        log_scale, slope = ctx.saved_tensors
        result: Tensor = grad * _SechSlope.apply(log_scale, slope)  # type: ignore[no-untyped-call]
        return result


class _SechSlope(torch.autograd.Function):
    """The slope of the integral, already computed, as a function with derivatives of any order.

    With S = x D(x) and x^2 = exp(t) / 2, dS/dt = [S + x^2 (1 - 2 S)] / 2, which tends to -exp(-t) / 2.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(log_scale: Tensor, slope: Tensor) -> Tensor:
        return slope.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:  # noqa: ANN401
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # noqa: ANN401
        log_scale, computed = ctx.saved_tensors
        slope = _SechSlope.apply(log_scale, computed)  # type: ignore[no-untyped-call]
        square = log_scale.clamp_max(_ASYMPTOTIC_FROM).exp() / 2
        near = 0.5 * (slope + square * (1 - 2 * slope))
        return grad * torch.where(log_scale > _ASYMPTOTIC_FROM, -0.5 * torch.exp(-log_scale), near), None


class SechWorkspace:
    """CPU buffers for intermediate results of ``falling_sech_sum``, reused for each piece of a long vector."""

    def __init__(self, size: int) -> None:
        self._along = torch.empty(size, dtype=torch.float32, device="cpu")
        self._cell = torch.empty(size, dtype=torch.int32, device="cpu")
        self._cells = torch.empty(size, dtype=torch.complex128, device="cpu")

    def falling_sech_sum(self, x: Tensor, slope: Tensor) -> Tensor:
        """The sum of ``sech_integral(-x)`` over a single-precision vector whose elements are within ``SECH_ENDS``.

        Writes the slope in x at each element to ``slope``; autograd records nothing.
        """
        number = len(x)
        along = torch.mul(x, 1 / _CELL, out=self._along[:number]).sub_(SECH_ENDS[0] / _CELL)
        cell = self._cell[:number].copy_(along)
        along.frac_()
        start, change, value = _sech_cells(cell, self._cells[:number])
        torch.addcmul(start, along, change, out=slope)
        return value.sum() + _CELL * (torch.dot(along, slope) - 0.5 * slope.sum())


_ASYMPTOTIC_FROM = 8.0
_SHIFT = 16.0
_LOG_SHIFT = math.log(_SHIFT)
SECH_ENDS = (-20.0, 20.0)
"""The range of x in which a table has the integral of -x."""
_NUM_CELLS = 8192
_CELL = (SECH_ENDS[1] - SECH_ENDS[0]) / _NUM_CELLS


def _sech_by_series(t: Tensor) -> tuple[Tensor, Tensor]:
    """The integral and its slope to 1e-12, in double precision."""
    value_series, slope_series = _sech_series()
    shifted = t - _LOG_SHIFT
    w = torch.sigmoid(shifted)
    centred = 2 * w - 1
    return w * _horner(value_series, centred) - 0.5 * F.logsigmoid(-shifted), w * _horner(slope_series, centred)


def _sech_by_table(t: Tensor) -> tuple[Tensor, Tensor]:
    """The integral and its slope to 2e-6; straight lines outside the table."""
    x = -t.float()
    along = x.clamp(*SECH_ENDS).sub_(SECH_ENDS[0]).mul_(1 / _CELL)
    cell = along.to(torch.int32).clamp_(0, _NUM_CELLS)  # a NaN would give an invalid cell
    along.frac_()
    start, change, middle = _sech_cells(cell)
    slope = torch.addcmul(start, along, change)
    value = torch.addcmul(middle, along.sub_(0.5), slope, value=_CELL)
    return value.add_(F.relu(SECH_ENDS[0] - x), alpha=0.5), slope.neg_()


def _sech_cells(cell: Tensor, out: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """The three values of some cells of the table; a CPU looks each cell up as one complex number, into ``out``."""
    table = _sech_table(cell.device)
    if cell.device.type == "cpu":
        cells = torch.index_select(torch.view_as_complex(table.view(torch.float64)), 0, cell, out=out)
        rows = torch.view_as_real(cells).view(torch.float32)
    else:
        rows = table.index_select(0, cell)
    start, change, value, _ = rows.unbind(1)
    return start, change, value


@cache
def _sech_table(device: torch.device) -> Tensor:
    """(cells, 4): the slope of the integral of -x at the left end of each cell, its change, and the middle value.

    From the middle of a cell the slope gives the integral elsewhere in the cell. The last column is unused.
    """
    nodes = SECH_ENDS[0] + _CELL * torch.arange(_NUM_CELLS + 2, dtype=torch.float64, device="cpu")
    values, _ = _sech_by_series(-(nodes[:-1] + 0.5 * _CELL))
    slopes = -_sech_by_series(-nodes)[1]
    return torch.stack((slopes[:-1], slopes.diff(), values, torch.zeros_like(values)), dim=1).float().to(device)


@cache
def _sech_series() -> tuple[list[float], list[float]]:
    """Coefficients of V and S in powers of 2w - 1, lowest first: Chebyshev interpolation at 64 nodes, truncated.

    The integrals at the nodes are trapezoid sums, which converge geometrically here (even, analytic, decaying).
    """
    num_nodes, num_terms = 64, 44
    angle = math.pi * (torch.arange(num_nodes, dtype=torch.float64, device="cpu") + 0.5) / num_nodes
    w = (1 + torch.cos(angle)) / 2
    scale = _SHIFT * w / (1 - w)
    step = 1 / 64
    s = step * torch.arange(32 * 64, dtype=torch.float64, device="cpu")
    weight = torch.full_like(s, step)
    weight[0] /= 2
    exponent = scale[:, None] / 2 * torch.cosh(s).pow(-2)
    value = (-torch.expm1(-exponent) * weight).sum(-1)
    slope = (exponent * torch.exp(-exponent) * weight).sum(-1)
    basis = torch.cos(torch.arange(num_nodes, dtype=torch.float64, device="cpu")[:, None] * angle) * 2 / num_nodes
    basis[0] /= 2
    return (
        _powers((basis @ ((value - torch.log1p(scale / _SHIFT) / 2) / w))[:num_terms]),
        _powers((basis @ (slope / w))[:num_terms]),
    )


def _powers(chebyshev: Tensor) -> list[float]:
    return [float(coefficient) for coefficient in np.polynomial.chebyshev.cheb2poly(chebyshev.numpy())]


def _horner(series: list[float], x: Tensor) -> Tensor:
    total = torch.full_like(x, series[-1])
    for coefficient in reversed(series[:-1]):
        total.mul_(x).add_(coefficient)
    return total


def _log_ndtr(x: Tensor) -> Tensor:
    """log Phi(x), with a correct slope in the far tail, where that of torch.special.log_ndtr becomes inf or nan."""
    far = x < -1
    scaled = torch.where(far, x, -1.0) / -math.sqrt(2)
    tail = torch.log(torch.special.erfcx(scaled) / 2) - scaled.square()
    middle = torch.log1p(-torch.special.erfc(torch.where(far, -1.0, x) / math.sqrt(2)) / 2)
    return torch.where(far, tail, middle)


def _stirling_remainder(x: Tensor) -> Tensor:
    """log Gamma(x) - [(x - 1/2) log x - x + log(2 pi) / 2] for x >= 8, to 1e-12 (Abramowitz and Stegun 6.1.41)."""
    inverse = 1 / (x * x)
    return (1 / 12 - inverse * (1 / 360 - inverse * (1 / 1260 - inverse * (1 / 1680 - inverse / 1188)))) / x
