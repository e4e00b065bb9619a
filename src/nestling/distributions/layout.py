"""How tensors lie in memory: work that follows it is several times faster than work across it."""

import torch
from torch import Tensor

_PIECE = 2**18
"""Elements that a core works on at a time."""


def axes_in_memory(tensor: Tensor) -> list[int]:
    """The axes from the one with the longest strides to the one with the shortest; as they are if some are repeated."""
    strides: tuple[int, ...] = tensor.stride()
    axes = list(range(tensor.ndim))
    return axes if 0 in strides else sorted(axes, key=lambda axis: -strides[axis])


def flat_in_memory(tensor: Tensor) -> Tensor:
    """The elements one after another as they lie in memory; a copy only where they do not lie densely."""
    return tensor.permute(axes_in_memory(tensor)).reshape(-1)


def laid_out_as(tensor: Tensor, gradient: Tensor) -> Tensor:
    """A gradient with the memory layout of a tensor of its shape: that of a convolution's weight often has another."""
    if gradient.stride() == tensor.stride():
        return gradient
    axes = axes_in_memory(tensor)
    back = sorted(range(len(axes)), key=axes.__getitem__)
    return gradient.permute(axes).contiguous().permute(back)


def piece_size(tensor: Tensor) -> int:
    """Elements to compute at a time: passes over what stays in the caches of the cores are twice as fast."""
    return _PIECE * torch.get_num_threads() if tensor.device.type == "cpu" else max(tensor.numel(), 1)
