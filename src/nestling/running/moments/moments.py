"""The mean and the variance of each element of a tensor, which the code of a network takes for one.

Means know how they follow from each other: autograd's graph is built for them, and for nothing else.
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
"""What becomes of moments, by the operation."""
_ASKED = ("size", "dim", "numel", "stride", "is_contiguous", "is_floating_point", "ndimension")
"""Methods of a tensor that do not depend on its values."""
_TURNED = ("T", "mT", "H", "mH")
"""Attributes of a tensor that have its elements in another order."""
_OF_ITS_OWN = 0.85
"""The share, of the logarithm of a factor that variances lack, by which each element's own is multiplied."""
_MANY_PAIRS = 32
"""Pairs of draws from which on they are given the variance that they should have, and still look like Gaussian ones."""
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
"""What an operator is another name of."""


class Moments:
    """The mean and the variance of each element of a tensor.

    Of ``rectified`` elements those before a ReLU are given: it is applied when somebody asks for what comes after it,
    since the largest of some elements may as well be found before, which leaves fewer of them. ``positive`` ones have
    been through a ReLU. Outputs may have noise ``together`` beside the variance that each has of its own: one number an
    example, which moves each of them by so much.
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

    def draws(self, number: int) -> Tensor:
        """Draws of all elements (number * batch, ...), one copy of the batch after the other.

        The second half has the noise of the first with the other sign, so that means come out as they are; so do
        variances, if there are many.
        """
        copies = [1] * (self._mean.ndim - 1)
        mean, std = (own.repeat(number, *copies) for own in (self._mean.detach(), self._variance.clamp_min(0).sqrt()))
        drawn = torch.addcmul(mean, std, _in_pairs(self._mean.detach(), number))
        if self.together is not None:
            in_common = _in_pairs(self.together.new_empty(len(self), *copies), number)
            drawn.addcmul_(self.together.repeat(number, *copies), in_common)
        return drawn.relu_() if self.rectified else drawn

    @classmethod
    def __torch_function__(
        cls,
        func: Any,  # noqa: ANN401
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        """Apply the rule of an operation, or draw."""
        named = dict(kwargs or {})
        in_inference_mode = torch.is_inference_mode_enabled()
        with graph_of_means():
            if in_inference_mode:
                args, named = pytree.tree_map_only(Tensor, Tensor.clone, (args, named))
            result = RULES[func](*args, **named) if func in RULES else drawn(func, args, named)
        if isinstance(result, Moments) and isinstance(args[0], Moments) and _is_in_place(func, named):
            args[0]._become(result)
            return args[0]
        return result

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        """A method of a tensor, or what does not depend on the values."""
        method = getattr(Tensor, name)  # an AttributeError names what is missing
        if name == "data":
            return self
        if name in _TURNED:
            with graph_of_means():
                return Moments(getattr(self.mean_, name), getattr(self.variance, name))
        if name in _ASKED or not callable(method):
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
        """The same means, with noise that agrees along a direction with all there was on the way.

        It lacks a factor. Outputs have part of it each for itself, and the rest together, in the direction in which a
        Gaussian of such variances goes if its sum along the first moves. All examples have one factor, and each output
        all of it, if signs are random, since the sum of one example says little then, or if it can't be told which
        noise is whose.
        """
        mean, weights = self.mean_, direction.weights
        if not mean.requires_grad:  # nothing is known of where its noise comes from
            return self
        along = variance_along(mean, weights, carried().sources)
        alone = weighed(weights.square(), self.variance)
        by_example = not direction.random and along.shape == alone.shape
        if not by_example:
            along, alone = along.sum(0, keepdim=True), alone.sum(0, keepdim=True)
        divisor = alone.clamp_min(torch.finfo(alone.dtype).tiny)
        factor = torch.where(alone > 0, along / divisor, 1.0)
        own = torch.where(factor > 1, factor**_OF_ITS_OWN, factor) if by_example else factor
        shape = (-1, *[1] * (mean.ndim - 1))
        rest = ((factor - own) * alone).clamp_min(0).sqrt() / divisor
        together = self.variance * weights * rest.view(shape) if by_example else None
        return Moments(mean.detach(), self.variance * own.view(shape), together=together)

    def settle(self) -> None:
        """Apply a ReLU that was put off."""
        if not self.rectified:
            return
        with torch.no_grad():
            value, variance, rest, slope = joined(in_pieces(_rectified, self._mean, self._variance))
        with graph_of_means():
            self._mean = noted(sloped(self._mean, value, slope), rest)
        self._variance, self.rectified = variance, False

    def _become(self, other: "Moments") -> None:
        self._mean, self._variance = other.before()
        self.rectified, self.positive, self.together = other.rectified, other.positive, other.together


def _in_pairs(like: Tensor, number: int) -> Tensor:
    """(number * batch, ...): noise for some copies of a batch, the second half with the other sign."""
    half = (number + 1) // 2
    noise = normal_noise(like.repeat(half, *[1] * (like.ndim - 1)))
    if half >= _MANY_PAIRS:
        by_pair = noise.view(half, len(like), *noise.shape[1:])
        by_pair *= by_pair.square().mean(0).rsqrt_()
    return torch.cat([noise, noise.neg()])[: number * len(like)]


def _operator(function: Any) -> Callable[..., Any]:  # noqa: ANN401
    return lambda own, *args: Moments.__torch_function__(function, (Moments,), (own, *args))


for _name, _function in _OPERATORS.items():
    setattr(Moments, _name, _operator(_function))


@dataclass
class Carrying:
    """How a pass over a batch of a size is made: the draws of an operation without a rule, and if it came to that.

    ``sources`` are where noise has come in so far.
    """

    number: int
    size: int = 1
    drawn: bool = False
    sources: list[NoiseSource] = field(default_factory=list)

    def copies_of(self, value: Moments) -> int:
        """How many draws of a value make as many as there are of others: one of what depends on draws already."""
        return 1 if self.drawn and len(value) % max(self.number * self.size, 1) == 0 else self.number


_carrying: ContextVar[Carrying | None] = ContextVar("carrying", default=None)


@contextmanager
def carrying(now: Carrying) -> Iterator[Carrying]:
    """Carry moments in this way inside the block."""
    token = _carrying.set(now)
    try:
        yield now
    finally:
        _carrying.reset(token)


def carried() -> Carrying:
    """The way in which moments are carried now."""
    return _carrying.get() or Carrying(1)


def noted(mean: Tensor, *factors: Tensor, in_common: bool = False) -> Tensor:
    """A mean whose elements have noise of their own, of a variance that is the product of its factors."""
    mean = mean if mean.requires_grad else mean.requires_grad_()
    carried().sources.append(NoiseSource(mean, factors, in_common))
    return mean


@torch.no_grad()
def drawn(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401
    """What an operation gives for draws of what it is given, and for as many copies of what goes along with it."""
    now = carried()
    name = getattr(func, "__name__", str(func))
    message = f"{name} has no rule for means and variances: from there on {now.number} draws are made."
    warnings.warn(message, stacklevel=4)
    is_leaf: Any = lambda value: isinstance(value, Moments)  # noqa: E731
    leaves = pytree.tree_leaves((args, kwargs), is_leaf=is_leaf)
    copies = {(own.ndim, len(own)): now.copies_of(own) for own in leaves if isinstance(own, Moments)}
    now.drawn = True

    def draw(value: Any) -> Any:  # noqa: ANN401
        if isinstance(value, Moments):
            return value.draws(copies[value.ndim, len(value)])
        if isinstance(value, Tensor) and value.ndim and (value.ndim, len(value)) in copies:
            return value.repeat(copies[value.ndim, len(value)], *[1] * (value.ndim - 1))
        return value

    given, named = pytree.tree_map(draw, (args, kwargs), is_leaf=is_leaf)
    return func(*given, **named)


def rule(*functions: Any) -> Callable[[_F], _F]:  # noqa: ANN401
    """Make a function the rule of some operations."""

    def register(own: _F) -> _F:
        RULES.update(dict.fromkeys(functions, own))
        return own

    return register


def _rectified(mean: Tensor, variance: Tensor) -> tuple[Tensor, ...]:
    found = rectified(mean, variance)
    return found.mean, found.variance, found.left_over([variance]), *found.slopes


def _is_in_place(func: Any, kwargs: Mapping[str, Any]) -> bool:  # noqa: ANN401
    name = getattr(func, "__name__", "")
    return bool(kwargs.get("inplace")) or (name.endswith("_") and not name.endswith("__"))
