"""From the words on the command line to a network that fits the data, on its device."""

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
from nestling.errors import ArgumentError, NestlingError, RunError, printable
from nestling.launch import local_rank
from nestling.reading import full_cut
from nestling.storage import WEIGHTS_FILE, load, plain_file, read_tensors


def torch_device(device: Device) -> torch.device:
    """The device of that name; auto is a GPU if there is one. Each of several processes gets a different GPU."""
    if device == "cuda" and not torch.cuda.is_available():
        raise ArgumentError("device", "cuda", "cpu where torch finds no GPU", "Check torch.cuda.is_available().")
    if device == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", local_rank())


def build_network(model: str, loaded: Data, num_outputs: int, seed: int, given_options: Mapping[str, Any]) -> nn.Module:
    """Build a network that fits the data; an error in the user's code becomes one line."""
    if loaded.task == "language":
        needed = "images, vectors or tables of numbers on the command line"
        raise ArgumentError("data", f"{loaded.name}, a text", needed, "Train on texts in Python: docs/generation.md.")
    try:
        options = models.options_for(model, loaded.input_shape, num_outputs) | dict(given_options)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return models.build(model, **options)
    except NestlingError:
        raise
    except Exception as error:
        given = f"{model}, which raises {type(error).__name__}: {error}"
        raise ArgumentError(
            "model", given, "code that builds a network", "Call it in Python for the traceback."
        ) from error


def load_weights(network: nn.Module, path: Path, num_outputs: int | None = None) -> list[str]:
    """Load weights from a safetensors file whose tensors have the same names as the network's, or from a run's folder.

    A run gives its network at full width, with the weights at their means.
    With ``num_outputs`` (the number of classes) the last layer may have another number of outputs in the file: then it
    keeps its present weights. The norms' ``num_batches_tracked`` may be missing, as in old files. Any other mismatch is
    an error, and then the network stays unchanged.

    Returns: the names of the tensors that were not taken because their number of outputs differs.
    """
    tensors = _of_run(path, network) if path.is_dir() else _of_file(path)
    state = network.state_dict()
    counts = {name for name in state if name.endswith("num_batches_tracked")}
    head = _head(state, num_outputs)
    skipped = []
    for name in {**state, **tensors}:
        present, saved = state.get(name), tensors.get(name)
        if (saved is None and name in counts) or (
            present is not None and saved is not None and present.shape == saved.shape
        ):
            continue
        if present is None or saved is None or name not in head or present.shape[1:] != saved.shape[1:]:
            shapes = " and ".join("nothing" if t is None else str(tuple(t.shape)) for t in (saved, present))
            raise RunError(path, f"does not fit the network at {name}: {shapes}", "Check the model and its options.")
        skipped.append(name)
    network.load_state_dict(state | {name: tensor for name, tensor in tensors.items() if name not in skipped})
    return skipped


def _of_file(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(plain_file(path))
    except (OSError, safetensors.SafetensorError) as error:
        advice = "Save them with safetensors.torch.save_file(module.state_dict(), path); pickles are not read."
        raise RunError(path, f"can't be read as safetensors ({error})", advice) from None


def _of_run(folder: Path, network: nn.Module) -> dict[str, Tensor]:
    """The plain network of a run; code that the run names is called only if it is the code that built ``network``."""
    _, record = read_tensors(folder / WEIGHTS_FILE)
    described = record.get("network")
    saved, source = described.get("model") if isinstance(described, dict) else None, models.source_of(network)
    module = network if saved is None else None
    if source is not None and source.is_code and isinstance(saved, dict) and saved.get("name") == source.name:
        module = models.build(source.name, **saved["options"])
    nested = load(folder, module)
    return nested.extracted(full_cut(nested.groups)).state_dict()


def not_taken(path: Path, names: Sequence[str]) -> str:
    """One line that names the tensors that ``load_weights`` did not take."""
    return printable(f"{path}: {', '.join(names)} not taken, because they are for another number of classes")


def _head(tensors: Mapping[str, Tensor], num_outputs: int | None) -> set[str]:
    """The tensors of a network's last layer, if it has that number of outputs."""
    weights = [name for name, tensor in tensors.items() if tensor.ndim > 1]
    if not weights or tensors[weights[-1]].shape[0] != num_outputs:
        return set()
    layer = weights[-1].rpartition(".")[0]
    last = {name: tensor for name, tensor in tensors.items() if name.rpartition(".")[0] == layer}
    return {name for name, tensor in last.items() if tensor.shape[:1] == (num_outputs,)}


def option(text: str) -> tuple[str, Any]:
    """The name and the value of a model's option from name=value on the command line."""
    name, _, value = text.partition("=")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        needed = "an option such as width=0.5 or hidden=[64,32]"
        raise ArgumentError("model-options", repr(text), needed, "Write name=value without spaces.") from None
