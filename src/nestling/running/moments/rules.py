"""The rules of layers, norms, elementwise functions, sums, and operations that only move elements."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from nestling.distributions import Sloped
from nestling.running.moments.moments import RULES, Moments, Rule, current_pass, register_noise, rule, run_on_draws
from nestling.running.moments.sources import sloped

_MOVING = """
    flatten reshape view squeeze unsqueeze permute transpose contiguous narrow select chunk split unflatten expand clone
    to float double movedim flip roll unbind
""".split()
"""Methods, and functions of torch, that only move elements."""
_POINTWISE: tuple[Callable[..., Tensor], ...] = (
    *(F.gelu, F.silu, F.mish, F.elu, F.selu, F.celu, F.leaky_relu, F.softplus, F.hardswish, F.hardsigmoid, F.hardtanh),
    *(F.relu6, F.logsigmoid, F.softsign, F.tanhshrink, torch.tanh, torch.sigmoid, torch.exp, torch.abs, torch.square),
)
"""Elementwise functions, whose moments are computed by quadrature."""
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(10)
_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()
"""Gauss-Hermite for the standard normal distribution: exact for polynomials up to degree 19."""
_LEAST_STD = 1e-3
"""The least standard deviation, relative to an element's size, used by quadrature: the derivative divides by it."""


