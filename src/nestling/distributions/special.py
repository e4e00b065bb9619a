"""Special functions the distributions need, stable over the whole float range."""

import math
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

EULER_GAMMA = 0.5772156649015329


def log1mexp(x: Tensor) -> Tensor:
    """log(1 - exp(x)) for x < 0, without cancellation on either side of -log 2.

    Each branch is given an argument that is harmless to it, so that neither sends a NaN through the gradient.
    """
    near = x > -math.log(2)
    small = torch.log(-torch.expm1(torch.where(near, x, -1.0)))
    large = torch.log1p(-torch.exp(torch.where(near, -1.0, x)))
    return torch.where(near, small, large)


def logit_from_log(log_p: Tensor) -> Tensor:
    """log(p / (1 - p)) of a probability given by its logarithm, exact also where p rounds to 0 or 1."""
    return log_p - log1mexp(log_p)


def log_beta(x: Tensor, y: Tensor) -> Tensor:
    """log B(x, y) for positive arguments, without the cancellation of three large log-gammas.

    Where the larger argument reaches 8 its log-gamma and that of the sum are taken by Stirling's series, whose leading
    terms cancel on paper instead of in the machine; the smaller argument keeps its own log-gamma.
    """
    small, large = torch.minimum(x, y), torch.maximum(x, y)
    direct = torch.lgamma(small) + torch.lgamma(large) - torch.lgamma(small + large)
    big = large.clamp_min(8.0)
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
    """I(t) = int_0^inf [1 - exp(-exp(t) sech^2(s) / 2)] ds, whose slope dI/dt is the gradient that autograd sees.

    With w = sigmoid(t - log 16), I = softplus(t - log 16) / 2 + w V(w) and dI/dt = w S(w), where V and S are smooth on
    [0, 1] (analytic at 0, asymptotic at 1). Both are Chebyshev series computed once from the integral itself; a dtype
    uses as many terms as it can resolve. So a handful of multiply-adds replaces Dawson's function, which torch lacks.
    """
    value: Tensor = _SechIntegral.apply(log_scale)[0]  # type: ignore[no-untyped-call]
    return value


class _SechIntegral(torch.autograd.Function):
    """The integral; its slope comes from the same pass over the data and is kept for the way back."""

    @staticmethod
    def forward(log_scale: Tensor) -> tuple[Tensor, Tensor]:
        flat = log_scale.reshape(-1)
        value, slope = torch.empty_like(flat), torch.empty_like(flat)
        num_terms = 16 if torch.finfo(flat.dtype).eps > 1e-8 else 44
        value_series, slope_series = (_on(series, flat) for series in _sech_series(num_terms))
        # Pieces that stay in the caches of the cores: twice as fast as whole passes over a large tensor.
        size = _PIECE * torch.get_num_threads() if flat.device.type == "cpu" else max(flat.numel(), 1)
        for t, value_out, slope_out in zip(*(torch.split(x, size) for x in (flat, value, slope)), strict=True):
            shifted = t - _LOG_SHIFT
            w = torch.sigmoid(shifted)
            centred = 2 * w - 1
            torch.mul(_horner(value_series, centred), w, out=value_out).sub_(F.logsigmoid(-shifted), alpha=0.5)
            torch.mul(_horner(slope_series, centred), w, out=slope_out)
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
    """The slope of the integral, already known, as a function that has a derivative of its own.

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
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # noqa: ANN401
        log_scale, slope = ctx.saved_tensors
        square = log_scale.clamp_max(_ASYMPTOTIC_FROM).exp() / 2
        near = 0.5 * (slope + square * (1 - 2 * slope))
        return grad * torch.where(log_scale > _ASYMPTOTIC_FROM, -0.5 * torch.exp(-log_scale), near), None


_ASYMPTOTIC_FROM = 8.0
_PIECE = 32_768
_SHIFT = 16.0
_LOG_SHIFT = math.log(_SHIFT)


@cache
def _sech_series(num_terms: int) -> tuple[list[float], list[float]]:
    """Coefficients of V and S in powers of 2w - 1, lowest first: Chebyshev interpolation in 64 nodes, cut to its head.

    The integrals at the nodes are trapezoid sums, which converge geometrically here (even, analytic, decaying).
    """
    num_nodes = 64
    angle = math.pi * (torch.arange(num_nodes, dtype=torch.float64) + 0.5) / num_nodes
    w = (1 + torch.cos(angle)) / 2
    scale = _SHIFT * w / (1 - w)
    step = 1 / 64
    s = step * torch.arange(32 * 64, dtype=torch.float64)
    weight = torch.full_like(s, step)
    weight[0] /= 2
    exponent = scale[:, None] / 2 * torch.cosh(s).pow(-2)
    value = (-torch.expm1(-exponent) * weight).sum(-1)
    slope = (exponent * torch.exp(-exponent) * weight).sum(-1)
    basis = torch.cos(torch.arange(num_nodes, dtype=torch.float64)[:, None] * angle) * 2 / num_nodes
    basis[0] /= 2
    return (
        _powers((basis @ ((value - torch.log1p(scale / _SHIFT) / 2) / w))[:num_terms]),
        _powers((basis @ (slope / w))[:num_terms]),
    )


def _powers(chebyshev: Tensor) -> list[float]:
    return [float(c) for c in np.polynomial.chebyshev.cheb2poly(chebyshev.numpy())]


def _on(series: list[float], like: Tensor) -> list[Tensor]:
    return list(torch.tensor(series, dtype=like.dtype, device=like.device))


def _horner(series: list[Tensor], x: Tensor) -> Tensor:
    total = torch.addcmul(series[-2], series[-1], x)
    for coefficient in reversed(series[:-2]):
        torch.addcmul(coefficient, total, x, out=total)
    return total


def _log_ndtr(x: Tensor) -> Tensor:
    """log Phi(x), whose slope stays right far out, where that of torch.special.log_ndtr cancels to inf and nan."""
    far = x < -1
    scaled = torch.where(far, x, -1.0) / -math.sqrt(2)
    tail = torch.log(torch.special.erfcx(scaled) / 2) - scaled.square()
    middle = torch.log1p(-torch.special.erfc(torch.where(far, -1.0, x) / math.sqrt(2)) / 2)
    return torch.where(far, tail, middle)


def _stirling_remainder(x: Tensor) -> Tensor:
    """log Gamma(x) - [(x - 1/2) log x - x + log(2 pi) / 2] for x >= 8, to 1e-12 (Abramowitz and Stegun 6.1.41)."""
    inverse = 1 / (x * x)
    return (1 / 12 - inverse * (1 / 360 - inverse * (1 / 1260 - inverse * (1 / 1680 - inverse / 1188)))) / x
