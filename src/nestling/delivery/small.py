"""A smaller plain network as a folder: a program that torch runs by itself, its weights, and what is known of it."""

import warnings
from collections.abc import Mapping
from io import BytesIO
from os import PathLike
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from nestling.errors import NestlingError
from nestling.training.files import tensor_bytes, write_json, write_whole
from nestling.training.saving import made_folder

PROGRAM_FILE = "network.pt2"
WEIGHTS_FILE = "weights.safetensors"
ABOUT_FILE = "small.json"


def save_small(
    network: nn.Module,
    example: tuple[tuple[Any, ...], dict[str, Any]],
    folder: str | PathLike[str],
    about: Mapping[str, Any],
) -> None:
    """Write a plain network: ``torch.export.load(folder / "network.pt2").module()`` runs it, for batches of any size.

    The program is read back and compared with the network on the example before anything is written.
    """
    args, kwargs = example
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = _exported(network, args, kwargs)
        content = BytesIO()
        torch.export.save(program, content)
        content.seek(0)
        again = torch.export.load(content).module()
        expected, found = network(*args, **kwargs), again(*args, **kwargs)
    for here, there in zip(pytree.tree_leaves(expected), pytree.tree_leaves(found), strict=True):
        if isinstance(here, Tensor) and not torch.allclose(here, there, atol=1e-5, rtol=1e-4):
            raise NestlingError("the exported network does not compute what the network does. Use extract in Python.")
    place = made_folder(folder)
    write_whole(place / PROGRAM_FILE, content.getvalue())
    write_whole(place / WEIGHTS_FILE, tensor_bytes(network.state_dict(), dict(about)))
    write_json(place / ABOUT_FILE, about)


def _exported(network: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.export.ExportedProgram:
    """The program with the batch left open, or with the example's if the code does not allow that."""
    shapes = pytree.tree_map_only(Tensor, lambda t: {0: torch.export.Dim.AUTO} if t.ndim else None, (args, kwargs))
    try:
        return torch.export.export(network, args, kwargs, dynamic_shapes=(*shapes[0], *shapes[1].values()))
    except Exception:  # torch raises errors of many kinds where a size can't be open
        return torch.export.export(network, args, kwargs)
