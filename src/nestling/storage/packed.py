"""The tensors of a plain network, each in its smallest form: quantised weights as packed bits, others without zeros."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from nestling.errors import RangeError
from nestling.running import NUM_PAIRS, Levels, codes, dequantise, num_bytes, pack, unpack
from nestling.storage.nonzero import restored, stored

_CODES, _SCALE = ".codes", ".log_tau"
_FEWER = "pairs"
"""The prefix of the names of norm statistics for fewer pairs."""


@dataclass(frozen=True)
class Packing:
    """How the weights of a small network are stored: by default each tensor as it is, without its zeros.

    Args:
        levels: The levels of each quantised weight, by name, as ``nested.levels_at(cut)`` gives them; such weights are
            stored as packed bits.
        fewer: The statistics of the network's norms for each smaller number of pairs of levels. If it is given, the
            codes are packed so that the first of them are the codes of fewer pairs.

    Examples:
        >>> small, about = nl.extract(nested, 0.5), nl.delivery.small_record(run.data)
        >>> saved = nl.delivery.save_small(small, nested.example, "small", about, nl.delivery.Packing())
        >>> tuple(saved(images).shape)
        (100, 10)
    """

    levels: Mapping[str, Levels] = field(default_factory=dict)
    fewer: Mapping[int, Mapping[str, Tensor]] | None = None


def packed_state(state: Mapping[str, Tensor], packing: Packing) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """A network's tensors, with quantised weights as codes and a scale, and a record of how they are packed.

    With ``packing.fewer`` the codes are in planes, of which the first are the codes of fewer pairs; this takes one more
    bit per weight than the smallest form.
    """
    nested = packing.fewer is not None
    others = {name: tensor for name, tensor in state.items() if name not in packing.levels}
    tensors = {name: part for whole, tensor in others.items() for name, part in stored(whole, tensor).items()}
    for name, levels in packing.levels.items():
        tensors[name + _CODES] = pack(
            codes(state[name], levels.log_tau, levels.num_pairs), levels.num_pairs, nested=nested
        )
        tensors[name + _SCALE] = levels.log_tau.detach()
    for number, norms in (packing.fewer or {}).items():
        tensors |= {f"{_FEWER}.{number}.{name}": tensor for name, tensor in norms.items()}
    quantised = {
        name: {"shape": list(state[name].shape), "num_pairs": levels.num_pairs}
        for name, levels in packing.levels.items()
    }
    shapes = {name: list(tensor.shape) for name, tensor in others.items()}
    return tensors, {"shapes": shapes, "packed": quantised, "nested": nested}


def check_packed(record: Mapping[str, Any], num_pairs: int) -> None:
    """Refuse fewer pairs than the codes of a network were packed for, unless they are nested."""
    most = max((about["num_pairs"] for about in record["packed"].values()), default=NUM_PAIRS)
    if num_pairs < most and not record["nested"]:
        advice = "Extract again with all bits (--all-bits)."
        raise RangeError("num_pairs", num_pairs, f"{most}, the only number that the codes were packed for", advice)


def unpacked_state(
    path: Path, tensors: Mapping[str, Tensor], record: Mapping[str, Any], num_pairs: int = NUM_PAIRS
) -> dict[str, Tensor]:
    """The tensors of the network, exact to the last bit; with nested codes at most ``num_pairs`` pairs per weight.

    ``path`` is the file that they were read from.
    """
    quantised: dict[str, Any] = record["packed"]
    state = restored(path, record["shapes"], tensors)
    for name, about in quantised.items():
        kept, shape, scale = min(num_pairs, about["num_pairs"]), about["shape"], tensors[name + _SCALE]
        data = tensors[name + _CODES]
        if record["nested"]:
            count = scale.new_empty(shape, device="meta").numel()
            data = data[: num_bytes(count, kept)]
        state[name] = dequantise(unpack(data, shape, kept, nested=record["nested"]), scale)
    prefix = f"{_FEWER}.{num_pairs}."
    fewer = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
    return state | fewer