def _moving(function: Any) -> Rule:  # noqa: ANN401
    """The rule of an operation that only moves elements."""

    def of(x: Moments, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        mean, variance = function(x.mean_, *args, **kwargs), function(x.variance, *args, **kwargs)
        if isinstance(mean, Tensor):
            return Moments(mean, variance)
        return tuple(Moments(*pair) for pair in zip(mean, variance, strict=True))

    return of


def _by_quadrature(function: Callable[..., Tensor]) -> Rule:
    """The rule of an elementwise function."""

    def of(x: Moments, *args: Any, **kwargs: Any) -> Moments:  # noqa: ANN401
        kwargs.pop("inplace", None)
        centre, input_variance = x.mean_.detach(), x.variance
        std = torch.maximum(input_variance.clamp_min(0).sqrt(), centre.abs().add_(1).mul_(_LEAST_STD))
        mean, square, slope = torch.zeros_like(std), torch.zeros_like(std), torch.zeros_like(std)
        for node, weight in zip(_NODES.tolist(), _WEIGHTS.tolist(), strict=True):
            value = function(torch.add(centre, std, alpha=node), *args, **kwargs)
            mean.add_(value, alpha=weight)
            square.addcmul_(value, value, value=weight)
            slope.add_(value, alpha=weight * node)  # E f'(x) = E f(x) (x - mean) / variance
        variance = square.sub_(mean.square()).clamp_min_(0) * (input_variance / std.square())
        added = Sloped(mean, variance, [slope.div_(std)]).left_over([input_variance])
        return Moments(register_noise(sloped(x.mean_, mean, slope), added), variance)

    return of


for _name in _MOVING:
    for _owner in (torch, Tensor):
        if hasattr(_owner, _name):
            RULES[getattr(_owner, _name)] = _moving(getattr(_owner, _name))
RULES[Tensor.view] = _moving(Tensor.reshape)  # a variance may have another memory layout than its mean
for _function in _POINTWISE:
    RULES[_function] = _by_quadrature(_function)
    for _same in (getattr(Tensor, _function.__name__, None), getattr(F, _function.__name__, None)):
        if _same is not None:
            RULES[_same] = RULES[_function]


@rule(F.relu, torch.relu, Tensor.relu, torch.relu_, Tensor.relu_)
def _relu(x: Moments, inplace: bool = False) -> Moments:
    return x if x.positive else Moments(x.mean_, x.variance, rectified=True)


@rule(F.linear)
def _linear(x: Any, weight: Tensor, bias: Tensor | None = None) -> Moments:  # noqa: ANN401
    return Moments(F.linear(x.mean_, weight, bias), F.linear(x.variance, weight.square()))


def _convolution(function: Any) -> Rule:  # noqa: ANN401
    def of(input: Moments, weight: Tensor, bias: Tensor | None = None, *args: Any, **kwargs: Any) -> Moments:  # noqa: ANN401
        mean = function(input.mean_, weight, bias, *args, **kwargs)
        return Moments(mean, function(input.variance, weight.square(), None, *args, **kwargs))

    return of


for _function in (F.conv1d, F.conv2d, F.conv3d, F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d):
    RULES[_function] = _convolution(_function)


@rule(F.batch_norm)
def _batch_norm(
    input: Moments,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:  # noqa: ANN401
    if training or running_mean is None or running_var is None:
        arguments = (input, running_mean, running_var, weight, bias, training, momentum, eps)
        return run_on_draws(F.batch_norm, arguments, {})
    shape = (-1, *[1] * (input.mean_.ndim - 2))
    with torch.no_grad():
        factor, shift = scale_and_shift(weight, bias, running_mean, running_var, eps)
        variance = input.variance * factor.square().view(shape)
    return Moments(torch.addcmul(shift.view(shape), input.mean_, factor.view(shape)), variance)


def scale_and_shift(
    weight: Tensor | None, bias: Tensor | None, mean: Tensor, variance: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """What a batch norm in eval mode multiplies each channel by, and what it then adds."""
    factor = torch.rsqrt(variance + eps) if weight is None else weight * torch.rsqrt(variance + eps)
    return factor, -mean * factor if bias is None else torch.addcmul(bias, mean, factor, value=-1)


@rule(torch.detach, Tensor.detach, Tensor.detach_)
def _detach(x: Moments) -> Moments:
    return x  # gradients of callers never come here


@rule(torch.add, Tensor.add, Tensor.add_)
def _add(x: Any, other: Any, *, alpha: float = 1) -> Moments:  # noqa: ANN401
    if x is other:
        return Moments(x.mean_ * (1 + alpha), x.variance * (1 + alpha) ** 2)
    (mean, variance), (more, varied) = _pairs(x, other)
    return Moments(mean + alpha * more, variance + alpha**2 * varied)


@rule(torch.sub, Tensor.sub, Tensor.sub_)
def _sub(x: Any, other: Any, *, alpha: float = 1) -> Moments:  # noqa: ANN401
    return _add(x, other, alpha=-alpha)


@rule(Tensor.__rsub__)
def _subtract_from(x: Moments, other: Any) -> Moments:  # noqa: ANN401
    return _add(_negative(x), other)


@rule(torch.neg, Tensor.neg)
def _negative(x: Moments) -> Moments:
    return Moments(-x.mean_, x.variance)


@rule(torch.mul, Tensor.mul, Tensor.mul_)
def _mul(x: Any, other: Any) -> Any:  # noqa: ANN401
    if x is other:
        return RULES[torch.square](x)
    (mean, variance), (times, varied) = _pairs(x, other)
    product, both = mean * times, variance * varied
    if isinstance(x, Moments) and isinstance(other, Moments):
        product = register_noise(product, both.expand_as(product))
    return Moments(product, mean**2 * varied + times**2 * variance + both)


@rule(torch.div, Tensor.div, Tensor.div_)
def _div(x: Any, other: Any) -> Any:  # noqa: ANN401
    if isinstance(other, Moments):
        return run_on_draws(torch.div, (x, other), {})
    return Moments(x.mean_ / other, x.variance / other**2)


@rule(F.log_softmax, torch.log_softmax, Tensor.log_softmax)
def _log_softmax(input: Moments, dim: int = -1, _stacklevel: int = 3, dtype: torch.dtype | None = None) -> Moments:
    """To first order: the derivative of log p_k in logit z_j is 1 - p_k for j = k, and -p_j otherwise."""
    mean = torch.log_softmax(input.mean_, dim, dtype)
    with torch.no_grad():
        probs, variance = mean.exp(), input.variance.to(mean.dtype)
        shared = (probs.square() * variance).sum(dim, keepdim=True)
        return Moments(mean, variance - 2 * probs * variance + shared)


@rule(torch.cat)
def _cat(tensors: Sequence[Any], dim: int = 0) -> Moments:
    means, variances = zip(*_pairs(*tensors), strict=True)
    expanded = [
        variance.expand_as(mean) if isinstance(variance, Tensor) else torch.zeros_like(mean)
        for mean, variance in zip(means, variances, strict=True)
    ]
    return Moments(torch.cat(means, dim), torch.cat(expanded, dim))


@rule(F.dropout, F.dropout1d, F.dropout2d, F.dropout3d)
def _dropout(input: Moments, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:  # noqa: ANN401
    return run_on_draws(F.dropout, (input, p, training), {}) if training else input


@rule(torch.mean, Tensor.mean)
def _mean(input: Moments, dim: Any = None, keepdim: bool = False) -> Moments:  # noqa: ANN401
    mean = input.mean_.mean(dim, keepdim)
    number = input.mean_.numel() // max(mean.numel(), 1)
    return Moments(mean, input.variance.mean(dim, keepdim) / number)


@rule(torch.sum, Tensor.sum)
def _sum(input: Moments, dim: Any = None, keepdim: bool = False) -> Moments:  # noqa: ANN401
    return Moments(input.mean_.sum(dim, keepdim), input.variance.sum(dim, keepdim))


def _pairs(*values: Any) -> list[tuple[Any, Any]]:  # noqa: ANN401
    """The mean and variance of each value, with as many copies of the batch as the value with the most copies."""
    sizes = [len(value) for value in values if isinstance(value, Moments)]
    longest = max(len(value) for value in values if isinstance(value, Moments | Tensor) and value.ndim)
    times, settings = longest // min(sizes), current_pass()
    pairs: list[tuple[Any, Any]] = []
    for value in values:
        if not isinstance(value, Moments):
            pairs.append((value, 0.0))
        elif settings.drawn and times == settings.number and len(value) * times == longest:  # others are draws
            copies = (times, *[1] * (value.ndim - 1))
            pairs.append((value.mean_.repeat(copies), value.variance.repeat(copies)))
        else:
            pairs.append((value.mean_, value.variance))
    return pairs
