"""Mean and standard deviation of inputs, per channel or per feature."""

from collections.abc import Callable

import torch
from torch import Tensor

ROWS = 1000
ROUNDING = 1e-12
"""A standard deviation of at most this share of the mean is that of a constant, which rounding moves."""


def mean_and_std(inputs: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and std over examples and pixels; bytes are scaled to [0, 1]; a constant channel or feature has std 1."""
    axes = [axis for axis in range(inputs.ndim) if axis != 1]
    scale = 255.0 if inputs.dtype == torch.uint8 else 1.0
    num_values = inputs.numel() / inputs.shape[1]
    mean = _total(inputs, axes, lambda rows: rows) / num_values
    centre = mean.view(-1, *(1,) * (inputs.ndim - 2))
    variance = _total(inputs, axes, lambda rows: (rows - centre).square()) / num_values
    std = torch.where(variance.sqrt() > ROUNDING * mean.abs(), variance.sqrt() / scale, 1.0)
    return tuple((mean / scale).tolist()), tuple(std.tolist())


def _total(inputs: Tensor, axes: list[int], term: Callable[[Tensor], Tensor]) -> Tensor:
    """The sum of ``term`` in double precision, computed ``ROWS`` rows at a time."""
    return torch.stack([term(rows.double()).sum(axes) for rows in torch.split(inputs, ROWS)]).sum(0)
