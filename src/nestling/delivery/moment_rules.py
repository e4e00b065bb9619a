"""What each operation makes of means and variances, and of slopes on the way back: in tensors alone, without autograd.

The variance of an element comes from noise that entered at this element, or before. The rules take elements for
independent of each other, so each mixing operation leaves some of it out; what it left out is found on the way back.
"""

import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from nestling.delivery.mean_graph import argument, aten, size_of
from nestling.distributions import Sloped, larger, largest, rectified
from nestling.errors import NestlingError
from nestling.running.moments import scale_and_shift
from nestling.torch_parts import BATCH_NORM_IN_EVAL

Factors = tuple[Tensor, ...]
"""A variance: one tensor, or a factor per channel (B, C, 1, ...) and a factor per position (B, 1, H, ...)."""
Back = Callable[[Tensor], tuple[Tensor, ...]]
"""The slopes in an operation's inputs that are carried, in order, from the slopes in its output."""


@dataclass(frozen=True)
class Carried:
    """The mean and the variance of each element of a node.

    ``passed`` is the part of the variance that came here, in a straight line, from elements at which it was counted;
    None means that nothing did.
    """

    mean: Tensor
    variance: Factors
    passed: Factors | None = None

    def fresh(self) -> Factors:
        """The part of the variance that was not counted yet."""
        if self.passed is None:
            return self.variance
        return (self.variance[0] - self.passed[0], *self.variance[1:])

    def counted(self) -> "Carried":
        """The same, with all of its variance counted at its elements."""
        return Carried(self.mean, self.variance, self.variance)


def whole(factors: Factors) -> Tensor:
    """A variance as one tensor."""
    return factors[0] if len(factors) == 1 else factors[0] * factors[1]


def scaled_std(factors: Factors) -> Tensor:
    """The root of twice a variance, never zero: of each factor alone, since factors are small."""
    roots = [factor.clamp_min(_LEAST).sqrt() for factor in (2 * factors[0], *factors[1:])]
    return whole(tuple(roots))


_LEAST = 1e-36
"""The least variance, or factor of one, in single precision: the product of two roots is a number too."""


class Rule(nn.Module, ABC):
    """The rule of a node. ``mixes``: one element of its input moves several of its output."""

    mixes = False
    bends = False
    """Whether it is no straight line, so that its output has noise that did not come from its input."""

    def __init__(self, node: fx.Node) -> None:
        super().__init__()
        self.sizes = [size_of(source) for source in node.all_input_nodes if isinstance(source.meta.get("val"), Tensor)]
        self.check(node)

    def check(self, node: fx.Node) -> None:
        """Refuse a node whose options have no rule."""

    @abstractmethod
    def forward(self, *arguments: Any) -> tuple[Carried, Back]:  # noqa: ANN401
        """The result for the arguments of the node's call, and the way back."""


class Same(Rule):
    """An operation that hands on its input, or takes it out of a list."""

    def forward(self, x: Carried, *rest: Any) -> tuple[Carried, Back]:  # noqa: ANN401
        """The input."""
        return x, lambda slope: (slope,)


class Relu(Rule):
    """ReLU of each element."""

    bends = True

    def forward(self, x: Carried) -> tuple[Carried, Back]:
        """By the closed form."""
        moments = rectified(x.mean, whole(x.variance), scaled_std(x.variance))
        return Carried(moments.mean, (moments.variance,)), lambda slope: (slope * moments.slopes[0],)


class Moved(Rule):
    """An operation that gives a tensor another shape."""

    def __init__(self, node: fx.Node) -> None:
        super().__init__(node)
        self.function: Any = node.target

    def forward(self, x: Carried, *rest: Any) -> tuple[Carried, Back]:  # noqa: ANN401
        """The input in its new shape."""
        moved = [None if part is None else (self.function(whole(part), *rest),) for part in (x.variance, x.passed)]
        shape = x.mean.shape
        return Carried(self.function(x.mean, *rest), moved[0] or (), moved[1]), lambda slope: (slope.reshape(shape),)


