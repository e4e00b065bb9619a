"""The mean and variance of each element of a tensor, which the code of a network treats as a tensor.

Autograd's graph is built for the means, and for nothing else.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor

from nestling.distributions import Pair, normal_noise, rectified
from nestling.running.moments.sources import (
    Direction,
    NoiseSource,
    graph_of_means,
    in_pieces,
    joined,
    sloped,
    variance_along,
    weighed,
)
from nestling.torch_parts import pytree

Rule = Callable[..., Any]
_F = TypeVar("_F", bound=Rule)
RULES: dict[Any, Rule] = {}
"""The rule for moments of each operation."""
_PROPERTIES = ("size", "dim", "numel", "stride", "is_contiguous", "is_floating_point", "ndimension")
"""Methods of a tensor that do not depend on its values."""
_TRANSPOSED = ("T", "mT", "H", "mH")
"""Attributes of a tensor with its axes in another order."""
_INDEPENDENT_SHARE = 0.85
"""A factor that variances lack goes, to this power, to each element's noise alone; the rest to noise in common."""
_MANY_PAIRS = 32
"""From this many pairs on, draws are scaled to their exact variance; they still look Gaussian then."""
_SAME = "pow rpow rtruediv rsub floordiv mod matmul rmatmul abs gt ge lt le".split()
_OPERATORS: dict[str, Any] = {f"__{name}__": getattr(Tensor, f"__{name}__") for name in _SAME} | {
    "__add__": Tensor.add,
    "__radd__": Tensor.add,
    "__iadd__": Tensor.add_,
    "__neg__": Tensor.neg,
    "__sub__": Tensor.sub,
    "__isub__": Tensor.sub_,
    "__truediv__": Tensor.div,
    "__itruediv__": Tensor.div_,
    "__mul__": Tensor.mul,
    "__rmul__": Tensor.mul,
    "__imul__": Tensor.mul_,
}
"""The method that each operator stands for."""


