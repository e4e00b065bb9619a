"""Noise sources in a network, and how much of their variance reaches the outputs along a direction.

In a pass of moments each element has a variance as if it were independent of the others. But the noise of one layer
moves many elements of the next. To first order, that dependence is in the gradients of the outputs' means. One backward
pass gives these gradients for one direction of the outputs, over all paths from the noise sources to the outputs.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nestling.errors import NestlingError

_PIECE = 2**18
"""The number of elements processed at a time, so that intermediate results stay in the cache."""


class Direction(NamedTuple):
    """A weighted sum of outputs; the signs are ``random`` if an example has several sums of interest."""

    weights: Tensor
    random: bool


@dataclass(frozen=True)
class NoiseSource:
    """Elements, given by their means, and the variance of the noise that enters there.

    The variance is one factor, or the product of a factor per channel (batch, channels, 1, ...) and a factor per
    position (batch, 1, ...). The noise is independent between elements, unless it is ``in_common``: then all elements
    that share an entry of the factor share one noise value.
    """

    mean: Tensor
    factors: tuple[Tensor, ...]
    in_common: bool = False

    def arriving(self, slopes: Tensor) -> Tensor:
        """(examples,): the variance that reaches the outputs, given the outputs' derivatives in these elements."""
        if self.in_common:
            slopes = slopes.sum_to_size(self.factors[0].shape)
        return torch.cat(in_pieces(arriving, slopes, *self.factors))


def variance_along(mean: Tensor, weights: Tensor, sources: Sequence[NoiseSource]) -> Tensor:
    """(examples,): the variance of each example's weighted sum of outputs, from all noise sources.

    (1,): the variance of all examples together, if the first axis of some source is not the batch axis of the outputs.
    """
    slopes = torch.autograd.grad(mean, [source.mean for source in sources], weights, allow_unused=True)
    arriving = [source.arriving(slope) for source, slope in zip(sources, slopes, strict=True) if slope is not None]
    if any(len(variance) != len(mean) for variance in arriving):
        arriving = [variance.sum(0, keepdim=True) for variance in arriving]
    return torch.stack(arriving).sum(0)


def graph_of_means() -> AbstractContextManager[None]:
    """Inside the ``with`` statement autograd follows the means, whatever the mode outside."""
    return _after_inference_mode() if torch.is_inference_mode_enabled() else torch.enable_grad()


@contextmanager
def _after_inference_mode() -> Iterator[None]:
    with torch.inference_mode(False), torch.enable_grad():
        yield


def in_pieces(function: Callable[..., Any], *tensors: Tensor) -> list[Any]:
    """The results of a function that treats each example separately, on a few examples at a time."""
    first = tensors[0]
    if first.numel() <= _PIECE:
        return [function(*tensors)]
    piece_size = max(1, _PIECE * len(first) // first.numel())
    return [function(*piece) for piece in zip(*(torch.split(tensor, piece_size) for tensor in tensors), strict=True)]


def joined(pieces: list[tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    """The tensors of all pieces, joined."""
    return pieces[0] if len(pieces) == 1 else tuple(torch.cat(tensors) for tensors in zip(*pieces, strict=True))


def weighed(squares: Tensor, weights: Tensor) -> Tensor:
    """(examples,): the weighted sum of squares of each example; the squares are overwritten."""
    product = squares.mul_(weights)
    return product.sum(tuple(range(1, product.ndim))) if product.ndim > 1 else product


def arriving(slope: Tensor, *factors: Tensor) -> Tensor:
    """(examples,): the variance, given as factors, that reaches the outputs along the slopes of its elements."""
    if len(factors) == 1:
        return weighed(slope.square(), factors[0])
    by_channel, by_position = factors
    summed = by_position.flatten(2) @ slope.square().flatten(2).transpose(1, 2)  # (batch, 1, channels)
    return (summed.flatten(1) * by_channel.flatten(1)).sum(1)


def sloped(mean: Tensor, value: Tensor, slope: Tensor) -> Tensor:
    """A value with a given derivative with respect to a mean."""
    return _Sloped.apply(mean, value, slope)  # type: ignore[no-untyped-call,no-any-return]


def with_first_derivatives_only(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Make a backward pass refuse to have its gradients differentiated again: the slopes it uses are constants.

    torch's ``once_differentiable`` refuses nothing if the gradient of the output is a constant too.
    """

    def checked(ctx: Any, *gradients: Tensor | None) -> Any:  # noqa: ANN401
        if torch.is_grad_enabled():
            raise NestlingError(
                "create_graph=True in a pass of moments, whose gradients can't be differentiated again. "
                "Differentiate draws of weights instead."
            )
        return backward(ctx, *gradients)

    return checked


class _Sloped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, mean: Tensor, value: Tensor, slope: Tensor) -> Tensor:  # noqa: ANN401
        ctx.save_for_backward(slope)
        return value.detach()

    @staticmethod
    @with_first_derivatives_only
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:  # noqa: ANN401
        (slope,) = ctx.saved_tensors
        return gradient * slope, None, None
