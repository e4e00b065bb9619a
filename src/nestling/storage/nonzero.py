"""Tensors that are mostly zeros: of each only the entries that are not zero are stored, where that is smaller."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from nestling.storage.files import check_memory

_VALUES, _MASK, _GAPS = ".values", ".mask", ".index"


def stored(name: str, tensor: Tensor) -> dict[str, Tensor]:
    """A tensor as a whole, as values and bit mask, or as values and gaps between them: the smallest of the three."""
    tensor = tensor.detach().cpu().contiguous()
    if not tensor.is_floating_point() or tensor.ndim < 2:
        return {name: tensor}
    kept = tensor.reshape(-1) != 0
    values, bits = tensor.reshape(-1)[kept], pack_bits(kept)
    places = kept.nonzero().squeeze(1).to(torch.int32)
    gaps = places.diff(prepend=places.new_full((1,), -1))
    narrow = gaps.to(torch.uint8) if not len(gaps) or int(gaps.max()) < 2**8 else gaps.to(torch.int16)
    if len(gaps) and int(gaps.max()) >= 2**15:
        narrow = gaps
    size = values.numel() * values.element_size()
    if size + min(bits.numel(), narrow.numel() * narrow.element_size()) >= tensor.numel() * tensor.element_size():
        return {name: tensor}
    if bits.numel() <= narrow.numel() * narrow.element_size():
        return {name + _VALUES: values, name + _MASK: bits}
    return {name + _VALUES: values, name + _GAPS: narrow}


def restored(path: Path, shapes: Mapping[str, Sequence[int]], tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of these shapes by name, from those that ``stored`` gave and that were read from ``path``.

    Shapes that take much more memory than the file could hold are refused before anything is allocated.
    """
    sizes = {name: _meta(name, shape, tensors) for name, shape in shapes.items()}
    check_memory(path, sum(tensor.numel() * tensor.element_size() for tensor in sizes.values()))
    return {name: _whole(name, list(shape), tensors) for name, shape in shapes.items()}


def pack_bits(flags: Tensor) -> Tensor:
    """Flags as bytes, eight flags per byte, the first flag in the lowest bit."""
    flat = flags.reshape(-1)
    padded = F.pad(flat, (0, -len(flat) % 8)).view(-1, 8).to(torch.uint8)
    return (padded << torch.arange(8, dtype=torch.uint8, device=flags.device)).sum(1, dtype=torch.uint8)


def unpack_bits(packed: Tensor, number: int) -> Tensor:
    """The first ``number`` flags that were packed."""
    bits = (packed.unsqueeze(1) >> torch.arange(8, dtype=torch.uint8, device=packed.device)) & 1
    return bits.reshape(-1)[:number].bool()


def _meta(name: str, shape: Sequence[int], tensors: Mapping[str, Tensor]) -> Tensor:
    """A tensor of that shape without memory."""
    like = tensors[name] if name in tensors else tensors[name + _VALUES]
    return torch.empty(shape, dtype=like.dtype, device="meta")


def _whole(name: str, shape: list[int], tensors: Mapping[str, Tensor]) -> Tensor:
    if name in tensors:
        return tensors[name].reshape(shape)
    values = tensors[name + _VALUES]
    whole = values.new_zeros(shape)
    flat = whole.view(-1)
    if name + _MASK in tensors:
        flat[unpack_bits(tensors[name + _MASK], flat.numel())] = values
    else:
        flat[tensors[name + _GAPS].long().cumsum(0) - 1] = values
    return whole
