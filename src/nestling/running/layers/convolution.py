"""Variational convolutions, plain and transposed, in one, two and three dimensions."""

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nestling.distributions import Sampling
from nestling.distributions.weights import WeightPosterior
from nestling.running.layers.layer import Factors, VariationalLayer, as_parameter
from nestling.torch_parts import ConvNd, edges_of, output_padding

_CONVOLVE = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_MANY_CHANNELS = 16
"""From this many input channels on, variances are computed per channel and per position separately."""
_CONVOLVE_TRANSPOSED = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}


class VariationalConvolution(VariationalLayer):
    """Options as in ``nn.Conv2d``; the number of groups follows the weight when it is cut."""

    plain_class: ClassVar[type[ConvNd]]
    rank: ClassVar[int]
    transposed: ClassVar[bool] = False

    def __init__(self, plain: ConvNd, posterior: WeightPosterior, sampling: Sampling = "local") -> None:
        bias = plain.bias
        super().__init__(posterior, bias if isinstance(bias, nn.Parameter) else None, sampling)
        self.stride, self.padding, self.dilation = plain.stride, plain.padding, plain.dilation
        self.groups, self.padding_mode, self.output_padding = plain.groups, plain.padding_mode, plain.output_padding
        self.kernel_size = plain.kernel_size
        self._edges = edges_of(plain)
        self._rows_per_group = posterior.mean.shape[0] // plain.groups

    @classmethod
    def from_plain(cls, plain: ConvNd, posterior: WeightPosterior, sampling: Sampling) -> "VariationalConvolution":
        """The variational form of a convolution, with its bias and options."""
        return cls(plain, posterior, sampling)

    @property
    def in_channels(self) -> int:
        """The channels that the weight, cut or whole, reads."""
        return self._channels()[0]

    @property
    def out_channels(self) -> int:
        """The channels that the weight, cut or whole, outputs."""
        return self._channels()[1]

    @abstractmethod
    def convolve(self, x: Tensor, weight: Tensor, bias: Tensor | None, groups: int, **options: Any) -> Tensor:  # noqa: ANN401
        """The convolution with a given weight and number of groups."""

    def is_batch(self, x: Tensor) -> bool:
        """Whether there is an axis before the channels that is not empty."""
        return x.ndim > self.rank + 1 and x.shape[0] > 0

    def num_groups(self, weight: Tensor) -> int:
        """The number of groups of a convolution with this weight, cut or whole."""
        return weight.shape[0] // self._rows_per_group if self.groups > 1 else 1

    def apply_weight(self, x: Tensor, weight: Tensor, bias: Tensor | None, **options: Any) -> Tensor:  # noqa: ANN401
        """The operation with a given weight."""
        return self.convolve(x, weight, bias, self.num_groups(weight), **options)

    @property
    def separates_variances(self) -> bool:
        """Whether ``variances`` are worked out per channel and per position, and then multiplied."""
        return False

    @abstractmethod
    def even_weight(self, squares: Tensor, sizes: Sequence[int]) -> Tensor:
        """(out, in / groups): squares of a weight as they are read if inputs of these sizes are the same everywhere."""

    def by_place_weights(self, squares: Tensor) -> tuple[Tensor, Tensor]:
        """A factor per input channel and one per tap (*taps): their product stands for the mean over outputs."""
        mean = squares.mean(0)
        by_channel, taps = mean.flatten(1).sum(1), mean.new_ones(())
        for axis in range(self.rank):
            taps = taps.unsqueeze(-1) * self._tap_shares(axis, mean)
        return by_channel, taps

    def _tap_shares(self, axis: int, mean: Tensor) -> Tensor:
        """(taps,): the shares of an axis's taps in squares of a weight (in, *taps)."""
        by_tap = mean.movedim(axis + 1, 0).flatten(1).sum(1)
        return by_tap / by_tap.sum().clamp_min(torch.finfo(mean.dtype).tiny)

    def can_pull_back(self, x: Tensor) -> bool:
        """Whether the input is a batch, padded with as many zeros at one end of each axis as at the other."""
        return self.is_batch(x) and self.padding_mode == "zeros" and self._edges[::2] == self._edges[1::2]

    def pull_back(
        self,
        gradient: Tensor,
        x: Tensor,
        weight: Tensor,
        needed: tuple[bool, bool],
        **options: Any,  # noqa: ANN401
    ) -> tuple[Tensor | None, Tensor | None]:
        """The gradients with respect to the input and the weight, if needed."""
        edge, groups = self.edge_of(x, **options), self.num_groups(weight)
        geometry = self.stride, self._edges[::-2], self.dilation, self.transposed, edge, groups
        gradients = torch.ops.aten.convolution_backward(gradient, x, weight, None, *geometry, (*needed, False))
        return gradients[0], gradients[1]

    def edge_of(self, x: Tensor, **options: Any) -> Sequence[int]:  # noqa: ANN401
        """The size that a transposed convolution adds to one side of its output."""
        return self.output_padding

    def apply_each(self, x: Tensor, weights: Tensor, bias: Tensor | None, **options: Any) -> Tensor:  # noqa: ANN401
        """The operation with one weight per example: the examples become groups of one wide convolution."""
        batch = x.shape[0]
        wide = x.reshape(1, batch * x.shape[1], *x.shape[2:])
        y = self.convolve(wide, weights.flatten(0, 1), None, batch * self.num_groups(weights[0]), **options)
        y = y.reshape(batch, -1, *y.shape[2:])
        return y if bias is None else y + bias.view(-1, *[1] * self.rank)

    def mean_variance(self, squares: Tensor, variance: Tensor, **options: Any) -> Tensor:  # noqa: ANN401
        """The variance of each output, averaged over its positions."""
        return self.apply_weight(squares, variance, None, **options).mean(self._positions, keepdim=True)

    @property
    def _positions(self) -> tuple[int, ...]:
        """The axes of the positions, counted from the last axis."""
        return tuple(range(-self.rank, 0))

    def to_plain(self) -> nn.Module:
        """The plain convolution with the posterior mean as its weight."""
        mean = self.posterior.mean
        options: dict[str, Any] = {"stride": self.stride, "padding": self.padding, "dilation": self.dilation}
        options |= {"groups": self.num_groups(mean), "bias": self.bias is not None, "padding_mode": self.padding_mode}
        options |= {"device": mean.device, "dtype": mean.dtype} | self._transposed_options()
        make: Callable[..., ConvNd] = nn.utils.skip_init
        plain = make(self.plain_class, *self._channels(), self.kernel_size, **options)
        plain.weight = as_parameter(mean)
        plain.register_parameter("bias", self.bias)
        return plain

    def _transposed_options(self) -> dict[str, Any]:
        return {}

    def _channels(self) -> tuple[int, int]:
        """Input and output channels."""
        mean = self.posterior.mean
        return mean.shape[1] * self.num_groups(mean), mean.shape[0]

    def extra_repr(self) -> str:
        """What ``print`` shows of the layer."""
        words = [*map(str, self._channels()), f"kernel_size={self.kernel_size}"]
        words += [f"{name}={getattr(self, name)}" for name in ("stride", "padding", "groups", "sampling")]
        return ", ".join(words)


