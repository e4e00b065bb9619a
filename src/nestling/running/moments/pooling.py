"""The rules of pooling: the average and the largest of a window."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from nestling.distributions import largest
from nestling.running.moments.moments import RULES, Moments, Rule, register_noise, rule, run_on_draws
from nestling.running.moments.sources import in_pieces, joined, with_first_derivatives_only


def _averaging(function: Any, rank: int) -> Rule:  # noqa: ANN401
    """The rule of an average over windows with the same number of elements each."""

    def of(
        input: Moments,
        kernel_size: Any,  # noqa: ANN401
        stride: Any = None,  # noqa: ANN401
        padding: Any = 0,  # noqa: ANN401
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Any:  # noqa: ANN401
        options = {"stride": stride, "padding": padding, "ceil_mode": ceil_mode, "count_include_pad": count_include_pad}
        padded = any(padding) if isinstance(padding, Sequence) else bool(padding)
        if ceil_mode or divisor_override is not None or (padded and not count_include_pad):
            more = {} if divisor_override is None else {"divisor_override": divisor_override}
            return run_on_draws(function, (input, kernel_size), options | more)
        sizes = list(kernel_size) if isinstance(kernel_size, Sequence) else [kernel_size]
        number = math.prod(sizes * (rank if len(sizes) == 1 else 1))
        mean, variance = (function(moment, kernel_size, **options) for moment in (input.mean_, input.variance))
        return Moments(mean, variance / number)

    return of


@rule(F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d)
def _adaptive_average(input: Moments, output_size: Any) -> Any:  # noqa: ANN401
    rank = input.ndim - 2
    function = {1: F.adaptive_avg_pool1d, 2: F.adaptive_avg_pool2d, 3: F.adaptive_avg_pool3d}[rank]
    sizes = output_size if isinstance(output_size, Sequence) else [output_size] * rank
    spaces = input.mean_.shape[2:]
    wanted = [space if size is None else size for space, size in zip(spaces, sizes, strict=True)]
    if any(space % size for space, size in zip(spaces, wanted, strict=True)):
        return run_on_draws(function, (input, output_size), {})
    number = math.prod(spaces) / math.prod(wanted)
    return Moments(function(input.mean_, output_size), function(input.variance, output_size) / number)


for _rank, _function in ((1, F.avg_pool1d), (2, F.avg_pool2d), (3, F.avg_pool3d)):
    RULES[_function] = _averaging(_function, _rank)


@rule(F.max_pool2d, torch.max_pool2d)
def _max_pool2d(
    input: Moments,
    kernel_size: Any,  # noqa: ANN401
    stride: Any = None,  # noqa: ANN401
    padding: Any = 0,  # noqa: ANN401
    dilation: Any = 1,  # noqa: ANN401
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:  # noqa: ANN401
    """The largest element of each window."""
    (height, width), (down, right) = _two(kernel_size), _two(kernel_size if stride in (None, []) else stride)
    rows, columns = input.shape[-2:]
    even = rows >= height and columns >= width and not (ceil_mode or return_indices)
    if not even or _two(padding) != (0, 0) or _two(dilation) != (1, 1):
        arguments = (input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)
        return run_on_draws(F.max_pool2d, arguments, {})
    last_row, last_column = (rows - height) // down * down, (columns - width) // right * right
    places: list[_Place] = [
        (..., slice(row, row + last_row + 1, down), slice(column, column + last_column + 1, right))
        for row in range(height)
        for column in range(width)
    ]

    def pool(mean: Tensor, variance: Tensor) -> tuple[Tensor, ...]:
        maxima = largest([(mean[place], variance[place]) for place in places])
        return maxima.mean, maxima.variance, maxima.left_over([variance[place] for place in places]), *maxima.slopes

    mean_before = input.before()[0]
    with torch.no_grad():
        value, variance, added, *slopes = joined(in_pieces(pool, *input.before()))
    tiled = (height, width, rows % height, columns % width) == (down, right, 0, 0)
    mean: Tensor = _Chosen.apply(mean_before, value, places, tiled, *slopes)  # type: ignore[no-untyped-call]
    return Moments(register_noise(mean, added), variance, rectified=input.rectified)


_Place = tuple[Any, slice, slice]


class _Chosen(torch.autograd.Function):
    """A value with a given derivative with respect to each of some places of a mean."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        mean: Tensor,
        value: Tensor,
        places: list[_Place],
        tiled: bool,
        *slopes: Tensor,
    ) -> Tensor:
        ctx.save_for_backward(*slopes)
        ctx.places, ctx.tiled, ctx.like = places, tiled, torch.empty_like(mean, device="meta")
        return value.detach()

    @staticmethod
    @with_first_derivatives_only
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        mean_gradient = (torch.empty_like if ctx.tiled else torch.zeros_like)(ctx.like, device=gradient.device)
        for place, slope in zip(ctx.places, ctx.saved_tensors, strict=True):
            if ctx.tiled:  # every element is in one window
                torch.mul(gradient, slope, out=mean_gradient[place])
            else:
                mean_gradient[place].addcmul_(gradient, slope)
        return mean_gradient, None, None, None, *[None] * len(ctx.saved_tensors)


def _two(size: Any) -> tuple[int, int]:  # noqa: ANN401
    if isinstance(size, Sequence):
        return (int(size[0]), int(size[-1]))
    return (int(size), int(size))
