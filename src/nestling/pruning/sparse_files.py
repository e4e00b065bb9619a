"""A pruned network in one file: of every tensor that is mostly zeros only the nonzero entries are stored."""

from collections.abc import Mapping
from copy import deepcopy
from os import PathLike
from pathlib import Path

from torch import Tensor, nn

from nestling.errors import RunError
from nestling.pruning.cutting import KeptInputs
from nestling.pruning.sparse import SparseLinear, to_dense, to_sparse
from nestling.reading import Holders
from nestling.running.layers import layer_type
from nestling.storage import read_tensors, restored, stored, write_tensors

PRUNED_FILE = "pruned.safetensors"
"""The file of the weights in the folder of a pruning."""


def save_pruned(network: nn.Module, path: str | PathLike[str]) -> int:
    """Write a pruned network's tensors to a safetensors file, each in its smallest form.

    Args:
        network: The network, such as ``Pruned.network``.
        path: The file.

    Returns:
        The size of the file in bytes.

    Raises:
        RunError: If nothing can be written there.

    Examples:
        >>> nl.save_pruned(module, "module.safetensors") > 0
        True
    """
    place = Path(path)
    tensors: dict[str, Tensor] = {}
    shapes: dict[str, list[int]] = {}
    for name, tensor in to_dense(network).state_dict().items():
        shapes[name] = list(tensor.shape)
        tensors |= stored(name, tensor)
    write_tensors(place, tensors, {"shapes": shapes, "picks": kept_inputs(network)})
    return place.stat().st_size


def kept_inputs(network: nn.Module) -> dict[str, int]:
    """How many inputs each layer of a network picks out, by the name of the part that does it."""
    return {name: len(part.index) for name, part in network.named_modules() if isinstance(part, KeptInputs)}


def load_pruned(path: str | PathLike[str], module: nn.Module, *, sparse: bool = True) -> nn.Module:
    """The pruned network from its file and the module that was pruned.

    Args:
        path: What ``save_pruned`` wrote.
        module: The network before pruning, at any width; it is not changed.
        sparse: Run layers sparse where that is faster.

    Returns:
        The pruned network, in eval mode.

    Raises:
        RunError: If the file is damaged, or of another network.

    Examples:
        >>> _ = nl.save_pruned(nl.extract(nested, 0.5), "half.safetensors")
        >>> half = nl.load_pruned("half.safetensors", module)
        >>> tuple(half(images).shape)
        (100, 10)
    """
    place = Path(path)
    tensors, record = read_tensors(place)
    network = deepcopy(module)
    try:
        shapes, picks = record["shapes"], record.get("picks", {})
        whole = restored(place, shapes, tensors)
        for pick in picks:
            parent = pick.rpartition(".")[0]
            layer = network.get_submodule(parent)
            network.set_submodule(parent, nn.Sequential(KeptInputs(whole[f"{pick}.index"]), layer))
        _resize(network, whole)
    except RunError:
        raise
    except Exception as error:  # a damaged description can cause any error
        raise RunError(place, f"does not fit the module ({error})", "Pass the module that was pruned.") from None
    network.eval()
    return _run_sparse(network) if sparse else network


def _run_sparse(network: nn.Module) -> nn.Module:
    """The network with those layers sparse that are faster as sparse rows."""
    candidate = to_sparse(network)
    for path, layer in list(candidate.named_modules()):
        if isinstance(layer, SparseLinear) and not layer.as_rows:
            candidate.set_submodule(path, deepcopy(network.get_submodule(path)))
    return candidate


def _resize(network: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Give a module tensors of other sizes, and its layers the matching attributes."""
    holders = Holders(network)
    unknown = sorted(tensors.keys() ^ holders.canonical.keys())
    if unknown:
        raise KeyError(unknown[0])
    new = {holders.canonical[name]: tensor for name, tensor in tensors.items()}
    sizes = [
        (module, name, value)
        for module, names in holders.members
        for name, value in layer_type(module).sizes(module, {key: new[n] for key, n in names.items()}).items()
    ]
    holders.put(new)
    for module, name, value in sizes:
        setattr(module, name, value)
