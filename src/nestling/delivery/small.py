"""A smaller plain network as a folder: a program that runs with torch alone, its weights, and a record of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nestling.delivery.packed import packed_state, unpacked_state
from nestling.errors import RunError
from nestling.running import NUM_PAIRS, Levels, Program, check_num_pairs, program_of
from nestling.storage import make_folder, plain_file, read_tensors, tensor_bytes, write_json, write_whole

PROGRAM_FILE = "network.pt2"
WEIGHTS_FILE = "weights.safetensors"
ABOUT_FILE = "small.json"
_FEWER = "pairs"
"""The prefix of the names of norm statistics for fewer pairs."""


@dataclass(frozen=True)
class Packing:
    """How the weights of a small network are stored: ``levels`` has the levels of each quantised weight, by name.

    ``fewer`` has the statistics of the network's norms for each smaller number of pairs. If it is given, the codes are
    packed so that the first of them are the codes of fewer pairs.
    """

    levels: Mapping[str, Levels] = field(default_factory=dict)
    fewer: Mapping[int, Mapping[str, Tensor]] | None = None


def save_small(
    network: nn.Module,
    example: tuple[tuple[Any, ...], dict[str, Any]],
    folder: str | PathLike[str],
    about: Mapping[str, Any],
    packing: Packing | None = None,
) -> None:
    """Write a plain network: ``torch.export.load(folder / "network.pt2").module()`` runs it, for batches of any size.

    The program is read back and compared with the network on the example before anything is written. The file of
    weights has quantised weights as packed bits: see ``load_small``.
    """
    packing = packing or Packing()
    program = program_of(network, example)
    tensors, record = packed_state(network.state_dict(), packing.levels, nested=packing.fewer is not None)
    for number, norms in (packing.fewer or {}).items():
        tensors |= {f"{_FEWER}.{number}.{name}": tensor for name, tensor in norms.items()}
    target = make_folder(folder)
    write_whole(target / WEIGHTS_FILE, tensor_bytes(tensors, dict(about) | record))
    write_program(program, target, about)


def write_program(program: Program | None, folder: Path, about: Mapping[str, Any]) -> None:
    """Write a program to a folder, if there is one, and the record of its network."""
    if program is not None:
        write_whole(folder / PROGRAM_FILE, program.content)
    write_json(folder / ABOUT_FILE, about)


def load_small(folder: str | PathLike[str], num_pairs: int = NUM_PAIRS) -> nn.Module:
    """The network that ``nestling extract`` wrote, with its weights unpacked, in eval mode.

    A network that was extracted with all bits can be loaded with fewer: ``num_pairs`` is the largest number of pairs of
    levels per quantised weight, and the norms have the statistics for that number.
    """
    source = Path(folder)
    check_num_pairs(num_pairs)
    tensors, record = read_tensors(source / WEIGHTS_FILE)
    program = source / PROGRAM_FILE
    try:
        module: nn.Module = torch.export.load(plain_file(program)).module()
    except Exception as error:  # torch raises errors of many kinds
        raise RunError(program, f"can't be read ({type(error).__name__})", "Extract the network again.") from None
    try:
        fewer = {n: t for n, t in tensors.items() if n.startswith(f"{_FEWER}.{num_pairs}.")}
        network_tensors = {n: t for n, t in tensors.items() if not n.startswith(f"{_FEWER}.")}
        state = unpacked_state(network_tensors, record, num_pairs)
        state |= {name.removeprefix(f"{_FEWER}.{num_pairs}."): tensor for name, tensor in fewer.items()}
        module.load_state_dict(state)
    except (KeyError, TypeError, AttributeError, RuntimeError) as error:
        problem = f"does not fit {PROGRAM_FILE} ({' '.join(str(error).split())[:200]})"
        raise RunError(source / WEIGHTS_FILE, problem, "Extract the network again.") from None
    return module
