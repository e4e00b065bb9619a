"""A plain network as a program: a small file that torch runs without nestling."""

import warnings
import zipfile
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import torch
from torch import Tensor, nn

from nestling.errors import NestlingError
from nestling.running.agreement import TOLERANCE, gap
from nestling.running.batches import Call
from nestling.torch_parts import pytree


@dataclass(frozen=True)
class Program:
    """The ``content`` of a program's file, and the ``module`` that ``torch.export.load(file).module()`` gives."""

    content: bytes
    module: nn.Module


def program_of(network: nn.Module, example: Call) -> Program:
    """The program of a plain network, checked to compute the same as the network on the example.

    The content is compressed, so that weights that are zero take next to no space.
    """
    args, kwargs = example
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        stored = BytesIO()
        torch.export.save(_exported(network, args, kwargs), stored)
        content = _compressed(stored)
        module: nn.Module = torch.export.load(BytesIO(content)).module()
        if gap(network(*args, **kwargs), module(*args, **kwargs)) > TOLERANCE:
            raise NestlingError("the exported network does not compute the same as the network. Use extract in Python.")
    return Program(content, module)


def _exported(network: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.export.ExportedProgram:
    """The program for any batch size, or for the example's batch size if the code does not allow others."""
    shapes = pytree.tree_map_only(Tensor, lambda t: {0: torch.export.Dim.AUTO} if t.ndim else None, (args, kwargs))
    try:
        return torch.export.export(network, args, kwargs, dynamic_shapes=(*shapes[0], *shapes[1].values()))
    except Exception:  # torch raises errors of many kinds if a size can't be left open
        return torch.export.export(network, args, kwargs)


def _compressed(stored: BytesIO) -> bytes:
    """A zip archive with its members compressed, and dated alike so that equal programs have equal files."""
    compressed = BytesIO()
    with zipfile.ZipFile(stored) as source, zipfile.ZipFile(compressed, "w", zipfile.ZIP_DEFLATED) as target:
        for member in source.infolist():
            target.writestr(zipfile.ZipInfo(member.filename), source.read(member), zipfile.ZIP_DEFLATED)
    return compressed.getvalue()
