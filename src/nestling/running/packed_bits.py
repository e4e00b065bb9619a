"""Codes of quantised weights as packed bits, in planes: the data of fewer pairs is the start of the data of more."""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from nestling.errors import DtypeError, RangeError, ShapeError
from nestling.running.quantiser import NUM_PAIRS, check_codes, check_num_pairs

Bytes = npt.NDArray[np.uint8]
Codes = npt.NDArray[np.int8]
Bits = npt.NDArray[np.bool_]


def pack(codes: Tensor, num_pairs: int = NUM_PAIRS, *, nested: bool = True) -> Tensor:
    """The bytes (num_bytes,) of codes of any shape, as uint8.

    ``nested``: a plane has one bit per weight. The first plane says which weights are negative, and one plane per pair
    says which weights have passed the pair: 2 bits per weight for one pair and 1 bit for each further pair. The planes
    of fewer pairs come first. Not ``nested``: code + num_pairs as a binary number, lowest bit first, in 2, 3, 3 or 4
    bits. In both, weight number i is bit i % 8, counted from the lowest, of byte i // 8 of each plane; unused bits
    are 0.
    """
    check_codes(codes, check_num_pairs(num_pairs))
    flat = codes.detach().to("cpu", torch.int8).reshape(-1).numpy()
    planes = _nested_planes(flat, num_pairs) if nested else _binary_planes(flat, num_pairs)
    return torch.from_numpy(np.concatenate([np.packbits(plane, bitorder="little") for plane in planes]))


def unpack(data: Tensor, shape: Sequence[int], num_pairs: int = NUM_PAIRS, *, nested: bool = True) -> Tensor:
    """The codes (*shape) with ``num_pairs`` pairs, as int8.

    Nested data may have more planes than needed; these are not read. Data of another size, or with bits that ``pack``
    never sets, is refused.
    """
    num_weights = _num_weights(shape)
    planes = _planes(data, num_weights, check_num_pairs(num_pairs), nested)
    codes = _read_nested(planes, num_weights) if nested else _read_binary(planes, num_weights, num_pairs)
    return torch.from_numpy(codes).reshape(tuple(shape))


def num_bytes(num_weights: int, num_pairs: int = NUM_PAIRS, *, nested: bool = True) -> int:
    """The number of bytes that ``pack`` makes of this many weights, and where the planes of this many pairs end."""
    if isinstance(num_weights, bool) or not isinstance(num_weights, int):
        raise DtypeError("num_weights", repr(num_weights), "a whole number", "Pass weight.numel().")
    if num_weights < 0:
        raise RangeError("num_weights", num_weights, "at least 0", "Pass weight.numel().")
    return _num_planes(check_num_pairs(num_pairs), nested) * _plane_bytes(num_weights)


def _nested_planes(codes: Codes, num_pairs: int) -> list[Bits]:
    size = np.abs(codes)
    return [codes < 0, *(size > pair for pair in range(num_pairs))]


def _binary_planes(codes: Codes, num_pairs: int) -> list[Bits]:
    number = codes + np.int8(num_pairs)
    return [(number >> place & 1).astype(np.bool_) for place in range(_num_planes(num_pairs, nested=False))]


def _read_nested(planes: Bytes, num_weights: int) -> Codes:
    """Every plane lies within the one before it, and the negative weights within those that passed the first pair."""
    if bool((planes[0] & ~planes[1]).any() or (planes[2:] & ~planes[1:-1]).any()):
        raise _foreign("a weight that is minus zero, or that passed a pair but not the pair before it")
    passed = np.zeros(num_weights, dtype=np.int8)
    for plane in planes[1:]:
        passed += _bits(plane, num_weights)
    return passed * (1 - 2 * _bits(planes[0], num_weights))


def _read_binary(planes: Bytes, num_weights: int, num_pairs: int) -> Codes:
    number = np.zeros(num_weights, dtype=np.int8)
    for place, plane in enumerate(planes):
        number += _bits(plane, num_weights) << np.int8(place)
    if bool((number > 2 * num_pairs).any()):
        raise _foreign(f"a level beyond the {2 * num_pairs + 1} of {num_pairs} pairs")
    return number - np.int8(num_pairs)


def _bits(plane: Bytes, num_weights: int) -> Codes:
    return np.unpackbits(plane, count=num_weights, bitorder="little").view(np.int8)


def _planes(data: Tensor, num_weights: int, num_pairs: int, nested: bool) -> Bytes:
    """The first planes (planes, bytes per plane) of the data, whose size and padding are checked."""
    if not isinstance(data, Tensor) or data.dtype != torch.uint8:
        description = f"a tensor of {data.dtype}" if isinstance(data, Tensor) else f"a {type(data).__name__}"
        raise DtypeError("data", description, "a tensor of torch.uint8", "Read bytes with torch.frombuffer.")
    most = NUM_PAIRS if nested else num_pairs
    sizes = [num_bytes(num_weights, pairs, nested=nested) for pairs in range(num_pairs, most + 1)]
    if data.ndim != 1 or len(data) not in sizes:
        needed = f"one axis of {' or '.join(map(str, sizes))} bytes for {num_weights} weights with {num_pairs} pairs"
        advice = "The data was cut short, or belongs to a tensor of another shape."
        raise ShapeError("data", f"shape {tuple(data.shape)}", needed, advice)
    planes = data[: sizes[0]].detach().cpu().numpy()
    planes = planes.reshape(_num_planes(num_pairs, nested), _plane_bytes(num_weights))
    if num_weights % 8 and bool((planes[:, -1] >> num_weights % 8).any()):
        raise _foreign(f"bits after the last of {num_weights} weights")
    return planes


def _num_planes(num_pairs: int, nested: bool) -> int:
    """The number of bits per weight."""
    return num_pairs + 1 if nested else (2 * num_pairs).bit_length()


def _plane_bytes(num_weights: int) -> int:
    return -(-num_weights // 8)


def _num_weights(shape: Sequence[int]) -> int:
    if not isinstance(shape, Sequence) or not all(isinstance(size, int) and size >= 0 for size in shape):
        raise ShapeError("shape", shape, "the sizes of a tensor, whole numbers", "Pass the shape that the codes had.")
    return math.prod(shape)


def _foreign(bits: str) -> RangeError:
    """The error for bits that ``pack`` never makes."""
    return RangeError("data", bits, "what pack made of codes", "It is damaged, or was packed in another way.")