class BatchNorm(Rule):
    """A batch norm in eval mode that no layer took in."""

    def forward(
        self,
        x: Carried,
        weight: Tensor | None,
        bias: Tensor | None,
        mean: Tensor,
        variance: Tensor,
        momentum: float,
        eps: float,
    ) -> tuple[Carried, Back]:
        """A factor and a shift for each channel."""
        shape = (1, -1, *[1] * (x.mean.ndim - 2))
        factor, shift = (part.view(shape) for part in scale_and_shift(weight, bias, mean, variance, eps))
        square = factor.square()
        passed = None if x.passed is None else (x.passed[0] * square, *x.passed[1:])
        scaled = Carried(x.mean * factor + shift, (x.variance[0] * square, *x.variance[1:]), passed)
        return scaled, lambda slope: (slope * factor,)


class Add(Rule):
    """The sum of two tensors of the same size, or of a tensor and a number or known tensor."""

    def check(self, node: fx.Node) -> None:
        """Refuse other sizes, and a tensor that is added to itself."""
        first, second = node.args[:2]
        if node.kwargs.get("alpha", 1) != 1 or first is second or len(set(self.sizes)) > 1:
            raise no_rule(node)

    def forward(self, first: Any, second: Any, alpha: float = 1) -> tuple[Carried, Back]:  # noqa: ANN401
        """The sums of means and of variances."""
        both = [value for value in (first, second) if isinstance(value, Carried)]
        mean = sum_of(value.mean if isinstance(value, Carried) else value for value in (first, second))
        parts = [whole(value.passed) for value in both if value.passed is not None]
        variance = sum_of(whole(value.variance) for value in both)
        return Carried(mean, (variance,), (sum_of(parts),) if parts else None), lambda slope: (slope,) * len(both)


class Cat(Rule):
    """Tensors joined along an axis that is not the batch."""

    def check(self, node: fx.Node) -> None:
        """Refuse to join batches."""
        if argument(node, 1, 0) % len(self.sizes[0]) == 0:
            raise no_rule(node)

    def forward(self, tensors: Sequence[Any], dim: int = 0) -> tuple[Carried, Back]:
        """The joined means and variances; a known tensor has no variance."""
        means = [value.mean if isinstance(value, Carried) else value for value in tensors]
        zeros = [torch.zeros_like(mean) for mean in means]
        variances = [
            whole(v.variance) if isinstance(v, Carried) else zero for v, zero in zip(tensors, zeros, strict=True)
        ]
        passed = [
            whole(v.passed) if isinstance(v, Carried) and v.passed is not None else zero
            for v, zero in zip(tensors, zeros, strict=True)
        ]
        lengths = [mean.shape[dim] for mean in means]
        is_carried = [isinstance(value, Carried) for value in tensors]

        def back(slope: Tensor) -> tuple[Tensor, ...]:
            parts = torch.split(slope, lengths, dim)
            return tuple(part for part, carried in zip(parts, is_carried, strict=True) if carried)

        return Carried(torch.cat(means, dim), (torch.cat(variances, dim),), (torch.cat(passed, dim),)), back


class Mean(Rule):
    """The mean over some axes of each example."""

    mixes = True

    def check(self, node: fx.Node) -> None:
        """Refuse a mean over examples."""
        axes = node.args[1] if len(node.args) > 1 else None
        if not axes or any(axis % len(self.sizes[0]) == 0 for axis in axes):  # type: ignore[union-attr,operator]
            raise no_rule(node)

    def forward(self, x: Carried, axes: list[int], keepdim: bool = False) -> tuple[Carried, Back]:
        """The mean of independent elements."""
        number, size = 1, x.mean.shape
        for axis in axes:
            number *= int(size[axis])

        def back(slope: Tensor) -> tuple[Tensor]:
            if not keepdim:
                for axis in sorted(axis % len(size) for axis in axes):
                    slope = slope.unsqueeze(axis)
            return ((slope / number).expand(size),)

        variance = whole(x.variance).mean(axes, keepdim) / number
        return Carried(x.mean.mean(axes, keepdim), (variance,), (variance,)), back


