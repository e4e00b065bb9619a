"""The noise of one weight that is read at many positions: a small weight is drawn itself, a large one by a few fields.

A large weight has too many numbers to draw all of them outside of the file, and one noise value per channel would move
all positions together. The noise at two positions goes together as far as their inputs do, and so do random sums of
inputs: those are the fields, which each draw mixes anew.
"""

import math
from abc import ABC
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from nestling.delivery.mean_graph import CONVOLUTIONS, LINEAR, TRANSPOSED, DrawnLayer, convolution_options, size_of
from nestling.running.layers import VariationalConvolution

FIELDS = 9
"""The number of fields of a layer: as many as a kernel of 3 x 3 has taps, so that covariances are exact on average."""


_SMALL = 32
"""The most weights per output channel of a weight that is drawn itself."""
_BLOCK = 16
"""Runtimes compute as many channels at a time."""


class LayerNoise(nn.Module, ABC):
    """The noise of a layer that draws one weight for all positions: ``num_values`` normal numbers per draw."""

    num_values: int


class DrawnWeight(LayerNoise):
    """The draws of a small weight, for an input that does not depend on draws: one product with the channels of all.

    What each tap reads is laid out first, by a convolution of zeros and ones, because some runtimes refuse convolutions
    whose weight is computed. A last channel of ones carries the bias.
    """

    std: Tensor
    taps: Tensor
    ones: Tensor

    def __init__(self, node: fx.Node, reading: DrawnLayer) -> None:
        super().__init__()
        self.operation: Any = node.target
        std = reading.scaled(reading.layer.posterior.variance().detach()).sqrt()
        self.num_values, per_unit = std.numel(), _num_per_unit(reading)
        self.register_buffer("std", std.flatten(1))
        self.register_buffer("taps", torch.eye(per_unit + 1, per_unit).to(std).reshape(-1, *std.shape[1:]))
        self.register_buffer("ones", torch.eye(per_unit + 1).to(std)[-1])

    @staticmethod
    def takes(node: fx.Node, reading: DrawnLayer) -> bool:
        """Whether a layer is a convolution with a small weight, all of whose inputs reach each output channel."""
        return node.target in CONVOLUTIONS and _num_groups(reading) == 1 and _num_per_unit(reading) <= _SMALL

    def forward(self, x: Tensor, noise: Tensor, weight: Tensor, bias: Tensor | None = None, *rest: Any) -> Tensor:  # noqa: ANN401
        """(B * S, units, ...): outputs of each draw, for inputs (B, channels, ...) and noise (1, S, values)."""
        units, samples = self.std.shape[0], noise.shape[1]
        read = self.operation(x, self.taps, self.ones, *rest)
        biases = self.std.new_zeros(units) if bias is None else bias
        weights = weight.flatten(1) + self.std * noise.reshape(samples, *self.std.shape)
        with_biases = torch.cat((weights, biases.view(1, -1, 1).expand(samples, -1, -1)), 2)
        outputs: Tensor = with_biases.flatten(0, 1) @ read.flatten(2)
        return outputs.reshape(-1, units, *read.shape[2:])


