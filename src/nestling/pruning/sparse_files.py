"""A pruned network in one file: of every tensor that is mostly zeros only the nonzero entries are stored."""

from collections.abc import Mapping
from copy import deepcopy
from os import PathLike
from pathlib import Path

import torch
from torch import Tensor, nn

from nestling.errors import RunError
from nestling.pruning.cutting import KeptInputs
from nestling.pruning.sparse import SparseLinear, pack_bits, to_dense, to_sparse, unpack_bits
from nestling.reading import Holders
from nestling.running.layers import layer_type
from nestling.storage import read_tensors, write_tensors

PRUNED_FILE = "pruned.safetensors"
"""The file of the weights in the folder of a pruning."""
_VALUES, _MASK, _COLUMNS = ".values", ".mask", ".index"


def save_pruned(network: nn.Module, path: str | PathLike[str]) -> int:
    """Write a pruned network's tensors to a safetensors file, each in its smallest form; return the file's size."""
    place = Path(path)
    tensors: dict[str, Tensor] = {}
    shapes: dict[str, list[int]] = {}
    for name, tensor in to_dense(network).state_dict().items():
        shapes[name] = list(tensor.shape)
        tensors |= _stored(name, tensor)
    picks = {name: len(part.index) for name, part in network.named_modules() if isinstance(part, KeptInputs)}
    write_tensors(place, tensors, {"shapes": shapes, "picks": picks})
    return place.stat().st_size


def load_pruned(path: str | PathLike[str], module: nn.Module, *, sparse: bool = True) -> nn.Module:
    """The pruned network from its file and the module that was pruned, at any width; the module is not changed.

    With ``sparse`` the network's layers run sparse where that is faster.
    """
    place = Path(path)
    tensors, record = read_tensors(place)
    network = deepcopy(module)
    try:
        shapes, picks = record["shapes"], record["picks"]
        for pick, size in picks.items():
            parent = pick.rpartition(".")[0]
            layer = network.get_submodule(parent)
            network.set_submodule(parent, nn.Sequential(KeptInputs(torch.zeros(size, dtype=torch.int64)), layer))
        _resize(network, {name: _restored(name, shape, tensors) for name, shape in shapes.items()})
    except (KeyError, AttributeError, ValueError, RuntimeError, TypeError, IndexError) as error:
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


def _stored(name: str, tensor: Tensor) -> dict[str, Tensor]:
    """A tensor as a whole, as values and bit mask, or as values and gaps between them: the smallest of the three."""
    tensor = tensor.detach().cpu().contiguous()
    if not tensor.is_floating_point() or tensor.ndim < 2:
        return {name: tensor}
    kept = tensor.reshape(-1) != 0
    values, bits = tensor.reshape(-1)[kept], pack_bits(kept)
    places = kept.nonzero().squeeze(1).to(torch.int32)
    gaps = places.diff(prepend=places.new_full((1,), -1))
    narrow = gaps.to(torch.uint8) if not len(gaps) or int(gaps.max()) < 2**8 else gaps.to(torch.int16)
    if len(gaps) and int(gaps.max()) >= 2**15:
        narrow = gaps
    size = values.numel() * values.element_size()
    if size + min(bits.numel(), narrow.numel() * narrow.element_size()) >= tensor.numel() * tensor.element_size():
        return {name: tensor}
    if bits.numel() <= narrow.numel() * narrow.element_size():
        return {name + _VALUES: values, name + _MASK: bits}
    return {name + _VALUES: values, name + _COLUMNS: narrow}


def _restored(name: str, shape: list[int], tensors: Mapping[str, Tensor]) -> Tensor:
    if name in tensors:
        return tensors[name].reshape(shape)
    values = tensors[name + _VALUES]
    whole = values.new_zeros(shape)
    flat = whole.view(-1)
    if name + _MASK in tensors:
        flat[unpack_bits(tensors[name + _MASK], flat.numel())] = values
    else:
        flat[tensors[name + _COLUMNS].long().cumsum(0) - 1] = values
    return whole
