"""Mean and standard deviation of inputs, per channel or per feature."""

from collections.abc import Callable

import torch
from torch import Tensor

ROWS = 1000


def mean_and_std(inputs: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Over examples and pixels, of bytes scaled to [0, 1]; a channel or feature that never changes has std 1."""
    axes = [axis for axis in range(inputs.ndim) if axis != 1]
    unit = 255.0 if inputs.dtype == torch.uint8 else 1.0
    number = inputs.numel() / inputs.shape[1]
    mean = _total(inputs, axes, lambda rows: rows) / number
    centre = mean.view(-1, *(1,) * (inputs.ndim - 2))
    variance = _total(inputs, axes, lambda rows: (rows - centre).square()) / number
    std = torch.where(variance > 0, variance.sqrt() / unit, 1.0)
    return tuple((mean / unit).tolist()), tuple(std.tolist())


def _total(inputs: Tensor, axes: list[int], term: Callable[[Tensor], Tensor]) -> Tensor:
    """The sum of ``term`` in double precision, over some rows at a time."""
    return torch.stack([term(rows.double()).sum(axes) for rows in torch.split(inputs, ROWS)]).sum(0)
