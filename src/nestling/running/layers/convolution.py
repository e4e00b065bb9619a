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
"""Inputs from which on variances are worked out by channel and by position, apart from each other."""
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
        """The channels that the weight, cut or whole, gives."""
        return self._channels()[1]

    @abstractmethod
    def convolve(self, x: Tensor, weight: Tensor, bias: Tensor | None, groups: int, **asked: Any) -> Tensor:  # noqa: ANN401
        """The convolution with a given weight and number of groups."""

    def is_batch(self, x: Tensor) -> bool:
        """Whether there is an axis before the channels, and something along it."""
        return x.ndim > self.rank + 1 and x.shape[0] > 0

    def num_groups(self, weight: Tensor) -> int:
        """The groups that a weight, cut or whole, stands for."""
        return weight.shape[0] // self._rows_per_group if self.groups > 1 else 1

    def apply_weight(self, x: Tensor, weight: Tensor, bias: Tensor | None, **asked: Any) -> Tensor:  # noqa: ANN401
        """The operation with a given weight."""
        return self.convolve(x, weight, bias, self.num_groups(weight), **asked)

    def can_pull_back(self, x: Tensor) -> bool:
        """Whether the input is a batch, with nothing but a number of zeros around each example."""
        return self.is_batch(x) and self.padding_mode == "zeros" and not isinstance(self.padding, str)

    def pull_back(
        self,
        gradient: Tensor,
        x: Tensor,
        weight: Tensor,
        needed: tuple[bool, bool],
        **asked: Any,  # noqa: ANN401
    ) -> tuple[Tensor | None, Tensor | None]:
        """The gradients in input and weight, those that are needed."""
        edge, groups = self.edge_of(x, **asked), self.num_groups(weight)
        options = self.stride, self.padding, self.dilation, self.transposed, edge, groups
        found = torch.ops.aten.convolution_backward(gradient, x, weight, None, *options, (*needed, False))
        return found[0], found[1]

    def edge_of(self, x: Tensor, **asked: Any) -> Sequence[int]:  # noqa: ANN401
        """What a transposed convolution adds to one side of its output."""
        return self.output_padding

    def apply_each(self, x: Tensor, weights: Tensor, bias: Tensor | None, **asked: Any) -> Tensor:  # noqa: ANN401
        """The operation with a weight for each example: the examples become groups of one wide convolution."""
        batch = x.shape[0]
        wide = x.reshape(1, batch * x.shape[1], *x.shape[2:])
        y = self.convolve(wide, weights.flatten(0, 1), None, batch * self.num_groups(weights[0]), **asked)
        y = y.reshape(batch, -1, *y.shape[2:])
        return y if bias is None else y + bias.view(-1, *[1] * self.rank)

    def mean_variance(self, squares: Tensor, variance: Tensor, **asked: Any) -> Tensor:  # noqa: ANN401
        """The variance of each output, averaged over its positions."""
        return self.apply_weight(squares, variance, None, **asked).mean(self._positions, keepdim=True)

    @property
    def _positions(self) -> tuple[int, ...]:
        """The axes of the positions, from the end."""
        return tuple(range(-self.rank, 0))

    def to_plain(self) -> nn.Module:
        """The plain convolution with the mean as its weight."""
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
        shown = [*map(str, self._channels()), f"kernel_size={self.kernel_size}"]
        shown += [f"{name}={getattr(self, name)}" for name in ("stride", "padding", "groups", "sampling")]
        return ", ".join(shown)


