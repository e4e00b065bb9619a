"""The noise of one weight that is read at many positions: a few fields over the positions, which each draw mixes anew.

A weight has too many numbers to draw all of them outside of the file, and one noise value per channel would move all
positions together. The noise at two positions goes together as far as their inputs do, and so do random sums of inputs.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from nestling.delivery.mean_graph import LINEAR, TRANSPOSED, DrawnLayer, size_of
from nestling.running.layers import VariationalConvolution

FIELDS = 9
"""The number of fields of a layer: as many as a kernel of 3 x 3 has taps, so that covariances are exact on average."""


class Fields(nn.Module):
    """The noise of a layer that draws one weight for all positions.

    A field is what the layer's operation makes of the input with a fixed random weight, scaled by the layer's standard
    deviations, and with a random sign for each input channel. On average over signs, the products of the fields at two
    positions are the covariance of the layer's noise there, up to a factor per output channel. Each output channel
    mixes the fields with normal numbers of its own.
    """

    weight: Tensor

    def __init__(self, node: fx.Node, reading: DrawnLayer) -> None:
        super().__init__()
        layer, source = reading.layer, node.args[0]
        assert isinstance(source, fx.Node)
        self.operation: Any = node.target
        self.is_last = node.target is LINEAR
        axis = -1 if self.is_last else 1
        self.num_inputs, self.num_units = size_of(source)[axis], size_of(node)[axis]
        self.groups = layer.num_groups(layer.posterior.mean) if isinstance(layer, VariationalConvolution) else 1
        variance = reading.scaled(layer.posterior.variance().detach())
        by_input = _by_input(variance, self.groups, transposed=node.target in TRANSPOSED)
        groups, channels, *taps = by_input.shape
        scales = by_input.sqrt().reshape(groups, 1, channels, -1)
        weight = _directions(groups, channels, scales.shape[-1]).to(scales) * scales
        weight = (weight.transpose(1, 2) if node.target in TRANSPOSED else weight).flatten(0, 1)
        self.register_buffer("weight", weight.reshape(*weight.shape[:2], *taps))

    @property
    def num_values(self) -> int:
        """How much noise a draw takes: a value per input channel, whose sign counts, and those that mix the fields."""
        return self.num_inputs + self.num_units * FIELDS

    def forward(self, x: Tensor, std: Tensor, noise: Tensor, rest: Sequence[Any]) -> Tensor:
        """(S, B, units, ...): the noise of outputs whose root mean square over the positions is ``std``.

        Inputs are (1 or S, B, channels, ...), standard deviations (1 or S, B, units), and noise is (S, 1 or B, values).
        Of a linear layer the units come last.
        """
        signs, mixing = torch.split(noise, [self.num_inputs, self.num_units * FIELDS], -1)
        places = [1] * (x.ndim - 3)
        shape = (*places, -1) if self.is_last else (-1, *places)
        flipped = x * signs.sign().reshape(*signs.shape[:2], *shape)
        fields: Tensor = self.operation(flipped.flatten(0, 1), self.weight, None, *rest)
        fields = fields.movedim(-1, 1) if self.is_last else fields
        positions = fields.shape[2:]
        fields = fields.reshape(*flipped.shape[:2], self.groups, FIELDS, math.prod(positions))
        square = fields.square().sum(3, keepdim=True).mean(4, keepdim=True)
        scale = std.reshape(*std.shape[:2], self.groups, -1, 1) * square.clamp_min(_LEAST).rsqrt()
        mixing = mixing.reshape(*mixing.shape[:2], self.groups, -1, FIELDS)
        mixed = ((mixing * scale) @ fields).reshape(*flipped.shape[:2], self.num_units, *positions)
        return mixed.movedim(2, -1) if self.is_last else mixed


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
