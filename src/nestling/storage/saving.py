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
from nestling.reading import Cut, make_cut
from nestling.running import Nested
from nestling.storage.files import bytes_of, digest, read_tensors, write_json, write_tensors
from nestling.storage.structure import restored, structure_of
from nestling.torch_parts import pytree

GROUPS_FILE = "groups.json"
WEIGHTS_FILE = "model.safetensors"
_MOST_ENTRIES = 4096
"""No description of a network has more."""
_PLACE = "$tensor"
"""Key that stands for a tensor of the example, with the number it is stored under."""


def save(nested: Nested, folder: str | PathLike[str], *, notes: Mapping[str, Any] | None = None) -> None:
    """Write a nested network to a folder: how it was built, all that ``nest`` decided, its weights and statistics.

    All of it is in ``model.safetensors``, so that no two files can disagree; ``groups.json`` is a copy of the groups
    for people and other programs. ``notes`` are kept beside the weights, such as the epoch they are from.
    """
    place = made_folder(folder)
    tensors, record = packed(nested)
    structure, more = structure_of(nested)
    record |= {"network": describe(nested), "notes": dict(notes or {})} | structure
    write_json(place / GROUPS_FILE, {"groups": structure["groups"]})
    write_tensors(place / WEIGHTS_FILE, tensors | more, record)


def load(folder: str | PathLike[str], module: nn.Module | None = None, *, trust: bool = False) -> Nested:
    """Read a nested network from its folder, in eval mode.

    A network of the library's is built again by its name. One that a ``module:function`` of yours built needs
    ``trust=True``, since that runs code which the folder names; any other, the ``module`` itself (or a network that
    was nested just as the saved one, where that took an order or rules of your own).
    """
    path = Path(folder) / WEIGHTS_FILE
    return loaded(path, *read_tensors(path), module, trust=trust)


def loaded(
    path: Path, tensors: Mapping[str, Tensor], record: Mapping[str, Any], module: nn.Module | None, *, trust: bool
) -> Nested:
    """The network that was read from ``path``."""
    try:
        if isinstance(module, Nested):
            nested = module
            _check_groups(path, nested, record["groups"])
        else:
            nested = _restored(path, record, tensors, module, trust=trust)
        unpack(nested, tensors, record, path)
    except (RunError, TraceError):
        raise
    except Exception as error:  # whatever a description can bring about that no network has
        raise RunError(
            path, f"does not hang together ({_said(error)})", "Restore it from a copy, or train again."
        ) from None
    return nested.eval()


def made_folder(folder: str | PathLike[str]) -> Path:
    """The folder, made if it is not there."""
    place = Path(folder)
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(place, f"can't be made ({error.strerror})", "Give a folder that can be written to.") from None
    return place


def describe(nested: Nested) -> dict[str, Any]:
    """What is needed to build and nest the network again, as JSON has it."""
    source = source_of(nested.module)
    leaves, _ = pytree.tree_flatten(nested.example)
    simple = all(isinstance(leaf, Tensor | int | float | str | bool | None) for leaf in leaves)
    return {
        "model": None if source is None else {"name": source.name, "options": dict(source.options)},
        "nest": nested.made_with,
        "example": _with_places(nested.example) if simple else None,
    }


def packed(nested: Nested) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Every tensor of a nested network by name, with its example and statistics, and a record of which is which."""
    tensors = {f"network.{name}": tensor for name, tensor in nested.state_dict().items()}
    for number, leaf in enumerate(_tensor_leaves(nested.example)):
        tensors[f"example.{number}"] = leaf
    for number, (_, known) in enumerate(nested.statistics.items()):
        tensors |= {f"statistics.{number}.{name}": tensor for name, tensor in known.items()}
    return _apart(tensors), {"cuts": [cut.as_dict() for cut in nested.statistics]}


def unpack(nested: Nested, tensors: Mapping[str, Tensor], record: Mapping[str, Any], path: Path) -> None:
    """Give a nested network the tensors that ``packed`` gave, all of them or none."""
    own = nested.state_dict()
    given = {name.removeprefix("network."): t for name, t in tensors.items() if name.startswith("network.")}
    if own.keys() != given.keys():
        odd = sorted(own.keys() ^ given.keys())[0]
        raise RunError(path, f"does not fit the network: {odd} is in one of them only", "Check the module passed.")
    for name, tensor in given.items():
        if own[name].shape != tensor.shape or own[name].dtype != tensor.dtype:
            here, there = (f"{t.dtype} {tuple(t.shape)}" for t in (own[name], tensor))
            raise RunError(path, f"has {name} as {there}, the network as {here}", "Check the module passed.")
    statistics = _statistics(nested, tensors, record.get("cuts"), path)
    nested.load_state_dict(given)
    nested.statistics = statistics


def _statistics(
    nested: Nested,
    tensors: Mapping[str, Tensor],
    cuts: Any,  # noqa: ANN401
    path: Path,
) -> dict[Cut, dict[str, Tensor]]:
    """The statistics that norms have at each cut, if they fit the network."""
    if not isinstance(cuts, list) or not all(isinstance(widths, dict) for widths in cuts):
        raise RunError(path, "does not say which cuts it has statistics for", "Restore it from a copy.")
    found: dict[Cut, dict[str, Tensor]] = {}
    for number, widths in enumerate(cuts):
        prefix = f"statistics.{number}."
        known = {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
        try:
            cut = make_cut(nested.groups, widths)
        except NestlingError as error:
            raise RunError(path, f"has statistics of a cut there is not ({error})", "Restore it from a copy.") from None
        smaller, own = nested.tensors_at(cut), nested.tensors()
        for name, tensor in known.items():
            like = smaller.get(name, own.get(name))
            if like is None or like.shape != tensor.shape or not tensor.is_floating_point():
                raise RunError(path, f"has statistics {name} that do not fit the network", "Check the module passed.")
        found[cut] = known
    return found


def _apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same tensors, those that share memory with an earlier one copied: a file holds each by itself."""
    seen: set[int] = set()
    apart = {}
    for name, tensor in tensors.items():
        place = tensor.untyped_storage().data_ptr()
        apart[name] = tensor.clone() if place in seen and tensor.numel() else tensor
        seen.add(place)
    return apart


