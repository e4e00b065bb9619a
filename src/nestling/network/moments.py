"""Means and variances carried through a network in one pass, each element as a Gaussian that is independent of others.

A layer with a posterior gives ``Moments`` instead of a draw; to the code of a network they are a tensor, and a rule for
each operation says what becomes of them. An operation without a rule gets draws, one copy of the batch for each.
"""

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils import _pytree as pytree

from nestling.distributions.gaussians import Pair, largest, rectified
from nestling.distributions.noise import normal_noise

Rule = Callable[..., Any]
_F = TypeVar("_F", bound=Rule)
_RULES: dict[Any, Rule] = {}
_draws: ContextVar[int] = ContextVar("draws", default=1)
"""How many draws an operation without a rule gets."""
_SHAPED = """
    flatten reshape view squeeze unsqueeze permute transpose contiguous narrow select chunk split unflatten expand clone
    detach to float double movedim flip roll unbind
""".split()
"""Methods, and functions of torch, that only move elements."""
_POINTWISE: tuple[Callable[..., Tensor], ...] = (
    *(F.gelu, F.silu, F.mish, F.elu, F.selu, F.celu, F.leaky_relu, F.softplus, F.hardswish, F.hardsigmoid, F.hardtanh),
    *(F.relu6, F.logsigmoid, F.softsign, F.tanhshrink, torch.tanh, torch.sigmoid, torch.exp, torch.abs, torch.square),
)
"""Functions of single elements, whose moments are found by quadrature."""
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(10)
_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()
"""Gauss-Hermite for the standard normal distribution: exact for polynomials up to degree 19."""


_PIECE = 2**16
"""Elements that are worked on at a time, so that all that is made on the way stays in the cache."""