class Moments:
    """The mean and variance of each element of a tensor.

    ``rectified`` moments are stored before a ReLU, which is applied when they are read. So max pooling can come first,
    which leaves fewer elements for the ReLU. ``positive`` moments have been through a ReLU. Outputs may have noise
    ``together``, beside the variance of each: one noise value per example moves each output by this much.
    """

    def __init__(
        self, mean: Tensor, variance: Tensor, *, rectified: bool = False, together: Tensor | None = None
    ) -> None:
        self._mean, self._variance = mean, variance.detach().expand_as(mean)
        self.rectified, self.positive, self.together = rectified, rectified, together

    @property
    def mean_(self) -> Tensor:
        """The mean of each element."""
        self.settle()
        return self._mean

    @property
    def variance(self) -> Tensor:
        """The variance of each element."""
        self.settle()
        return self._variance

    def before(self) -> Pair:
        """The mean and the variance of each element before the ReLU of those that are ``rectified``."""
        return self._mean, self._variance

    def draw(self, number: int) -> Tensor:
        """Draws of all elements (number * batch, ...): one copy of the batch per draw, in turn.

        The second half has the noise of the first half with the opposite sign, so that means are exact; with many draws
        variances are exact too.
        """
        copies = [1] * (self._mean.ndim - 1)
        mean, variance = (moment.repeat(number, *copies) for moment in (self._mean.detach(), self._variance))
        noise, together, in_common = _noise_in_pairs(self._mean.detach(), number), None, None
        if self.together is not None:
            together = self.together.repeat(number, *copies)
            in_common = _noise_in_pairs(self.together.new_empty(len(self), *copies), number)
        sampled = drawn_outputs(mean, variance, together, noise, in_common)
        return sampled.relu_() if self.rectified else sampled

    @classmethod
    def __torch_function__(
        cls,
        func: Any,  # noqa: ANN401
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        """Apply the rule of an operation; without a rule, run it on draws."""
        named = dict(kwargs or {})
        in_inference_mode = torch.is_inference_mode_enabled()
        with graph_of_means():
            if in_inference_mode:
                args, named = pytree.tree_map_only(Tensor, Tensor.clone, (args, named))
            result = RULES[func](*args, **named) if func in RULES else run_on_draws(func, args, named)
        if isinstance(result, Moments) and isinstance(args[0], Moments) and _is_in_place(func, named):
            args[0]._become(result)
            return args[0]
        return result

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        """A method of a tensor, or a property that does not depend on its values."""
        method = getattr(Tensor, name)  # an AttributeError names what is missing
        if name == "data":
            return self
        if name in _TRANSPOSED:
            with graph_of_means():
                return Moments(getattr(self.mean_, name), getattr(self.variance, name))
        if name in _PROPERTIES or not callable(method):
            return getattr(self._mean, name)
        return lambda *args, **kwargs: Moments.__torch_function__(method, (Moments,), (self, *args), kwargs)

    def __len__(self) -> int:
        """The length of the first axis."""
        return len(self._mean)

    def __getitem__(self, index: Any) -> "Moments":  # noqa: ANN401
        """Some of the elements."""
        with graph_of_means():
            return Moments(self.mean_[index], self.variance[index])

    def along(self, direction: Direction) -> "Moments":
        """The same means, with variances corrected to agree with all noise sources along a direction."""
        mean = self.mean_
        if not mean.requires_grad:  # no noise source is known
            return self
        along = variance_along(mean, direction.weights, current_pass().sources)
        variance, together = corrected(self.variance, direction, along)
        return Moments(mean.detach(), variance, together=together)

    def settle(self) -> None:
        """Apply a ReLU that was postponed."""
        if not self.rectified:
            return
        with torch.no_grad():
            value, variance, added, slope = joined(in_pieces(_rectified, self._mean, self._variance))
        with graph_of_means():
            self._mean = register_noise(sloped(self._mean, value, slope), added)
        self._variance, self.rectified = variance, False

    def _become(self, other: "Moments") -> None:
        self._mean, self._variance = other.before()
        self.rectified, self.positive, self.together = other.rectified, other.positive, other.together


def corrected(variance: Tensor, direction: Direction, along: Tensor) -> tuple[Tensor, Tensor | None]:
    """The variance of each output, and its noise in common, that agree with the variance along a direction.

    The variance along the direction lacks a factor. Part of the factor goes to the noise of each output alone. The
    rest becomes noise in common, in the direction in which a Gaussian with these variances moves if its sum along
    the given direction moves. If signs are random, the sum of one example says little; then, and if noise can't be
    told apart by example, all examples share one factor, and all of it goes to the noise of each output.
    """
    weights = direction.weights
    alone = weighed(weights.square(), variance)
    by_example = not direction.random and along.shape == alone.shape
    if not by_example:
        along, alone = along.sum(0, keepdim=True), alone.sum(0, keepdim=True)
    divisor = alone.clamp_min(torch.finfo(alone.dtype).tiny)
    factor = torch.where(alone > 0, along / divisor, 1.0)
    own_factor = torch.where(factor > 1, factor**_INDEPENDENT_SHARE, factor) if by_example else factor
    shape = (-1, *[1] * (variance.ndim - 1))
    in_common = ((factor - own_factor) * alone).clamp_min(0).sqrt() / divisor
    together = variance * weights * in_common.view(shape) if by_example else None
    return variance * own_factor.view(shape), together


def drawn_outputs(
    mean: Tensor, variance: Tensor, together: Tensor | None, noise: Tensor, in_common: Tensor | None
) -> Tensor:
    """Outputs for noise of each, and for noise that they have in common."""
    sampled = torch.addcmul(mean, variance.clamp_min(0).sqrt(), noise)
    if together is not None and in_common is not None:
        sampled = torch.addcmul(sampled, together, in_common)
    return sampled


def _noise_in_pairs(like: Tensor, number: int) -> Tensor:
    """(number * batch, ...): noise for copies of a batch, the second half with the opposite sign."""
    half = (number + 1) // 2
    noise = normal_noise(like.repeat(half, *[1] * (like.ndim - 1)))
    return in_pairs(noise.view(half, len(like), *noise.shape[1:])).flatten(0, 1)[: number * len(like)]


def in_pairs(noise: Tensor) -> Tensor:
    """(2 * pairs, ...): noise (pairs, ...), and once more with the opposite sign; many pairs get variance one."""
    if len(noise) >= _MANY_PAIRS:
        noise = noise * noise.square().mean(0).rsqrt()
    return torch.cat([noise, noise.neg()])


def _operator(function: Any) -> Callable[..., Any]:  # noqa: ANN401
    return lambda moments, *args: Moments.__torch_function__(function, (Moments,), (moments, *args))


for _name, _function in _OPERATORS.items():
    setattr(Moments, _name, _operator(_function))


@dataclass
class Carrying:
    """How a pass of moments runs: the number of draws for an operation without a rule, and whether there was one.

    ``size`` is that of the batch, and ``sources`` are the noise sources so far.
    """

    number: int
    size: int = 1
    drawn: bool = False
    sources: list[NoiseSource] = field(default_factory=list)

    def copies_of(self, value: Moments) -> int:
        """How many draws of a value are needed to match the others: one if the value depends on draws already."""
        return 1 if self.drawn and len(value) % max(self.number * self.size, 1) == 0 else self.number


_carrying: ContextVar[Carrying | None] = ContextVar("carrying", default=None)


@contextmanager
def carrying(settings: Carrying) -> Iterator[Carrying]:
    """Inside the ``with`` statement moments are carried in this way."""
    token = _carrying.set(settings)
    try:
        yield settings
    finally:
        _carrying.reset(token)


def current_pass() -> Carrying:
    """How moments are carried now."""
    return _carrying.get() or Carrying(1)


def register_noise(mean: Tensor, *factors: Tensor, in_common: bool = False) -> Tensor:
    """Register noise of the elements of a mean, whose variance is the product of the factors; returns the mean."""
    mean = mean if mean.requires_grad else mean.requires_grad_()
    current_pass().sources.append(NoiseSource(mean, factors, in_common))
    return mean


@torch.no_grad()
def run_on_draws(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401
    """Run an operation on draws of its moments, and on as many copies of its other arguments."""
    settings = current_pass()
    name = getattr(func, "__name__", str(func))
    message = f"{name} has no rule for means and variances: from there on {settings.number} draws are made."
    warnings.warn(message, stacklevel=4)
    is_leaf: Any = lambda value: isinstance(value, Moments)  # noqa: E731
    leaves = pytree.tree_leaves((args, kwargs), is_leaf=is_leaf)
    copies = {(value.ndim, len(value)): settings.copies_of(value) for value in leaves if isinstance(value, Moments)}
    settings.drawn = True

    def draw(value: Any) -> Any:  # noqa: ANN401
        if isinstance(value, Moments):
            return value.draw(copies[value.ndim, len(value)])
        if isinstance(value, Tensor) and value.ndim and (value.ndim, len(value)) in copies:
            return value.repeat(copies[value.ndim, len(value)], *[1] * (value.ndim - 1))
        return value

    drawn, named = pytree.tree_map(draw, (args, kwargs), is_leaf=is_leaf)
    return func(*drawn, **named)


def rule(*functions: Any) -> Callable[[_F], _F]:  # noqa: ANN401
    """A decorator that makes a function the rule of some operations."""

    def register(function: _F) -> _F:
        RULES.update(dict.fromkeys(functions, function))
        return function

    return register


def _rectified(mean: Tensor, variance: Tensor) -> tuple[Tensor, ...]:
    moments = rectified(mean, variance)
    return moments.mean, moments.variance, moments.left_over([variance]), *moments.slopes


def _is_in_place(func: Any, kwargs: Mapping[str, Any]) -> bool:  # noqa: ANN401
    name = getattr(func, "__name__", "")
    return bool(kwargs.get("inplace")) or (name.endswith("_") and not name.endswith("__"))
