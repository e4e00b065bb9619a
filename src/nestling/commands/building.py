"""From words on the command line to a network on its device, with the data that it fits."""

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import safetensors
import torch
from safetensors.torch import load_file
from torch import nn

from nestling import models
from nestling.data import Data
from nestling.errors import ArgumentError, NestlingError, RunError
from nestling.network import Bits
from nestling.network.group import Kind
from nestling.network.layers import Sampling
from nestling.processes import local_rank

Device = Literal["auto", "cpu", "cuda"]


@dataclass(frozen=True)
class Nesting:
    """The options of ``nest`` that a command line can give."""

    order: Literal["downhill", "uniform", "geometric", "full"] = "downhill"
    """How widths are drawn; downhill is learned."""
    weights: Literal["gaussian", "plain"] = "gaussian"
    """gaussian learns the uncertainty of each weight."""
    sampling: Sampling = "local"
    """How weights are drawn; channel and shared are cheaper, shared or each for segmentation."""
    num_blocks: int = 32
    """Into how many blocks each group is divided."""
    num_always: int = 2
    """How many of them are never cut."""
    kinds: tuple[Kind, ...] | None = None
    """What may be cut; by default all channels, neurons, heads and paths."""
    where: Literal["inner", "all"] = "inner"
    """Cut only what stays inside a block, or residual streams too."""
    layers: Literal["network", "stage"] = "network"
    """Drop layers from the end of the network, or of each stage."""
    bits: Bits = field(default_factory=Bits)
    """How weights are quantised, where kinds has bit."""
    private: tuple[float, ...] = ()
    """Fractions at which batch norms have weights of their own, as in slimmable networks."""
    exclude: tuple[str, ...] = ()
    """Modules or tensors to leave alone."""
    rescale: bool = False
    """Scale each block by its keep probability at test time, as FN3 does."""

    def options(self) -> dict[str, Any]:
        """The options as ``nest`` takes them."""
        bits = self.bits if "bit" in (self.kinds or ()) else None
        return vars(self) | {"weights": None if self.weights == "plain" else self.weights, "bits": bits}


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


def load_weights(network: nn.Module, path: Path) -> None:
    """Give a network the weights of a safetensors file that has them under the network's own names."""
    try:
        tensors = load_file(path)
    except (OSError, safetensors.SafetensorError) as error:
        advice = "Save them with safetensors.torch.save_file(module.state_dict(), path); pickles are not read."
        raise RunError(path, f"can't be read as safetensors ({error})", advice) from None
    own = network.state_dict()
    for name in {**own, **tensors}:
        here, there = own.get(name), tensors.get(name)
        if here is None or there is None or here.shape != there.shape:
            shapes = " and ".join("nothing" if t is None else str(tuple(t.shape)) for t in (there, here))
            raise RunError(path, f"does not fit the network at {name}: {shapes}", "Check the model and its options.")
    network.load_state_dict(tensors)


def option(text: str) -> tuple[str, Any]:
    """An option of a model as it is written on the command line, name=value."""
    name, _, value = text.partition("=")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        needed = "an option such as width=0.5 or hidden=[64,32]"
        raise ArgumentError("model-options", repr(text), needed, "Write name=value without spaces.") from None
