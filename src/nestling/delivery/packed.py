"""The tensors of a plain network with its quantised weights as packed bits, and back."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from nestling.errors import RangeError
from nestling.running import NUM_PAIRS, Levels, codes, dequantise, num_bytes, pack, unpack

_CODES, _SCALE = ".codes", ".log_tau"


def packed_state(
    state: Mapping[str, Tensor], levels: Mapping[str, Levels], *, nested: bool
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """A network's tensors, with quantised weights as codes and a scale, and a record of how they are packed.

    ``nested`` packs the codes in planes, of which the first are the codes of fewer pairs; this takes one more bit per
    weight than the smallest form.
    """
    tensors = {name: tensor for name, tensor in state.items() if name not in levels}
    for name, weight_levels in levels.items():
        tensors[name + _CODES] = pack(
            codes(state[name], weight_levels.log_tau, weight_levels.num_pairs), weight_levels.num_pairs, nested=nested
        )
        tensors[name + _SCALE] = weight_levels.log_tau.detach()
    shapes = {
        n: {"shape": list(state[n].shape), "num_pairs": weight_levels.num_pairs} for n, weight_levels in levels.items()
    }
    return tensors, {"packed": shapes, "nested": nested}


def unpacked_state(
    tensors: Mapping[str, Tensor], record: Mapping[str, Any], num_pairs: int = NUM_PAIRS
) -> dict[str, Tensor]:
    """The tensors of the network, exact to the last bit; with nested codes at most ``num_pairs`` pairs per weight."""
    packed: dict[str, Any] = record["packed"]
    most = max((about["num_pairs"] for about in packed.values()), default=NUM_PAIRS)
    if num_pairs < most and not record["nested"]:
        advice = "Extract again with all bits (--all-bits)."
        raise RangeError("num_pairs", num_pairs, f"{most}, the only number that the codes were packed for", advice)
    state = {name: t for name, t in tensors.items() if not name.endswith((_CODES, _SCALE))}
    for name, about in packed.items():
        kept, shape, scale = min(num_pairs, about["num_pairs"]), about["shape"], tensors[name + _SCALE]
        data = tensors[name + _CODES]
        if record["nested"]:
            count = scale.new_empty(shape, device="meta").numel()
            data = data[: num_bytes(count, kept)]
        state[name] = dequantise(unpack(data, shape, kept, nested=record["nested"]), scale)
    return state
