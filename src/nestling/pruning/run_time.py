"""Layers that compute only with the units that a gate keeps for the current input."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nestling.kept_until_written import Kept

EPS = 1e-6
"""The distance of phi from 0 and 1, as in training."""
FEW = 0.1
"""Share of kept features up to which they are selected; above it, multiplying by zeros is faster."""


class RunTimeGate(nn.Module):
    """Multiplies each unit by pi clamp(scale (x - mean) + shift, eps, 1 - eps), or by zero up to ``threshold``.

    ``rows`` (units, rows per unit) has the positions of the units along ``axis`` of the input; features that belong to
    no unit are not changed.
    """

    pi: Tensor
    mean: Tensor
    scale: Tensor
    shift: Tensor
    rows: Tensor

    def __init__(
        self, pi: Tensor, mean: Tensor, scale: Tensor, shift: Tensor, rows: Tensor, axis: int, threshold: float
    ) -> None:
        super().__init__()
        names = ("pi", "mean", "scale", "shift", "rows")
        for name, values in zip(names, (pi, mean, scale, shift, rows), strict=True):
            self.register_buffer(name, values.detach().clone().to(pi.device))
        self.axis, self.threshold = axis, threshold
        self._is_plain = rows.shape[1] == 1 and bool((rows[:, 0] == torch.arange(len(rows))).all())

    def forward(self, x: Tensor) -> Tensor:
        """The input with every unit multiplied."""
        return x * self.multipliers(x)

    def multipliers(self, x: Tensor) -> Tensor:
        """Multipliers that broadcast with an input (batch, ...)."""
        unit_axis = self.axis % x.ndim
        other_axes = [axis for axis in range(1, x.ndim) if axis != unit_axis]
        means = x.mean(other_axes) if other_axes else x
        plain = self._is_plain and len(self.rows) == means.shape[1]
        features = means if plain else means[:, self.rows].mean(-1)
        values = self.pi * (self.scale * (features - self.mean) + self.shift).clamp(EPS, 1 - EPS)
        values = values * (values > self.threshold)
        if not plain:
            values = torch.ones_like(means).index_copy(1, self.rows.reshape(-1), _repeated(values, self.rows.shape[1]))
        shape = [1] * x.ndim
        shape[0], shape[unit_axis] = values.shape
        return values.view(shape)


class RunTimeReader(nn.Module):
    """A layer after a gate; for a single example a linear layer computes only with the features that the gate keeps.

    It does so only if they are at most the share ``few`` of all, since selecting features takes time.
    """

    def __init__(self, gate: RunTimeGate, layer: nn.Module, few: float = FEW) -> None:
        super().__init__()
        self.gate, self.layer, self.few = gate, layer, few
        self._columns = Kept()

    def forward(self, x: Tensor) -> Tensor:
        """The layer's output for the gated input."""
        gated = self.gate(x)
        is_single = x.shape[0] == 1 and x.ndim == 2 and not self.training and not torch.compiler.is_compiling()
        if not is_single or not isinstance(self.layer, nn.Linear):
            output: Tensor = self.layer(gated)
            return output
        index = gated[0].nonzero().squeeze(1)
        if len(index) > self.few * gated.shape[1]:
            return F.linear(gated, self.layer.weight, self.layer.bias)
        values = gated[0].index_select(0, index)
        columns = self._by_feature().index_select(0, index)
        product: Tensor = values.unsqueeze(0) @ columns
        bias: Tensor | None = self.layer.bias
        return product if bias is None else product + bias

    def _by_feature(self) -> Tensor:
        """The weight with one row per feature, so that the kept features are contiguous in memory."""
        weight = self.layer.weight
        assert isinstance(weight, Tensor)
        if weight.requires_grad and torch.is_grad_enabled():
            return weight.t()
        return self._columns.of((weight,), lambda: weight.t().contiguous())


def _repeated(values: Tensor, times: int) -> Tensor:
    """Each unit's value (batch, units) repeated for every row of the unit."""
    return values.unsqueeze(-1).expand(*values.shape, times).flatten(1)
