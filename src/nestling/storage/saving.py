"""``save`` and ``load``: a nested network as a folder of JSON and safetensors, and back."""

import hashlib
from collections.abc import Mapping
from copy import deepcopy
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nestling import models
from nestling.errors import NestlingError, RunError, TraceError
from nestling.models import Source, source_of
from nestling.prediction import LIKELIHOODS, Likelihood, likelihood_from
from nestling.reading import Cut, make_cut
from nestling.running import Call, Nested
from nestling.storage.files import bytes_of, digest, read_tensors, write_json, write_tensors
from nestling.storage.structure import restored, structure_of
from nestling.torch_parts import pytree

GROUPS_FILE = "groups.json"
WEIGHTS_FILE = "model.safetensors"
_MOST_ENTRIES = 4096
"""No description of a network has more entries."""
_PLACE = "$tensor"
"""The key of an object that stands for a tensor of the example; its value is the number of the tensor."""


def save(nested: Nested, folder: str | PathLike[str], *, notes: Mapping[str, Any] | None = None) -> None:
    """Write a nested network to a folder: weights as safetensors, and what ``nest`` decided as JSON.

    The folder holds the statistics of norms at each cut, the groups with their slices, and how the network is built. If
    the folder is that of a run with the same weights, it stays one: so statistics can be added to a run.

    Args:
        nested: The network.
        folder: Where to write; it is made if it does not exist.
        notes: More to keep with the weights, as JSON has it; None keeps the notes that are there.

    Raises:
        RunError: If nothing can be written there.

    Examples:
        >>> nl.save(nested, "networks/digits")
        >>> torch.equal(nl.load("networks/digits")(images), nested(images))
        True
    """
    place = make_folder(folder)
    tensors, record = packed(nested)
    notes = _notes_at(place / WEIGHTS_FILE, tensors) if notes is None else notes
    structure, more = structure_of(nested)
    record |= {"network": describe(nested), "notes": dict(notes or {})} | structure
    write_json(place / GROUPS_FILE, {"groups": structure["groups"]})
    write_tensors(place / WEIGHTS_FILE, tensors | more, record)