class _Forward(VariationalConvolution):
    """A plain convolution."""

    def mean_variance(self, squares: Tensor, variance: Tensor, **asked: Any) -> Tensor:  # noqa: ANN401
        """The variance of each output, averaged over its positions: no convolution, one product of what taps read."""
        x = (squares if squares.ndim > self.rank + 1 else squares.unsqueeze(0)).movedim(1, -1)
        (batch, *sizes, channels), (num_out, num_in, *taps) = x.shape, variance.shape
        rows = batch
        for axis, size in enumerate(sizes):
            x = self._shares(axis, size, x) @ x.reshape(rows, size, math.prod(sizes[axis + 1 :]) * channels)
            rows *= taps[axis]
        weight, groups = variance.movedim(1, -1), self.num_groups(variance)
        if groups == 1:
            found = F.linear(x.reshape(batch, math.prod(taps) * num_in), weight.flatten(1))
        else:
            read = x.reshape(batch, math.prod(taps), groups, num_in)
            by_group = weight.reshape(groups, num_out // groups, math.prod(taps), num_in)
            found = torch.einsum("ntgi,goti->ngo", read, by_group).reshape(batch, num_out)
        found = found if squares.ndim > self.rank + 1 else found.squeeze(0)
        return found.reshape(*found.shape, *[1] * self.rank)

    def even_variance(self, squares: Tensor, **asked: Any) -> Tensor:  # noqa: ANN401
        """``mean_variance`` for the layer's own weight, if inputs were the same at all positions: one tap for all."""
        return self._evenly(squares, "variance", self.posterior.variance)

    def variances(self, x: Tensor, spread: Tensor | None, **asked: Any) -> tuple[Factors, Factors]:  # noqa: ANN401
        """The variance of each output, and what the weight adds to it: of a channel, times the share of a position.

        It is that of its channel if inputs were the same at all positions, spread over the positions as it would be if
        they were the same in all channels: of many channels no convolution is needed.
        """
        is_small = self.groups > 1 or self.in_channels < _MANY_CHANNELS
        if is_small or not self.is_batch(x) or self.drawn_as == "channel":
            return super().variances(x, spread, **asked)
        posterior = self.posterior
        seconds = x.square() if spread is None else torch.addcmul(spread, x, x)
        added = self._evenly(seconds, "variance", posterior.variance)
        by_place = self._by_place(seconds, "variance", posterior.variance)
        total = added
        if spread is not None:
            total = added + self._evenly(spread, "square", posterior.mean.square)
            by_place = by_place + self._by_place(spread, "square", posterior.mean.square)
        least = torch.finfo(by_place.dtype).tiny
        shares = by_place / by_place.mean(self._positions, keepdim=True).clamp_min(least)
        return (total, shares), (added, shares)

    def _evenly(self, squares: Tensor, name: str, work_out: Callable[[], Tensor]) -> Tensor:
        """What some squares of the weight make of squared inputs, averaged over positions as if these were the same."""
        sizes, known = tuple(squares.shape[-self.rank :]), self.posterior.known
        read_evenly = partial(self._read_evenly, known(name, work_out), sizes)
        weight = known(f"{name}, read evenly", read_evenly, of=self._geometry(sizes))
        means, groups = squares.mean(self._positions), self.num_groups(weight)
        if groups == 1:
            found = F.linear(means, weight)
        else:
            by_group = weight.reshape(groups, -1, weight.shape[1])
            read = means.reshape(*means.shape[:-1], groups, weight.shape[1])
            found = torch.einsum("...gi,goi->...go", read, by_group).flatten(-2)
        return found.reshape(*found.shape, *[1] * self.rank)

    def _by_place(self, squares: Tensor, name: str, work_out: Callable[[], Tensor]) -> Tensor:
        """(batch, 1, ...): the same, averaged over channels: inputs first, each by its weight, then axis by axis."""
        known = self.posterior.known
        mean = known(f"{name}, of all outputs", lambda: known(name, work_out).mean(0))
        found = torch.einsum("nc...,c->n...", squares, mean.flatten(1).sum(1))
        for axis, size in enumerate(squares.shape[-self.rank :]):
            matrix = known(f"{name}, along {axis}", partial(self._along, axis, size, mean), of=self._geometry(size))
            found = (found.movedim(axis + 1, -1) @ matrix).movedim(-1, axis + 1)
        return found.unsqueeze(1)

    def _along(self, axis: int, size: int, mean: Tensor) -> Tensor:
        """(size, positions): what a position reads of inputs along an axis, by the share of each tap of a weight."""
        by_tap = mean.movedim(axis + 1, 0).flatten(1).sum(1)
        by_tap = by_tap / by_tap.sum().clamp_min(torch.finfo(mean.dtype).tiny)
        read = self._reads(axis, size, mean.device)
        counts = mean.new_zeros(size + 1, read.shape[1])
        return counts.scatter_add_(0, read, by_tap.unsqueeze(1).expand(read.shape))[1:]

    def _geometry(self, sizes: object) -> tuple[object, ...]:
        """What decides which inputs of such sizes a tap reads."""
        return sizes, self.kernel_size, self.stride, self.dilation, self.padding_mode, tuple(self._edges)

    def _read_evenly(self, weight: Tensor, sizes: tuple[int, ...]) -> Tensor:
        """(out, in): the squares of a weight's taps, each by the share of positions at which it reads an input."""
        for axis, size in enumerate(sizes):
            shares = self._shares(axis, size, weight).sum(1)
            weight = (weight * shares.view(-1, *[1] * (weight.ndim - 3))).sum(2)  # as it is under autocast too
        return weight

    def _shares(self, axis: int, size: int, like: Tensor) -> Tensor:
        """(taps, size): the share of the output's positions along an axis at which a tap reads each input."""
        read = self._reads(axis, size, like.device)
        counts = like.new_zeros(len(read), size + 1).scatter_add_(1, read, like.new_ones(()).expand(read.shape))
        return counts[:, 1:] / read.shape[1]

    def _reads(self, axis: int, size: int, device: torch.device) -> Tensor:
        """(taps, positions): the input along an axis that a tap reads for a position, from 1 on; 0 is beside them."""
        taps, stride, dilation = self.kernel_size[axis], self.stride[axis], self.dilation[axis]
        place = 2 * (self.rank - 1 - axis)  # edges are given from the last axis on
        edges = tuple(self._edges[place : place + 2])
        inputs = torch.arange(1.0, size + 1, device=device).view(1, 1, size)  # zero is what is beside the input
        padded = F.pad(inputs, edges, mode="constant" if self.padding_mode == "zeros" else self.padding_mode).flatten()
        return padded.unfold(0, dilation * (taps - 1) + 1, stride)[:, ::dilation].T.long()

    def convolve(self, x: Tensor, weight: Tensor, bias: Tensor | None, groups: int, **asked: Any) -> Tensor:  # noqa: ANN401
        """The convolution with a given weight and number of groups."""
        padding: Any = self.padding
        if self.padding_mode != "zeros":
            x, padding = F.pad(x, self._edges, mode=self.padding_mode), 0
        return _CONVOLVE[self.rank](x, weight, bias, self.stride, padding, self.dilation, groups)


class _Transposed(VariationalConvolution):
    """A transposed convolution, which a call may ask for an output of a given size."""

    transposed = True

    def forward(self, input: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
        """Apply the operation with a drawn weight, or with the mean."""
        return self.run(input, output_size=output_size)

    def convolve(self, x: Tensor, weight: Tensor, bias: Tensor | None, groups: int, **asked: Any) -> Tensor:  # noqa: ANN401
        """The convolution with a given weight and number of groups."""
        run: Callable[..., Tensor] = _CONVOLVE_TRANSPOSED[self.rank]
        return run(x, weight, bias, self.stride, self.padding, self.edge_of(x, **asked), groups, self.dilation)

    def edge_of(self, x: Tensor, **asked: Any) -> Sequence[int]:  # noqa: ANN401
        """What is added to one side of the output, so that it has the size that was asked for."""
        size = None if asked.get("output_size") is None else list(asked["output_size"])
        return output_padding(x, size, self)

    def _transposed_options(self) -> dict[str, Any]:
        return {"output_padding": self.output_padding}

    def _channels(self) -> tuple[int, int]:
        mean = self.posterior.mean
        return mean.shape[0], mean.shape[1] * self.num_groups(mean)


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