class Average(Rule):
    """Averages over windows without padding."""

    mixes = True

    def __init__(self, node: fx.Node) -> None:
        self.window, self.stride = _window(node), _stride(node)
        super().__init__(node)

    def check(self, node: fx.Node) -> None:
        """Refuse padding, and windows that are not whole."""
        if any(argument(node, 3, [0])) or argument(node, 4, False) or argument(node, 6) is not None:
            raise no_rule(node)

    def forward(self, x: Carried, *rest: Any) -> tuple[Carried, Back]:  # noqa: ANN401
        """The averages of means, and of variances over the size of a window."""
        (height, width), size = self.window, x.mean.shape

        def average(tensor: Tensor) -> Tensor:
            return F.avg_pool2d(tensor, self.window, self.stride)

        def back(slope: Tensor) -> tuple[Tensor]:
            taps = slope.new_full((1, 1, height, width), 1 / (height * width))
            return (_onto_windows(slope.unsqueeze(2), taps, self.stride, size),)

        variance = average(whole(x.variance)) / (height * width)
        return Carried(average(x.mean), (variance,), (variance,)), back


class AdaptiveAverage(Average):
    """Averages over as many windows as are asked for."""

    def __init__(self, node: fx.Node) -> None:
        sizes, wanted = size_of(node.all_input_nodes[0])[2:], size_of(node)[2:]
        super().__init__(node)
        self.window = self.stride = (int(sizes[0]) // int(wanted[0]), int(sizes[1]) // int(wanted[1]))
        self.mixes = self.window != (1, 1)

    def check(self, node: fx.Node) -> None:
        """Refuse windows of several sizes."""
        if any(size % wanted for size, wanted in zip(self.sizes[0][2:], size_of(node)[2:], strict=True)):
            raise no_rule(node)

    def forward(self, x: Carried, *rest: Any) -> tuple[Carried, Back]:  # noqa: ANN401
        """The averages; one position stays as it is."""
        return super().forward(x) if self.mixes else (x, lambda slope: (slope,))


class MaxPool(Rule):
    """The largest element of each window, without padding; an element that lies in several windows moves them all."""

    def __init__(self, node: fx.Node) -> None:
        self.window, self.stride = _window(node), _stride(node)
        super().__init__(node)
        self.mixes = self.stride != self.window
        self.bends = not self.mixes
        self.is_of_four = self.window == self.stride == (2, 2) and not any(size % 2 for size in self.sizes[0][2:])

    def check(self, node: fx.Node) -> None:
        """Refuse padding, gaps, and windows that are not whole."""
        fits = all(size >= length for size, length in zip(self.sizes[0][2:], self.window, strict=True))
        if any(argument(node, 3, [0])) or set(argument(node, 4, [1])) != {1} or argument(node, 5, False) or not fits:
            raise no_rule(node)

    def forward(self, x: Carried, *rest: Any) -> tuple[Carried, Back]:  # noqa: ANN401
        """Two elements at a time, as ``largest`` does."""
        (height, width), size = self.window, x.mean.shape
        variance = whole(x.variance)
        (last_row, last_column) = (
            (length - window) // step * step
            for length, window, step in zip(size[2:], self.window, self.stride, strict=True)
        )
        places = [
            (
                ...,
                slice(row, row + last_row + 1, self.stride[0]),
                slice(column, column + last_column + 1, self.stride[1]),
            )
            for row in range(height)
            for column in range(width)
        ]
        moments = largest([(x.mean[place], variance[place]) for place in places])
        passed = None
        if self.mixes:
            passed = (moments.variance - moments.left_over([variance[place] for place in places]),)

        def back(slope: Tensor) -> tuple[Tensor]:
            parts = torch.stack([slope * part for part in moments.slopes], 2)
            taps = torch.eye(height * width, dtype=slope.dtype, device=slope.device)
            return (_onto_windows(parts, taps.view(-1, 1, height, width), self.stride, size),)

        return Carried(moments.mean, (moments.variance,), passed), back


class MaxPoolOfFour(MaxPool):
    """The largest of each window of 2 x 2, two columns and then two rows at a time.

    Columns are taken apart and put together by products with matrices of ones and zeros: runtimes are slow to copy
    every other element.
    """

    def forward(self, x: Carried, *rest: Any) -> tuple[Carried, Back]:  # noqa: ANN401
        """Two elements at a time, in the order of ``largest``."""
        *outer, rows, columns = x.mean.shape
        apart = torch.eye(columns, dtype=x.mean.dtype, device=x.mean.device)
        left, right = apart[:, ::2], apart[:, 1::2]
        *by_channel, by_place = x.variance
        pair = [Sloped(x.mean @ side, whole((*by_channel, by_place @ side)), []) for side in (left, right)]
        beside = larger(pair[0], pair[1], scaled_std((*by_channel, by_place @ (left + right))))
        above = largest([*zip(_halves(beside.mean), _halves(beside.variance), strict=True)])
        across, down = beside.slopes[0], above.slopes[0]

        def back(slope: Tensor) -> tuple[Tensor]:
            upper = slope * down
            both = torch.cat((upper, slope - upper), -1).view(*outer, rows, columns // 2)
            first = both * across
            return (torch.cat((first, both - first), -1) @ torch.cat((left, right), 1).T,)

        return Carried(above.mean, (above.variance,)), back


def _halves(tensor: Tensor) -> tuple[Tensor, ...]:
    """The upper and the lower row of each pair of rows."""
    return tensor.reshape(*tensor.shape[:-2], tensor.shape[-2] // 2, 2 * tensor.shape[-1]).chunk(2, -1)


def no_rule(node: fx.Node) -> NestlingError:
    """The error for a node that has no rule."""
    name = str(node.target).removeprefix("aten.").partition(".")[0]
    size = tuple(size_of(node)) if isinstance(node.meta.get("val"), Tensor) else ()
    return NestlingError(
        f"{name} (which gives {', '.join(map(str, size))}) has no rule for means and variances with these options. "
        "Export with uncertainty='draws'."
    )


def sum_of(tensors: Any) -> Tensor:  # noqa: ANN401
    """The sum of some tensors."""
    first, *others = tensors
    for other in others:
        first = first + other
    return first  # type: ignore[no-any-return]


def _onto_windows(parts: Tensor, taps: Tensor, stride: Sequence[int], size: torch.Size) -> Tensor:
    """Slopes (B, C, parts, H', W') put where windows read, by taps (parts, 1, height, width), and added up."""
    rest = [(length - window) % step for length, window, step in zip(size[2:], taps.shape[2:], stride, strict=True)]
    placed = F.conv_transpose2d(parts.flatten(0, 1), taps, stride=tuple(stride), output_padding=rest)
    return placed.view(-1, *size[1:])


def _window(node: fx.Node) -> tuple[int, int]:
    return _two(argument(node, 1))


def _stride(node: fx.Node) -> tuple[int, int]:
    return _two(argument(node, 2) or argument(node, 1))


def _two(sizes: Sequence[int]) -> tuple[int, int]:
    return int(sizes[0]), int(sizes[-1])


RULES: dict[Any, type[Rule]] = {
    operator.getitem: Same,
    aten.relu.default: Relu,
    aten.view.default: Moved,
    aten.reshape.default: Moved,
    aten.flatten.using_ints: Moved,
    aten.squeeze.dims: Moved,
    aten.unsqueeze.default: Moved,
    BATCH_NORM_IN_EVAL: BatchNorm,
    aten.add.Tensor: Add,
    aten.cat.default: Cat,
    aten.mean.dim: Mean,
    aten.avg_pool2d.default: Average,
    aten.adaptive_avg_pool2d.default: AdaptiveAverage,
    aten.max_pool2d.default: MaxPool,
}
"""The rule of each operation but layers."""
