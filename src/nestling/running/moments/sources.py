"""Where noise comes into a network, and how much of it arrives along a direction of the outputs.

Each element of a pass of moments has a variance as if it were independent of the others; but what one layer draws
moves many elements of the next. To first order that dependence is in the slopes of the outputs' means: autograd gives
those of one direction in one pass back, with every path from a source of noise to the outputs in them.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

_PIECE = 2**18
"""Elements that are worked on at a time, so that all that is made on the way stays in the cache."""


class Direction(NamedTuple):
    """The sum of outputs that matters, by their weights; with ``random`` signs if there are several for an example."""

    weights: Tensor
    random: bool


@dataclass(frozen=True)
class NoiseSource:
    """Elements, by their means, and the variance of the noise that comes in there.

    It is one factor, or the product of one by channel (batch, channels, 1, ...) and one by position (batch, 1, ...).
    The noise is independent between elements, but if the factor has one entry for several that have it ``in_common``.
    """

    mean: Tensor
    factors: tuple[Tensor, ...]
    in_common: bool = False

    def arriving(self, slope: Tensor) -> Tensor:
        """(examples,): what of the variance arrives where the slope is that of the outputs in these elements."""
        if self.in_common:
            slope = slope.sum_to_size(self.factors[0].shape)
        return torch.cat(in_pieces(_arriving, slope, *self.factors))


def variance_along(mean: Tensor, weights: Tensor, sources: Sequence[NoiseSource]) -> Tensor:
    """(examples,): the variance of each example's sum of outputs times their weights, from all sources of noise.

    (1,): that of all examples together, if the first axis of some source is not that of the outputs.
    """
    slopes = torch.autograd.grad(mean, [own.mean for own in sources], weights, allow_unused=True)
    arriving = [own.arriving(slope) for own, slope in zip(sources, slopes, strict=True) if slope is not None]
    if any(len(own) != len(mean) for own in arriving):
        arriving = [own.sum(0, keepdim=True) for own in arriving]
    return torch.stack(arriving).sum(0)


def graph_of_means() -> AbstractContextManager[None]:
    """Let autograd follow the means inside the block, whatever the mode of the code around it."""
    return _after_inference_mode() if torch.is_inference_mode_enabled() else torch.enable_grad()


@contextmanager
def _after_inference_mode() -> Iterator[None]:
    with torch.inference_mode(False), torch.enable_grad():
        yield


def in_pieces(function: Callable[..., Any], *tensors: Tensor) -> list[Any]:
    """What a function gives that looks at each example by itself, over a few of them at a time."""
    first = tensors[0]
    if first.numel() <= _PIECE:
        return [function(*tensors)]
    number = max(1, _PIECE * len(first) // first.numel())
    return [function(*piece) for piece in zip(*(torch.split(own, number) for own in tensors), strict=True)]


def joined(pieces: list[tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    """The tensors of all pieces, each in one."""
    return pieces[0] if len(pieces) == 1 else tuple(torch.cat(parts) for parts in zip(*pieces, strict=True))


def weighed(squares: Tensor, weights: Tensor) -> Tensor:
    """(examples,): the sum over each example of some squares times their weights, in whose place the product goes."""
    product = squares.mul_(weights)
    return product.sum(tuple(range(1, product.ndim))) if product.ndim > 1 else product


def _arriving(slope: Tensor, *factors: Tensor) -> Tensor:
    if len(factors) == 1:
        return weighed(slope.square(), factors[0])
    by_channel, by_position = factors
    summed = by_position.flatten(2) @ slope.square().flatten(2).transpose(1, 2)  # (batch, 1, channels)
    return (summed.flatten(1) * by_channel.flatten(1)).sum(1)


def sloped(mean: Tensor, value: Tensor, slope: Tensor) -> Tensor:
    """A value that has a given slope in a mean."""
    return _Sloped.apply(mean, value, slope)  # type: ignore[no-untyped-call,no-any-return]


class _Sloped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, mean: Tensor, value: Tensor, slope: Tensor) -> Tensor:  # noqa: ANN401
        ctx.save_for_backward(slope)
        return value.detach()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:  # noqa: ANN401
        (slope,) = ctx.saved_tensors
        return gradient * slope, None, None