class Fields(LayerNoise):
    """The noise of a layer with a large weight.

    A field is a random sum of the inputs that the layer reads, scaled by its standard deviations, with a random sign
    for each input channel. On average over signs, the products of the fields at two positions are the covariance of
    the layer's noise there, up to a factor per output channel. Each output channel mixes the fields with normal numbers
    of its own. ``num_values`` are a value per input channel, whose sign counts, and those that mix the fields.
    """

    weight: Tensor
    shifts: Tensor | None

    def __init__(self, node: fx.Node, reading: DrawnLayer) -> None:
        super().__init__()
        source = node.args[0]
        assert isinstance(source, fx.Node)
        self.operation: Any = node.target
        self.is_last, is_transposed = node.target is LINEAR, node.target in TRANSPOSED
        axis = -1 if self.is_last else 1
        self.num_inputs, self.num_units = size_of(source)[axis], size_of(node)[axis]
        self.num_values = self.num_inputs + self.num_units * FIELDS
        self.groups = _num_groups(reading)
        variance = reading.scaled(reading.layer.posterior.variance().detach())
        by_input = _by_input(variance, self.groups, transposed=is_transposed)
        groups, channels, *taps = by_input.shape
        scales = by_input.sqrt().reshape(groups, 1, channels, -1)
        if node.target in CONVOLUTIONS and scales.shape[-1] == FIELDS:
            weight, shifts = _a_field_per_tap(scales, taps)
        else:
            weight = _directions(groups, channels, scales.shape[-1]).to(scales) * scales
            weight = (weight.transpose(1, 2) if is_transposed else weight).flatten(0, 1)
            weight, shifts = weight.reshape(*weight.shape[:2], *taps), None
        self.register_buffer("weight", weight)
        self.register_buffer("shifts", shifts)

    def forward(self, x: Tensor, std: Tensor, noise: Tensor, rest: Sequence[Any]) -> Tensor:
        """(B, S, units, ...): the noise of outputs whose root mean square over the positions is ``std``.

        Inputs are (B, 1 or S, channels, ...), standard deviations (B, 1 or S, units), and noise is (1 or B, S, values).
        Of a linear layer the units come last.
        """
        signs, mixing = torch.split(noise, [self.num_inputs, self.num_units * FIELDS], -1)
        fields = (self._dense if self.shifts is None else self._by_tap)(x, signs.sign(), rest)
        positions = fields.shape[3:]
        fields = fields.reshape(*fields.shape[:2], self.groups, -1, math.prod(positions))[..., :FIELDS, :]
        square = fields.square().sum(3, keepdim=True).mean(4, keepdim=True)
        scale = std.reshape(*std.shape[:2], self.groups, 1, -1) * square.clamp_min(_LEAST).rsqrt()
        mixing = mixing.reshape(*mixing.shape[:2], self.groups, FIELDS, -1)
        mixed = ((mixing * scale).mT @ fields).reshape(*fields.shape[:2], self.num_units, *positions)
        return mixed.movedim(2, -1) if self.is_last else mixed

    def _dense(self, x: Tensor, signs: Tensor, rest: Sequence[Any]) -> Tensor:
        """(B, S, groups * fields, ...): the fields, by the layer's own operation."""
        places = [1] * (x.ndim - 3)
        flipped = x * signs.reshape(*signs.shape[:2], *((*places, -1) if self.is_last else (-1, *places)))
        fields: Tensor = self.operation(flipped.flatten(0, 1), self.weight, None, *rest)
        fields = fields.movedim(-1, 1) if self.is_last else fields
        return fields.reshape(*flipped.shape[:2], *fields.shape[1:])

    def _by_tap(self, x: Tensor, signs: Tensor, rest: Sequence[Any]) -> Tensor:
        """The same, by sums over channels that are then moved by a tap each."""
        assert self.shifts is not None
        places, rank = x.shape[3:], self.shifts.ndim - 2
        weight = self.weight * signs.reshape(*signs.shape[:2], self.groups, 1, -1)
        summed = weight @ x.reshape(*x.shape[:2], self.groups, -1, math.prod(places))
        stride, padding, dilation, _ = convolution_options(rest, rank)
        arranged = summed.reshape(-1, len(self.shifts), *places)
        fields: Tensor = self.operation(arranged, self.shifts, None, stride, padding, dilation, len(self.shifts))
        return fields.reshape(*summed.shape[:2], *fields.shape[1:])


_LEAST = torch.finfo(torch.float32).tiny


def _by_input(variance: Tensor, groups: int, *, transposed: bool) -> Tensor:
    """(groups, in / groups, *taps): the mean over outputs of the variance of a weight."""
    if transposed:
        mean = variance.mean(1)
        return mean.reshape(groups, -1, *mean.shape[1:])
    return variance.reshape(groups, -1, *variance.shape[1:]).mean(1)


def _directions(groups: int, channels: int, taps: int) -> Tensor:
    """(groups, fields, channels, taps): for each channel orthonormal columns, or rows as long, if there are more taps.

    They are the same for every file.
    """
    normals = torch.randn(
        groups, channels, max(FIELDS, taps), min(FIELDS, taps), generator=torch.Generator().manual_seed(0)
    )
    orthonormal: Tensor = torch.linalg.qr(normals).Q
    if taps > FIELDS:
        orthonormal = orthonormal.mT * math.sqrt(taps / FIELDS)
    return orthonormal.transpose(1, 2)


def _a_field_per_tap(scales: Tensor, taps: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Weights of sums over channels (groups, block, channels), and those that move each by a tap.

    A field reads one tap, with signs by channel that are the same for every file, so that it costs a fraction of the
    layer's operation. Fields are filled up with zeros to a block.
    """
    groups, _, channels, number = scales.shape
    signs = torch.randint(0, 2, (groups, number, channels), generator=torch.Generator().manual_seed(0)) * 2 - 1
    sums = scales.new_zeros(groups, _BLOCK, channels)
    sums[:, :number] = scales[:, 0].transpose(1, 2) * signs
    moves = torch.eye(_BLOCK, number).to(scales).repeat(groups, 1)
    return sums, moves.reshape(groups * _BLOCK, 1, *taps)


def _num_groups(reading: DrawnLayer) -> int:
    layer = reading.layer
    return layer.num_groups(layer.posterior.mean) if isinstance(layer, VariationalConvolution) else 1


def _num_per_unit(reading: DrawnLayer) -> int:
    return math.prod(reading.layer.posterior.mean.shape[1:])
