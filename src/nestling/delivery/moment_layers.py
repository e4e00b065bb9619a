"""What linear layers and convolutions make of means and variances, and of slopes on the way back."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.nn import functional as F

from nestling.delivery.mean_graph import CONVOLUTIONS, LINEAR, TRANSPOSED, DrawnLayer, convolution_options
from nestling.delivery.moment_rules import Back, Carried, Factors, Rule, whole
from nestling.errors import NestlingError
from nestling.running.layers import VariationalConvolution, by_group

_CONVOLVE: dict[int, Any] = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_CONVOLVE_TRANSPOSED: dict[int, Any] = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}


class Layer(Rule):
    """A layer, with a posterior over its weight or without: variances by the same operation, with squared weights."""

    mixes = True
    variance: Tensor

    def __init__(self, node: fx.Node, reading: DrawnLayer | None) -> None:
        super().__init__(node)
        self.operation: Any = node.target
        if reading is not None:
            if reading.layer.drawn_as == "channel":
                raise NestlingError(
                    f"{reading.path} draws one noise value per channel, which moments in files have no rule for. "
                    "Export with uncertainty='draws'."
                )
            self.register_buffer("variance", reading.scaled(self.weight_variance(reading)))
        self.is_drawn = reading is not None

    def weight_variance(self, reading: DrawnLayer) -> Tensor:
        """The variance of the weight, as ``variances`` reads it."""
        return reading.layer.posterior.variance().detach()

    def forward(
        self,
        x: Carried | Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        *rest: Any,  # noqa: ANN401
    ) -> tuple[Carried, Back]:
        """The mean and variance of each output."""
        mean = self.operation(x.mean if isinstance(x, Carried) else x, weight, bias, *rest)
        variance, passed = self.variances(x, weight, rest)
        return Carried(mean, variance, passed), lambda slope: (self.back(slope, weight, rest),)

    def variances(self, x: Carried | Tensor, weight: Tensor, rest: Sequence[Any]) -> tuple[Factors, Factors | None]:
        """The variance of each output, and the part of it that came with the input."""
        if not isinstance(x, Carried):
            return (self.operation(x * x, self.variance, None, *rest),), None
        before = whole(x.variance)
        passed = self.operation(before, weight * weight, None, *rest)
        if not self.is_drawn:
            return (passed,), (passed,)
        added = self.operation(before + x.mean * x.mean, self.variance, None, *rest)
        return (passed + added,), (passed,)

    def back(self, slope: Tensor, weight: Tensor, rest: Sequence[Any]) -> Tensor:
        """The slopes in the input."""
        return slope @ weight


class Convolution(Layer):
    """A convolution; its slopes come back by the transposed convolution, or by a plain one where its stride is 1."""

    def __init__(self, node: fx.Node, reading: DrawnLayer | None) -> None:
        super().__init__(node, reading)
        self.rank = CONVOLUTIONS[node.target]

    def back(self, slope: Tensor, weight: Tensor, rest: Sequence[Any]) -> Tensor:
        """The slopes in the input."""
        stride, padding, dilation, groups = convolution_options(rest, self.rank)
        taps = weight.shape[2:]
        edges = [step * (tap - 1) - edge for step, tap, edge in zip(dilation, taps, padding, strict=True)]
        if set(stride) == {1} and groups == 1 and min(edges) >= 0:
            turned = weight.flip(tuple(range(2, weight.ndim))).transpose(0, 1)
            return _CONVOLVE[self.rank](slope, turned, None, 1, edges, dilation)  # type: ignore[no-any-return]
        sizes, outputs = self.sizes[0][2:], slope.shape[2:]
        rest_of = [
            int(size) - ((int(output) - 1) * step + edge - pad + 1)
            for size, output, step, edge, pad in zip(sizes, outputs, stride, edges, padding, strict=True)
        ]
        run = _CONVOLVE_TRANSPOSED[self.rank]
        return run(slope, weight, None, stride, padding, rest_of, groups, dilation)  # type: ignore[no-any-return]


class SeparatedConvolution(Convolution):
    """A convolution of many channels: a variance per channel times the share of each position, as the layer has it."""

    def __init__(self, node: fx.Node, reading: DrawnLayer) -> None:
        super().__init__(node, reading)
        layer, sizes = _convolution(reading), [int(size) for size in self.sizes[0][2:]]
        posterior = layer.posterior
        squares = {"added": posterior.variance().detach(), "passed": posterior.mean.detach().square()}
        self.square: Tensor
        self.register_buffer("square", reading.scaled(layer.even_weight(squares["passed"], sizes)))
        for name, square in squares.items():
            by_channel, taps = layer.by_place_weights(square)
            self.register_buffer(f"{name}_by_channel", by_channel.unsqueeze(0))
            self.register_buffer(f"{name}_taps", taps.view(1, 1, *taps.shape))

    def weight_variance(self, reading: DrawnLayer) -> Tensor:
        """(out, in): the variance of the weight, read as if inputs were the same at all positions."""
        sizes = [int(size) for size in self.sizes[0][2:]]
        return _convolution(reading).even_weight(super().weight_variance(reading), sizes)

    def variances(self, x: Carried | Tensor, weight: Tensor, rest: Sequence[Any]) -> tuple[Factors, Factors | None]:
        """A variance per channel, times the shares of positions."""
        positions = tuple(range(2, 2 + self.rank))
        if not isinstance(x, Carried):
            seconds = x * x
            added = self._channels(seconds.mean(positions), self.variance)
            return (added, _shares(self._places({"added": seconds}, rest), positions)), None
        before = whole(x.variance)
        seconds = before + x.mean * x.mean
        passed = self._channels(before.mean(positions), self.square)
        total = passed + self._channels(seconds.mean(positions), self.variance)
        shares = _shares(self._places({"added": seconds, "passed": before}, rest), positions)
        return (total, shares), (passed, shares)

    def _channels(self, means: Tensor, weight: Tensor) -> Tensor:
        product = by_group(means, weight, 1)
        return product.view(*product.shape, *[1] * self.rank)

    def _places(self, squares: Mapping[str, Tensor], rest: Sequence[Any]) -> Tensor:
        """(B, 1, ...): what each output position reads of squares, added up over the channels and over all of them.

        One convolution, since OpenVINO adds two of one channel wrongly, on one thread with sizes open.
        """
        stride, padding, dilation, _ = convolution_options(rest, self.rank)
        summed = [
            (getattr(self, f"{name}_by_channel") @ square.flatten(2)).view(-1, 1, *square.shape[2:])
            for name, square in squares.items()
        ]
        taps = torch.cat([getattr(self, f"{name}_taps") for name in squares], 1)
        return _CONVOLVE[self.rank](torch.cat(summed, 1), taps, None, stride, padding, dilation)  # type: ignore[no-any-return]


class Transposed(Layer):
    """A transposed convolution; its slopes come back by the convolution with the same weight."""

    def __init__(self, node: fx.Node, reading: DrawnLayer | None) -> None:
        super().__init__(node, reading)
        self.rank = TRANSPOSED[node.target]

    def back(self, slope: Tensor, weight: Tensor, rest: Sequence[Any]) -> Tensor:
        """The slopes in the input."""
        defaults: tuple[Any, ...] = (1, 0, 0, 1, 1)
        stride, padding, _, groups, dilation = (*rest, *defaults[len(rest) :])
        return _CONVOLVE[self.rank](slope, weight, None, stride, padding, dilation, groups)  # type: ignore[no-any-return]


def layer_rule(node: fx.Node, reading: DrawnLayer | None) -> Rule:
    """The rule of a layer."""
    if node.target is LINEAR:
        return Layer(node, reading)
    if node.target in TRANSPOSED:
        return Transposed(node, reading)
    if reading is not None and _convolution(reading).separates_variances:
        return SeparatedConvolution(node, reading)
    return Convolution(node, reading)


def _convolution(reading: DrawnLayer) -> VariationalConvolution:
    assert isinstance(reading.layer, VariationalConvolution)
    return reading.layer


def _shares(by_place: Tensor, positions: tuple[int, ...]) -> Tensor:
    """The values of positions relative to their mean."""
    return by_place / by_place.mean(positions, keepdim=True).clamp_min(torch.finfo(by_place.dtype).tiny)