class _Forward(VariationalConvolution):
    """A plain convolution."""

    @property
    def separates_variances(self) -> bool:
        """With many channels and one group: layers with many channels then need no convolution."""
        return self.groups == 1 and self.in_channels >= _MANY_CHANNELS

    def mean_variance(self, squares: Tensor, variance: Tensor, **options: Any) -> Tensor:  # noqa: ANN401
        """The variance of each output, averaged over its positions: a matrix product instead of a convolution."""
        x = (squares if squares.ndim > self.rank + 1 else squares.unsqueeze(0)).movedim(1, -1)
        (batch, *sizes, channels), (num_out, num_in, *taps) = x.shape, variance.shape
        rows = batch
        for axis, size in enumerate(sizes):
            x = self._shares(axis, size, x) @ x.reshape(rows, size, math.prod(sizes[axis + 1 :]) * channels)
            rows *= taps[axis]
        weight, groups = variance.movedim(1, -1), self.num_groups(variance)
        if groups == 1:
            variances = F.linear(x.reshape(batch, math.prod(taps) * num_in), weight.flatten(1))
        else:
            inputs = x.reshape(batch, math.prod(taps), groups, num_in)
            by_group = weight.reshape(groups, num_out // groups, math.prod(taps), num_in)
            variances = torch.einsum("ntgi,goti->ngo", inputs, by_group).reshape(batch, num_out)
        variances = variances if squares.ndim > self.rank + 1 else variances.squeeze(0)
        return variances.reshape(*variances.shape, *[1] * self.rank)

    def even_variance(self, squares: Tensor, **options: Any) -> Tensor:  # noqa: ANN401
        """``mean_variance`` of the layer's weight, as if inputs were the same at all positions: all taps are summed."""
        return self._evenly(squares, "variance", self.posterior.variance)

    def variances(self, x: Tensor, input_variance: Tensor | None, **options: Any) -> tuple[Factors, Factors]:  # noqa: ANN401
        """The variance of each output, and the part that the weight adds: a variance per channel times position shares.

        The variance of a channel is computed as if inputs were the same at all positions, and the shares of positions
        as if inputs were the same in all channels.
        """
        if not self.separates_variances or not self.is_batch(x) or self.drawn_as == "channel":
            return super().variances(x, input_variance, **options)
        posterior = self.posterior
        seconds = x.square() if input_variance is None else torch.addcmul(input_variance, x, x)
        added = self._evenly(seconds, "variance", posterior.variance)
        by_place = self._by_place(seconds, "variance", posterior.variance)
        total = added
        if input_variance is not None:
            total = added + self._evenly(input_variance, "square", posterior.mean.square)
            by_place = by_place + self._by_place(input_variance, "square", posterior.mean.square)
        least = torch.finfo(by_place.dtype).tiny
        shares = by_place / by_place.mean(self._positions, keepdim=True).clamp_min(least)
        return (total, shares), (added, shares)

    def _evenly(self, squares: Tensor, name: str, work_out: Callable[[], Tensor]) -> Tensor:
        """A product of squared inputs and squares of the weight, as if inputs were the same at all positions."""
        sizes, kept_result = tuple(squares.shape[-self.rank :]), self.posterior.known
        sum_taps = partial(self.even_weight, kept_result(name, work_out), sizes)
        weight = kept_result(f"{name}, read evenly", sum_taps, of=self._geometry(sizes))
        product = by_group(squares.mean(self._positions), weight, self.num_groups(weight))
        return product.reshape(*product.shape, *[1] * self.rank)

    def _by_place(self, squares: Tensor, name: str, work_out: Callable[[], Tensor]) -> Tensor:
        """(batch, 1, ...): the same product, averaged over output channels: input channels first, then axis by axis."""
        kept_result = self.posterior.known
        mean = kept_result(f"{name}, of all outputs", lambda: kept_result(name, work_out).mean(0))
        product = torch.einsum("nc...,c->n...", squares, mean.flatten(1).sum(1))
        for axis, size in enumerate(squares.shape[-self.rank :]):
            along = partial(self._along, axis, size, mean)
            matrix = kept_result(f"{name}, along {axis}", along, of=self._geometry(size))
            product = (product.movedim(axis + 1, -1) @ matrix).movedim(-1, axis + 1)
        return product.unsqueeze(1)

    def _along(self, axis: int, size: int, mean: Tensor) -> Tensor:
        """(size, positions): how much an output position reads of each input along an axis, by the weights of taps."""
        by_tap, read = self._tap_shares(axis, mean), self._reads(axis, size, mean.device)
        counts = mean.new_zeros(size + 1, read.shape[1])
        return counts.scatter_add_(0, read, by_tap.unsqueeze(1).expand(read.shape))[1:]

    def _geometry(self, sizes: object) -> tuple[object, ...]:
        """All that decides which inputs a tap reads, for inputs of these sizes."""
        return sizes, self.kernel_size, self.stride, self.dilation, self.padding_mode, tuple(self._edges)

    def even_weight(self, squares: Tensor, sizes: Sequence[int]) -> Tensor:
        """(out, in): squares of a weight summed over taps, each times the share of positions that it reads for."""
        for axis, size in enumerate(sizes):
            shares = self._shares(axis, size, squares).sum(1)
            squares = (squares * shares.view(-1, *[1] * (squares.ndim - 3))).sum(2)  # the same under autocast
        return squares

    def _shares(self, axis: int, size: int, like: Tensor) -> Tensor:
        """(taps, size): the share of output positions along an axis at which a tap reads each input."""
        read = self._reads(axis, size, like.device)
        counts = like.new_zeros(len(read), size + 1).scatter_add_(1, read, like.new_ones(()).expand(read.shape))
        return counts[:, 1:] / read.shape[1]

    def _reads(self, axis: int, size: int, device: torch.device) -> Tensor:
        """(taps, positions): the number of the input that a tap reads for a position, from 1 on; 0 is padding."""
        taps, stride, dilation = self.kernel_size[axis], self.stride[axis], self.dilation[axis]
        place = 2 * (self.rank - 1 - axis)  # edges are given from the last axis on
        edges = tuple(self._edges[place : place + 2])
        inputs = torch.arange(1.0, size + 1, device=device).view(1, 1, size)  # zero stands for padding
        padded = F.pad(inputs, edges, mode="constant" if self.padding_mode == "zeros" else self.padding_mode).flatten()
        return padded.unfold(0, dilation * (taps - 1) + 1, stride)[:, ::dilation].T.long()

    def convolve(self, x: Tensor, weight: Tensor, bias: Tensor | None, groups: int, **options: Any) -> Tensor:  # noqa: ANN401
        """The convolution with a given weight and number of groups."""
        padding: Any = self.padding
        if self.padding_mode != "zeros":
            x, padding = F.pad(x, self._edges, mode=self.padding_mode), 0
        return _CONVOLVE[self.rank](x, weight, bias, self.stride, padding, self.dilation, groups)


class _Transposed(VariationalConvolution):
    """A transposed convolution; a call can say the size of its output."""

    transposed = True

    def forward(self, input: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
        """Apply the operation with a drawn weight, or with the mean."""
        return self.run(input, output_size=output_size)

    def convolve(self, x: Tensor, weight: Tensor, bias: Tensor | None, groups: int, **options: Any) -> Tensor:  # noqa: ANN401
        """The convolution with a given weight and number of groups."""
        run: Callable[..., Tensor] = _CONVOLVE_TRANSPOSED[self.rank]
        return run(x, weight, bias, self.stride, self.padding, self.edge_of(x, **options), groups, self.dilation)

    def edge_of(self, x: Tensor, **options: Any) -> Sequence[int]:  # noqa: ANN401
        """The size added to one side of the output, so that it has the size of the call's ``output_size``."""
        size = None if options.get("output_size") is None else list(options["output_size"])
        return output_padding(x, size, self)

    def even_weight(self, squares: Tensor, sizes: Sequence[int]) -> Tensor:
        """(out, in): squares of a weight summed over taps, each times how often it reaches a position, on average."""
        output_sizes = [self._output_size(axis, size) for axis, size in enumerate(sizes)]
        for axis, (size, outputs) in enumerate(zip(sizes, output_sizes, strict=True)):
            starts = torch.arange(size) * self.stride[axis] - int(self.padding[axis])
            reached = starts + torch.arange(self.kernel_size[axis]).unsqueeze(1) * self.dilation[axis]
            shares = ((reached >= 0) & (reached < outputs)).sum(1).to(squares) / outputs
            squares = (squares * shares.view(-1, *[1] * (squares.ndim - 3))).sum(2)
        groups = self.num_groups(squares)
        return squares.reshape(groups, -1, squares.shape[1]).transpose(1, 2).flatten(0, 1)

    def _output_size(self, axis: int, size: int) -> int:
        reach = self.dilation[axis] * (self.kernel_size[axis] - 1) + 1
        return (size - 1) * self.stride[axis] + reach - 2 * int(self.padding[axis]) + self.output_padding[axis]

    def _transposed_options(self) -> dict[str, Any]:
        return {"output_padding": self.output_padding}

    def _channels(self) -> tuple[int, int]:
        mean = self.posterior.mean
        return mean.shape[0], mean.shape[1] * self.num_groups(mean)


def by_group(means: Tensor, weight: Tensor, groups: int) -> Tensor:
    """(..., out): the product of inputs (..., in) with a weight (out, in / groups), each group with its own inputs."""
    if groups == 1:
        return F.linear(means, weight)
    inputs = means.reshape(*means.shape[:-1], groups, weight.shape[1])
    return torch.einsum("...gi,goi->...go", inputs, weight.reshape(groups, -1, weight.shape[1])).flatten(-2)


class VariationalConv1d(_Forward):
    """Convolution over one axis with a posterior over its weight."""

    plain_class, rank = nn.Conv1d, 1


class VariationalConv2d(_Forward):
    """Convolution over two axes with a posterior over its weight."""

    plain_class, rank = nn.Conv2d, 2


class VariationalConv3d(_Forward):
    """Convolution over three axes with a posterior over its weight."""

    plain_class, rank = nn.Conv3d, 3


class VariationalConvTranspose1d(_Transposed):
    """Transposed convolution over one axis with a posterior over its weight."""

    plain_class, rank = nn.ConvTranspose1d, 1


class VariationalConvTranspose2d(_Transposed):
    """Transposed convolution over two axes with a posterior over its weight."""

    plain_class, rank = nn.ConvTranspose2d, 2


class VariationalConvTranspose3d(_Transposed):
    """Transposed convolution over three axes with a posterior over its weight."""

    plain_class, rank = nn.ConvTranspose3d, 3