class Moments:
    """The mean and the variance of each element of a tensor.

    Of ``rectified`` elements those before a ReLU are given: it is applied when somebody asks for what comes after it,
    since the largest of some elements may as well be found before, which leaves fewer of them.
    """

    def __init__(self, mean: Tensor, variance: Tensor, *, rectified: bool = False) -> None:
        self._mean, self._variance, self.rectified = mean, variance, rectified

    @property
    def mean_(self) -> Tensor:
        """The mean of each element."""
        self._settle()
        return self._mean

    @property
    def variance(self) -> Tensor:
        """The variance of each element."""
        self._settle()
        return self._variance

    def before(self) -> tuple[Tensor, Tensor]:
        """The mean and the variance of each element before the ReLU of those that are ``rectified``."""
        return self._mean, self._variance

    def _settle(self) -> None:
        if self.rectified:
            self._mean, self._variance = _in_pieces(rectified, self._mean, self._variance)
            self.rectified = False

    @classmethod
    def __torch_function__(
        cls,
        func: Any,  # noqa: ANN401
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        """Apply the rule of an operation, or draw."""
        rule = _RULES.get(func)
        if rule is None:
            return _drawn(func, args, dict(kwargs or {}))
        return rule(*args, **(kwargs or {}))

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        """A method of a tensor, or what does not depend on the values."""
        if name in ("shape", "dtype", "device", "ndim", "is_cuda", "layout", "requires_grad"):
            return getattr(self._mean, name)
        method = getattr(Tensor, name)  # an AttributeError names what is missing
        if name in ("size", "dim", "numel", "stride", "is_contiguous", "is_floating_point", "ndimension"):
            return getattr(self._mean, name)
        return lambda *args, **kwargs: Moments.__torch_function__(method, (Moments,), (self, *args), kwargs)

    def __len__(self) -> int:
        """The length of the first axis."""
        return len(self._mean)

    def __getitem__(self, index: Any) -> "Moments":  # noqa: ANN401
        """Some of the elements."""
        return Moments(self.mean_[index], self.variance[index])

    def __neg__(self) -> "Moments":
        """Turned around."""
        return Moments(-self.mean_, self.variance)

    def __add__(self, other: Any) -> Any:  # noqa: ANN401
        """A sum of independent terms."""
        return _add(self, other)

    def __sub__(self, other: Any) -> Any:  # noqa: ANN401
        """A difference of independent terms."""
        return _sub(self, other)

    def __mul__(self, other: Any) -> Any:  # noqa: ANN401
        """A product of independent factors."""
        return _mul(self, other)

    def __truediv__(self, other: Any) -> Any:  # noqa: ANN401
        """Divided by what is known."""
        return _div(self, other)

    __radd__, __rmul__, __iadd__, __imul__ = __add__, __mul__, __add__, __mul__

    def __rsub__(self, other: Any) -> Any:  # noqa: ANN401
        """What is known less this."""
        return _add(-self, other)

    def draws(self, number: int) -> Tensor:
        """Draws of all elements (number * batch, ...), one copy of the batch after the other."""
        mean = self.mean_.repeat(number, *[1] * (self.mean_.ndim - 1))
        std = self.variance.clamp_min(0).sqrt().repeat(number, *[1] * (self.mean_.ndim - 1))
        return torch.addcmul(mean, std, normal_noise(mean))


@contextmanager
def carrying(draws: int) -> Iterator[None]:
    """Inside the block an operation without a rule continues with so many draws."""
    token = _draws.set(draws)
    try:
        yield
    finally:
        _draws.reset(token)


def _drawn(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401
    """What an operation gives for draws of what it is given."""
    number = _draws.get()
    name = getattr(func, "__name__", str(func))
    message = f"{name} has no rule for means and variances: from there on {number} draws are made."
    warnings.warn(message, stacklevel=4)

    def draw(value: Any) -> Any:  # noqa: ANN401
        return value.draws(number) if isinstance(value, Moments) else value

    is_leaf: Any = lambda value: isinstance(value, Moments)  # noqa: E731
    given, named = pytree.tree_map(draw, (args, kwargs), is_leaf=is_leaf)
    return func(*given, **named)


def _rule(*functions: Any) -> Callable[[_F], _F]:  # noqa: ANN401
    def register(rule: _F) -> _F:
        _RULES.update(dict.fromkeys(functions, rule))
        return rule

    return register


def _moving(function: Any) -> Rule:  # noqa: ANN401
    """The rule of an operation that only moves elements."""

    def rule(x: Moments, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        mean, variance = function(x.mean_, *args, **kwargs), function(x.variance, *args, **kwargs)
        if isinstance(mean, Tensor):
            return Moments(mean, variance)
        return tuple(Moments(*pair) for pair in zip(mean, variance, strict=True))

    return rule


def _by_quadrature(function: Callable[..., Tensor]) -> Rule:
    """The rule of a function of single elements."""

    def rule(x: Moments, *args: Any, **kwargs: Any) -> Moments:  # noqa: ANN401
        kwargs.pop("inplace", None)
        std = x.variance.clamp_min(0).sqrt()
        mean, square = torch.zeros_like(std), torch.zeros_like(std)
        for node, weight in zip(_NODES.tolist(), _WEIGHTS.tolist(), strict=True):
            value = function(torch.add(x.mean_, std, alpha=node), *args, **kwargs)
            mean.add_(value, alpha=weight)
            square.addcmul_(value, value, value=weight)
        return Moments(mean, square.sub_(mean.square()).clamp_min_(0))

    return rule


for _name in _SHAPED:
    for _owner in (torch, Tensor):
        if hasattr(_owner, _name):
            _RULES[getattr(_owner, _name)] = _moving(getattr(_owner, _name))
for _function in _POINTWISE:
    _RULES[_function] = _by_quadrature(_function)
    for _same in (getattr(Tensor, _function.__name__, None), getattr(F, _function.__name__, None)):
        if _same is not None:
            _RULES[_same] = _RULES[_function]


@_rule(F.relu, torch.relu, Tensor.relu, torch.relu_, Tensor.relu_)
def _relu(x: Moments, inplace: bool = False) -> Moments:
    return Moments(x.mean_, x.variance, rectified=True)


@_rule(F.linear)
def _linear(x: Any, weight: Tensor, bias: Tensor | None = None) -> Moments:  # noqa: ANN401
    return Moments(F.linear(x.mean_, weight, bias), F.linear(x.variance, weight.square()))


def _convolution(function: Any) -> Rule:  # noqa: ANN401
    def rule(input: Moments, weight: Tensor, bias: Tensor | None = None, *args: Any, **kwargs: Any) -> Moments:  # noqa: ANN401
        mean = function(input.mean_, weight, bias, *args, **kwargs)
        return Moments(mean, function(input.variance, weight.square(), None, *args, **kwargs))

    return rule


for _function in (F.conv1d, F.conv2d, F.conv3d, F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d):
    _RULES[_function] = _convolution(_function)


@_rule(F.batch_norm)
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
        return _drawn(F.batch_norm, arguments, {})
    shape = (-1, *[1] * (input.mean_.ndim - 2))
    factor = torch.rsqrt(running_var + eps) if weight is None else weight * torch.rsqrt(running_var + eps)
    mean = F.batch_norm(input.mean_, running_mean, running_var, weight, bias, False, 0.0, eps)
    return Moments(mean, input.variance * factor.square().view(shape))


@_rule(torch.add, Tensor.add, Tensor.add_)
def _add(x: Any, other: Any, *, alpha: float = 1) -> Moments:  # noqa: ANN401
    (mean, variance), (more, varied) = _pairs(x, other)
    return Moments(mean + alpha * more, variance + alpha**2 * varied)


@_rule(torch.sub, Tensor.sub, Tensor.sub_)
def _sub(x: Any, other: Any, *, alpha: float = 1) -> Moments:  # noqa: ANN401
    return _add(x, other, alpha=-alpha)


@_rule(torch.mul, Tensor.mul, Tensor.mul_)
def _mul(x: Any, other: Any) -> Moments:  # noqa: ANN401
    (mean, variance), (times, varied) = _pairs(x, other)
    square = mean**2 * varied + times**2 * variance + variance * varied
    return Moments(mean * times, square)


@_rule(torch.div, Tensor.div, Tensor.div_)
def _div(x: Any, other: Any) -> Any:  # noqa: ANN401
    if isinstance(other, Moments):
        return _drawn(torch.div, (x, other), {})
    return Moments(x.mean_ / other, x.variance / other**2)


@_rule(torch.cat)
def _cat(tensors: Sequence[Any], dim: int = 0) -> Moments:
    pairs = _pairs(*tensors)
    means = [mean for mean, _ in pairs]
    variances = [own.expand_as(mean) if isinstance(own, Tensor) else torch.zeros_like(mean) for mean, own in pairs]
    return Moments(torch.cat(means, dim), torch.cat(variances, dim))


@_rule(F.dropout, F.dropout1d, F.dropout2d, F.dropout3d)
def _dropout(input: Moments, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:  # noqa: ANN401
    return _drawn(F.dropout, (input, p, training), {}) if training else input


@_rule(torch.mean, Tensor.mean)
def _mean(input: Moments, dim: Any = None, keepdim: bool = False) -> Moments:  # noqa: ANN401
    mean = input.mean_.mean(dim, keepdim)
    number = input.mean_.numel() // max(mean.numel(), 1)
    return Moments(mean, input.variance.mean(dim, keepdim) / number)


@_rule(torch.sum, Tensor.sum)
def _sum(input: Moments, dim: Any = None, keepdim: bool = False) -> Moments:  # noqa: ANN401
    return Moments(input.mean_.sum(dim, keepdim), input.variance.sum(dim, keepdim))


def _averaging(function: Any, rank: int) -> Rule:  # noqa: ANN401
    """An average over windows, each of the same number of elements."""

    def rule(input: Moments, kernel_size: Any, stride: Any = None, padding: Any = 0, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        if args or kwargs.keys() - {"ceil_mode", "count_include_pad", "divisor_override"} or any(kwargs.values()):
            kwargs = {**kwargs, "stride": stride, "padding": padding}
            return _drawn(function, (input, kernel_size, *args), kwargs)
        sizes = kernel_size if isinstance(kernel_size, Sequence) else [kernel_size] * rank
        mean = function(input.mean_, kernel_size, stride, padding)
        return Moments(mean, function(input.variance, kernel_size, stride, padding) / math.prod(sizes))

    return rule


@_rule(F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d)
def _adaptive_average(input: Moments, output_size: Any) -> Any:  # noqa: ANN401
    rank = input.mean_.ndim - 2
    function = {1: F.adaptive_avg_pool1d, 2: F.adaptive_avg_pool2d, 3: F.adaptive_avg_pool3d}[rank]
    sizes = output_size if isinstance(output_size, Sequence) else [output_size] * rank
    spaces = input.mean_.shape[2:]
    wanted = [own if size is None else size for own, size in zip(spaces, sizes, strict=True)]
    if any(own % size for own, size in zip(spaces, wanted, strict=True)):
        return _drawn(function, (input, output_size), {})
    number = math.prod(spaces) / math.prod(wanted)
    return Moments(function(input.mean_, output_size), function(input.variance, output_size) / number)


for _rank, _function in ((1, F.avg_pool1d), (2, F.avg_pool2d), (3, F.avg_pool3d)):
    _RULES[_function] = _averaging(_function, _rank)


@_rule(F.max_pool2d, torch.max_pool2d)
def _max_pool2d(
    input: Moments,
    kernel_size: Any,  # noqa: ANN401
    stride: Any = None,  # noqa: ANN401
    padding: Any = 0,  # noqa: ANN401
    dilation: Any = 1,  # noqa: ANN401
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:  # noqa: ANN401
    """The largest of a window: of the columns of each row, then of the rows."""
    (height, width), (down, right) = _two(kernel_size), _two(kernel_size if stride in (None, []) else stride)
    rows, columns = input.shape[-2:]
    even = rows >= height and columns >= width and not (ceil_mode or return_indices)
    if not even or _two(padding) != (0, 0) or _two(dilation) != (1, 1):
        arguments = (input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)
        return _drawn(F.max_pool2d, arguments, {})
    last_row, last_column = (rows - height) // down * down, (columns - width) // right * right

    def pool(mean: Tensor, variance: Tensor) -> Pair:
        def part(start: int) -> Pair:
            columns = (..., slice(start, start + last_column + 1, right))
            return mean[columns], variance[columns]

        across = largest([part(start) for start in range(width)])
        lines = [(..., slice(start, start + last_row + 1, down), slice(None)) for start in range(height)]
        return largest([(across[0][line], across[1][line]) for line in lines])

    return Moments(*_in_pieces(pool, *input.before()), rectified=input.rectified)


def _in_pieces(function: Callable[..., Pair], mean: Tensor, variance: Tensor) -> Pair:
    """What a function gives that looks at each example by itself, over a few of them at a time."""
    if mean.numel() <= _PIECE:
        return function(mean, variance)
    number = max(1, _PIECE * len(mean) // mean.numel())
    pieces = [function(*piece) for piece in zip(torch.split(mean, number), torch.split(variance, number), strict=True)]
    return torch.cat([own for own, _ in pieces]), torch.cat([own for _, own in pieces])


def _two(size: Any) -> tuple[int, int]:  # noqa: ANN401
    if isinstance(size, Sequence):
        return (int(size[0]), int(size[-1]))
    return (int(size), int(size))


def _pairs(*values: Any) -> list[tuple[Any, Any]]:  # noqa: ANN401
    """The mean and the variance of moments, or of what is known, as many copies of each as the one with the most."""
    sizes = [len(own) for own in values if isinstance(own, Moments)]
    longest = max(len(own) for own in values if isinstance(own, Moments | Tensor) and own.ndim)
    times = longest // min(sizes)
    pairs: list[tuple[Any, Any]] = []
    for own in values:
        if not isinstance(own, Moments):
            pairs.append((own, 0.0))
        elif times == _draws.get() > 1 and len(own) * times == longest:  # a batch that others have draws of
            copies = (times, *[1] * (own.ndim - 1))
            pairs.append((own.mean_.repeat(copies), own.variance.repeat(copies)))
        else:
            pairs.append((own.mean_, own.variance))
    return pairs