def _tensor_leaves(example: object) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(example) if isinstance(leaf, Tensor)]


def _with_places(example: tuple[tuple[Any, ...], dict[str, Any]]) -> dict[str, Any]:
    """An example as JSON, each tensor replaced by the number under which it is stored."""
    numbers = iter(range(len(_tensor_leaves(example))))
    place = lambda _: {_PLACE: next(numbers)}  # noqa: E731
    args, kwargs = pytree.tree_map_only(Tensor, place, example)
    return {"args": list(args), "kwargs": kwargs}


def weights_digest(tensors: Mapping[str, Tensor]) -> str:
    """A checksum of a network's weights alone, whatever cuts it has statistics for."""
    own = sorted((name, t) for name, t in tensors.items() if name.startswith("network."))
    return digest([[name, hashlib.sha256(bytes_of(t)).hexdigest()] for name, t in own])


def _restored(
    path: Path, record: Mapping[str, Any], tensors: Mapping[str, Tensor], module: nn.Module | None, *, trust: bool
) -> Nested:
    """The network as it was built and nested, with other weights."""
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
    """The module, by the name of the library's or the user's function that built it."""
    if saved is None:
        raise RunError(path, "does not say how the network is built", "Pass it: load(folder, module).")
    source = Source(saved["name"], saved["options"])
    if source.is_code and not trust:
        wrong = f"is built by code of yours, {source.name}"
        advice = "Pass trust=True (--trust) to run it, or the network itself: load(folder, module)."
        raise RunError(path, wrong, advice)
    if not source.is_code:
        _check_size(path, source, sum(t.numel() for t in tensors.values()))
    return models.build(source.name, **source.options).to(_dtype_of(tensors))


def _filled(example: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The example, with the tensors in their places."""

    def is_place(leaf: Any) -> bool:  # noqa: ANN401
        return isinstance(leaf, dict) and leaf.keys() == {_PLACE}

    def filled(leaf: Any) -> Any:  # noqa: ANN401
        return tensors[f"example.{leaf[_PLACE]}"] if is_place(leaf) else leaf

    args, kwargs = pytree.tree_map(filled, (tuple(example["args"]), example["kwargs"]), is_leaf=is_place)
    return args, kwargs


def _dtype_of(tensors: Mapping[str, Tensor]) -> torch.dtype | None:
    """The precision of a saved network, if all of it has the same."""
    found = {t.dtype for name, t in tensors.items() if name.startswith("network.") and t.is_floating_point()}
    return found.pop() if len(found) == 1 else None


def _said(error: Exception) -> str:
    text = str(error) if isinstance(error, NestlingError) else repr(error)
    return " ".join(text.split())[:300]


def _check_numbers(path: Path, described: object, most: int) -> None:
    """Refuse a description with a number that no network of so many elements can have, before anything is built."""
    leaves = pytree.tree_leaves(described)
    if len(leaves) > _MOST_ENTRIES:
        raise RunError(path, f"describes a network in {len(leaves)} entries", "Train again.")
    for leaf in leaves:
        if isinstance(leaf, int | float) and abs(leaf) > max(most, 2**16):
            raise RunError(path, f"names a size of {leaf:.3g}, with {most} numbers in all", "Train again.")


def _check_size(path: Path, source: Source, most: int) -> None:
    """Refuse a network of more numbers than the file has, before memory is taken for it."""
    with torch.device("meta"):
        size = sum(t.numel() for t in models.build(source.name, **source.options).state_dict().values())
    if size > most:
        raise RunError(path, f"describes a network of {size} numbers and holds {most}", "Train again.")


def _check_groups(path: Path, nested: Nested, saved: Any) -> None:  # noqa: ANN401
    """Refuse a network whose groups are others; the words that say why one is frozen may change with the code."""
    if _compared(structure_of(nested)[0]["groups"]) != _compared(saved):
        advice = "Pass the module that was trained; one of another version of its code has other groups."
        raise RunError(path, "has other groups than the network", advice)


def _compared(groups: Any) -> list[dict[str, Any]]:  # noqa: ANN401
    """What the first format has of each group, but for the words."""
    kept = [{key: own for key, own in group.items() if key not in ("frozen_because", "inner")} for group in groups]
    return [own | {"slices": [(piece["tensor"], piece["axis"]) for piece in own["slices"]]} for own in kept]