def _notes_at(path: Path, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """The notes in a file that has the same weights; none if there is no such file."""
    try:
        saved, record = read_tensors(path)
    except RunError:
        return {}
    return dict(record.get("notes", {})) if weights_digest(saved) == weights_digest(tensors) else {}


def load(folder: str | PathLike[str], module: nn.Module | None = None, *, trust: bool = False) -> Nested:
    """Read a nested network from its folder, in eval mode. Nothing is unpickled, exported or traced.

    A network of the library is built again by its name. A network that a ``module:function`` of yours built needs
    ``trust=True``, since loading runs the code that the folder names. Any other network needs the ``module`` itself.

    Args:
        folder: Where ``save`` or ``train`` wrote it.
        module: The network before it was nested; or a nested network, nested exactly as the saved one was, if that used
            an order or rules of your own.
        trust: Run the code that the folder names.

    Returns:
        The network with all its widths, in eval mode.

    Raises:
        RunError: If the folder is missing or damaged, or names code and is not trusted.

    Examples:
        >>> again = nl.load("runs/digits")
        >>> again.training, len(again.groups) == len(nested.groups)
        (False, True)
    """
    path = Path(folder) / WEIGHTS_FILE
    return loaded(path, *read_tensors(path), module, trust=trust)


def loaded(
    path: Path, tensors: Mapping[str, Tensor], record: Mapping[str, Any], module: nn.Module | None, *, trust: bool
) -> Nested:
    """The network whose tensors and record were read from ``path``."""
    try:
        if isinstance(module, Nested):
            nested = module
            _check_groups(path, nested, record["groups"])
        else:
            nested = _restored(path, record, tensors, module, trust=trust)
        unpack(nested, tensors, record, path)
    except (RunError, TraceError):
        raise
    except Exception as error:  # a damaged description can cause any error
        raise RunError(
            path, f"is not consistent ({_short(error)})", "Restore it from a copy, or train again."
        ) from None
    return nested.eval()


def make_folder(folder: str | PathLike[str]) -> Path:
    """Make a folder if it does not exist, and return its path."""
    place = Path(folder)
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(place, f"can't be made ({error.strerror})", "Give a folder that can be written to.") from None
    return place


def describe(nested: Nested) -> dict[str, Any]:
    """All that is needed to build and nest the network again, as JSON."""
    source = source_of(nested.module)
    leaves, _ = pytree.tree_flatten(nested.example)
    simple = all(isinstance(leaf, Tensor | int | float | str | bool | None) for leaf in leaves)
    return {
        "model": None if source is None else {"name": source.name, "options": dict(source.options)},
        "nest": nested.made_with,
        "example": _with_numbers(nested.example) if simple else None,
    }


def packed(nested: Nested) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """All tensors of a nested network by name, with its example and statistics, and a record of the cuts."""
    tensors = {f"network.{name}": tensor for name, tensor in nested.state_dict().items()}
    for number, leaf in enumerate(_tensor_leaves(nested.example)):
        tensors[f"example.{number}"] = leaf
    for number, statistics in enumerate(nested.statistics.values()):
        tensors |= {f"statistics.{number}.{name}": tensor for name, tensor in statistics.items()}
    likelihood = nested.likelihood.to_dict() if isinstance(nested.likelihood, Likelihood) else None
    return _without_sharing(tensors), {"cuts": [cut.as_dict() for cut in nested.statistics], "likelihood": likelihood}


def unpack(nested: Nested, tensors: Mapping[str, Tensor], record: Mapping[str, Any], path: Path) -> None:
    """Put the tensors that ``packed`` returned into a nested network: all of them, or none after an error."""
    before, nested.likelihood = nested.likelihood, _likelihood_in(record, nested, tensors)
    try:
        _put(nested, tensors, record, path)
    except Exception:
        nested.likelihood = before
        raise


def _likelihood_in(record: Mapping[str, Any], nested: Nested, tensors: Mapping[str, Tensor]) -> nn.Module | None:
    """The saved likelihood, in the network's own, whose parameters an optimiser may hold, if it is of the same kind.

    One of the user's, which no file can hold, is left to the user.
    """
    current, saved = nested.likelihood, record.get("likelihood")
    if saved is None:
        return None
    if saved.get("name") not in LIKELIHOODS or (isinstance(current, Likelihood) and current.is_like(saved)):
        return current
    return likelihood_from(saved).to(nested.device, _dtype_of(tensors))


def _put(nested: Nested, tensors: Mapping[str, Tensor], record: Mapping[str, Any], path: Path) -> None:
    state = nested.state_dict()
    saved = {name.removeprefix("network."): t for name, t in tensors.items() if name.startswith("network.")}
    if state.keys() != saved.keys():
        first = sorted(state.keys() ^ saved.keys())[0]
        raise RunError(path, f"does not fit the network: {first} is in one of them only", "Check the module passed.")
    for name, tensor in saved.items():
        if state[name].shape != tensor.shape or state[name].dtype != tensor.dtype:
            in_network, in_file = (f"{t.dtype} {tuple(t.shape)}" for t in (state[name], tensor))
            raise RunError(path, f"has {name} as {in_file}, the network as {in_network}", "Check the module passed.")
    statistics = _statistics(nested, tensors, record.get("cuts"), path)
    nested.load_state_dict(saved)
    nested.statistics = statistics


def _statistics(
    nested: Nested,
    tensors: Mapping[str, Tensor],
    cuts: Any,  # noqa: ANN401
    path: Path,
) -> dict[Cut, dict[str, Tensor]]:
    """The statistics of norms at each cut, checked against the network."""
    if not isinstance(cuts, list) or not all(isinstance(widths, dict) for widths in cuts):
        raise RunError(path, "does not say which cuts it has statistics for", "Restore it from a copy.")
    statistics: dict[Cut, dict[str, Tensor]] = {}
    for number, widths in enumerate(cuts):
        prefix = f"statistics.{number}."
        by_name = {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
        try:
            cut = make_cut(nested.groups, widths)
        except NestlingError as error:
            raise RunError(path, f"has statistics of an unknown cut ({error})", "Restore it from a copy.") from None
        smaller, whole = nested.tensors_at(cut), nested.tensors()
        for name, tensor in by_name.items():
            like = smaller.get(name, whole.get(name))
            if like is None or like.shape != tensor.shape or not tensor.is_floating_point():
                raise RunError(path, f"has statistics {name} that do not fit the network", "Check the module passed.")
        statistics[cut] = by_name
    return statistics


def _without_sharing(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same tensors, without shared memory: a tensor that shares memory with an earlier one is copied."""
    addresses: set[int] = set()
    separate = {}
    for name, tensor in tensors.items():
        address = tensor.untyped_storage().data_ptr()
        separate[name] = tensor.clone() if address in addresses and tensor.numel() else tensor
        addresses.add(address)
    return separate


def _tensor_leaves(example: object) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(example) if isinstance(leaf, Tensor)]


def _with_numbers(example: Call) -> dict[str, Any]:
    """An example as JSON; each tensor is replaced by its number."""
    numbers = iter(range(len(_tensor_leaves(example))))
    place = lambda _: {_PLACE: next(numbers)}  # noqa: E731
    args, kwargs = pytree.tree_map_only(Tensor, place, example)
    return {"args": list(args), "kwargs": kwargs}


def weights_digest(tensors: Mapping[str, Tensor]) -> str:
    """A checksum of a network's weights alone, without the statistics of cuts."""
    weights = sorted((name, t) for name, t in tensors.items() if name.startswith("network."))
    return digest([[name, hashlib.sha256(bytes_of(t)).hexdigest()] for name, t in weights])


def _restored(
    path: Path, record: Mapping[str, Any], tensors: Mapping[str, Tensor], module: nn.Module | None, *, trust: bool
) -> Nested:
    """The network as it was built and nested, before its saved weights are put in."""
    described, made = record["network"], record.get("made")
    saved, made_with, example = (described[key] for key in ("model", "nest", "example"))
    _check_numbers(path, described, sum(t.numel() for t in tensors.values()))
    if made_with is None or example is None:
        advice = "Nest the module as before and pass what you get: load(folder, nested)."
        raise RunError(path, "was nested with code or an example that no file can hold", advice)
    module = _built(path, saved, tensors, trust=trust) if module is None else deepcopy(module)
    args, kwargs = _filled(example, tensors)
    try:
        if made is not None:
            nested = restored(module, record, tensors, (args, kwargs), trust=trust)
        else:  # of the first format, or with a graph that no file can hold
            from nestling.network import nest  # here, since it takes long to import and few folders need it

            nested = nest(module, kwargs or args, **made_with | {"sort": "none"})  # the saved weights are in order
            _check_groups(path, nested, record["groups"])
    except RunError:
        raise
    except NestlingError as error:
        raise RunError(path, f"does not fit the network ({error})", "Check the module passed.") from None
    nested.made_with = made_with
    return nested.to(_dtype_of(tensors))


def _built(path: Path, saved: Any, tensors: Mapping[str, Tensor], *, trust: bool) -> nn.Module:  # noqa: ANN401
    """The module, built by the library's or the user's function of that name."""
    if saved is None:
        raise RunError(path, "does not say how the network is built", "Pass it: load(folder, module).")
    source = Source(saved["name"], saved["options"])
    if source.is_code and not trust:
        advice = "Pass trust=True (--trust) to run it, or the network itself: load(folder, module)."
        raise RunError(path, f"is built by code of yours, {source.name}", advice)
    if not source.is_code:
        _check_size(path, source, sum(t.numel() for t in tensors.values()))
    return models.build(source.name, **source.options).to(_dtype_of(tensors))


def _filled(example: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Call:
    """The example, with its tensors put in again."""

    def is_place(leaf: Any) -> bool:  # noqa: ANN401
        return isinstance(leaf, dict) and leaf.keys() == {_PLACE}

    def filled(leaf: Any) -> Any:  # noqa: ANN401
        return tensors[f"example.{leaf[_PLACE]}"] if is_place(leaf) else leaf

    args, kwargs = pytree.tree_map(filled, (tuple(example["args"]), example["kwargs"]), is_leaf=is_place)
    return args, kwargs


def _dtype_of(tensors: Mapping[str, Tensor]) -> torch.dtype | None:
    """The precision of a saved network, or None if its tensors differ."""
    of_network = (t for n, t in tensors.items() if n.startswith("network.") and not n.startswith("network.likelihood."))
    dtypes = {tensor.dtype for tensor in of_network if tensor.is_floating_point()}
    return dtypes.pop() if len(dtypes) == 1 else None


def _short(error: Exception) -> str:
    text = str(error) if isinstance(error, NestlingError) else repr(error)
    return " ".join(text.split())[:300]


def _check_numbers(path: Path, described: object, most: int) -> None:
    """Refuse a description with a number larger than a network of this size can have, before anything is built."""
    leaves = pytree.tree_leaves(described)
    if len(leaves) > _MOST_ENTRIES:
        raise RunError(path, f"describes a network in {len(leaves)} entries", "Train again.")
    for leaf in leaves:
        if isinstance(leaf, int | float) and abs(leaf) > max(most, 2**16):
            raise RunError(path, f"names a size of {leaf:.3g}, with {most} numbers in all", "Train again.")


def _check_size(path: Path, source: Source, most: int) -> None:
    """Refuse a network that is larger than the file, before memory is allocated for it."""
    with torch.device("meta"):
        size = sum(t.numel() for t in models.build(source.name, **source.options).state_dict().values())
    if size > most:
        raise RunError(path, f"describes a network of {size} numbers and holds {most}", "Train again.")


def _check_groups(path: Path, nested: Nested, saved: Any) -> None:  # noqa: ANN401
    """Refuse a network with other groups than the saved network; why a group is frozen may be worded differently."""
    if _compared(structure_of(nested)[0]["groups"]) != _compared(saved):
        advice = "Pass the module that was trained; one of another version of its code has other groups."
        raise RunError(path, "has other groups than the network", advice)


def _compared(groups: Any) -> list[dict[str, Any]]:  # noqa: ANN401
    """The fields of each group that the first format has, without the reason why it is frozen."""
    kept = [{key: value for key, value in group.items() if key not in ("frozen_because", "inner")} for group in groups]
    return [entry | {"slices": [(piece["tensor"], piece["axis"]) for piece in entry["slices"]]} for entry in kept]
