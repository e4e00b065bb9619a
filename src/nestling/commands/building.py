"""From words on the command line to a network on its device, with the data that it fits."""

import ast
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import safetensors
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from nestling import models
from nestling.commands.options import Device
from nestling.data import Data
from nestling.errors import ArgumentError, NestlingError, RunError
from nestling.launch import local_rank


def chosen(device: Device) -> torch.device:
    """The device that is meant; auto is a GPU where there is one, of several processes each its own."""
    if device == "cuda" and not torch.cuda.is_available():
        raise ArgumentError("device", "cuda", "cpu where torch finds no GPU", "Check torch.cuda.is_available().")
    if device == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", local_rank())


def built(model: str, loaded: Data, seed: int, given_options: Mapping[str, Any]) -> nn.Module:
    """A network that fits the data; what goes wrong in code of the user's is said in one line."""
    try:
        options = models.options_for(model, loaded.input_shape, loaded.num_outputs) | dict(given_options)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return models.build(model, **options)
    except NestlingError:
        raise
    except Exception as error:
        given = f"{model}, which raises {type(error).__name__}: {error}"
        raise ArgumentError("model", given, "code that builds a network", "Call it in Python for the lines.") from error


def load_weights(network: nn.Module, path: Path, num_outputs: int | None = None) -> list[str]:
    """Give a network the weights of a safetensors file that has them under the network's own names.

    With ``num_outputs`` (the number of classes) the last layer may have another number of outputs in the file: then it
    keeps the weights it has. Counts of batches that norms have seen may be missing, as in old files. Whatever else does
    not fit is an error, and then the network stays as it is.

    Returns: the names of the tensors that were not taken because their number of outputs differs.
    """
    try:
        tensors = load_file(path)
    except (OSError, safetensors.SafetensorError) as error:
        advice = "Save them with safetensors.torch.save_file(module.state_dict(), path); pickles are not read."
        raise RunError(path, f"can't be read as safetensors ({error})", advice) from None
    own = network.state_dict()
    counts = {name for name in own if name.endswith("num_batches_tracked")}
    head = _head(own, num_outputs)
    left = []
    for name in {**own, **tensors}:
        here, there = own.get(name), tensors.get(name)
        if (there is None and name in counts) or (here is not None and there is not None and here.shape == there.shape):
            continue
        if here is None or there is None or name not in head or here.shape[1:] != there.shape[1:]:
            shapes = " and ".join("nothing" if t is None else str(tuple(t.shape)) for t in (there, here))
            raise RunError(path, f"does not fit the network at {name}: {shapes}", "Check the model and its options.")
        left.append(name)
    network.load_state_dict(own | {name: tensor for name, tensor in tensors.items() if name not in left})
    return left


def not_taken(path: Path, names: Sequence[str]) -> str:
    """One line about the tensors that ``load_weights`` did not take."""
    return f"{path}: {', '.join(names)} not taken, because they are for another number of classes"


def _head(tensors: Mapping[str, Tensor], num_outputs: int | None) -> set[str]:
    """The tensors of a network's last layer, if that is its number of outputs."""
    weights = [name for name, tensor in tensors.items() if tensor.ndim > 1]
    if not weights or tensors[weights[-1]].shape[0] != num_outputs:
        return set()
    layer = weights[-1].rpartition(".")[0]
    own = {name: tensor for name, tensor in tensors.items() if name.rpartition(".")[0] == layer}
    return {name for name, tensor in own.items() if tensor.shape[:1] == (num_outputs,)}


def option(text: str) -> tuple[str, Any]:
    """An option of a model as it is written on the command line, name=value."""
    name, _, value = text.partition("=")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        needed = "an option such as width=0.5 or hidden=[64,32]"
        raise ArgumentError("model-options", repr(text), needed, "Write name=value without spaces.") from None
