"""The config of a network of transformers at a cut: sizes that make a network of the cut's shapes, found by trial."""

import math
from collections.abc import Iterator, Mapping
from copy import deepcopy
from itertools import islice, product
from typing import Any

import torch
from torch import nn

from nestling.errors import ArgumentError
from nestling.reading import Cut, Groups

Shapes = Mapping[str, tuple[int, ...]]
Sizes = dict[str, int]
MOST_TRIALS = 64
"""How many combinations of sizes are tried; a config with as many entries of one value is none of a transformer's."""
_HEAD, _HEAD_DIM = "head", "head_dim"


def smaller_config(module: nn.Module, groups: Groups, cut: Cut, shapes: Shapes) -> Any:  # noqa: ANN401
    """A config with which the class of ``module`` has tensors of the given shapes.

    A config has one number for all layers, so groups of one kind and size must keep equally many units. Which entries
    have the sizes differs between architectures: those with the value that is cut are tried, on networks without
    memory, and the shapes decide.

    Raises:
        ArgumentError: If groups of one size keep different numbers of units, or no entries give these shapes.
    """
    wanted = _sizes(groups, cut)
    fewest: dict[str, tuple[int, ...]] | None = None
    for changes in islice(_changes(module.config, wanted), MOST_TRIALS):
        tried = _tried(module, changes)
        if tried is None:
            continue
        config, made = tried
        other = {name: shape for name, shape in shapes.items() if made.get(name) != shape}
        if not other and made.keys() == shapes.keys():
            return config
        fewest = other if fewest is None or len(other) < len(fewest) else fewest
    raise _inexpressible(module, fewest)


def _sizes(groups: Groups, cut: Cut) -> dict[tuple[bool, int], int]:
    """How many units are kept, by whether they are heads and how many there are, of the groups that are cut."""
    kept: dict[tuple[bool, int], tuple[int, str]] = {}
    widths = cut.as_dict()
    for group in groups.free:
        if not group.slices:
            continue
        units = group.units(widths[group.name])
        key = (group.kind == _HEAD, group.size)
        first, name = kept.setdefault(key, (units, group.name))
        if units != first:
            given = f"{first} of {group.size} units of {name}, and {units} of {group.name}"
            needed = "the same width for all groups of one size, since a config has one number for all layers"
            raise ArgumentError("cut", given, needed, "Pass a fraction, or code=True.")
    return {key: units for key, (units, _) in kept.items() if units != key[1]}


def _changes(config: Any, wanted: Mapping[tuple[bool, int], int]) -> Iterator[Sizes]:  # noqa: ANN401
    """What may be set in a config for these sizes: combinations of the entries that have them, or none of a default."""
    entries = {key: value for key, value in config.to_dict().items() if not isinstance(value, bool)}
    fixed: Sizes = {}
    choices = []
    for (is_heads, size), units in wanted.items():
        if is_heads:
            fixed |= _head_counts(entries, size, units)
            fixed.setdefault(_HEAD_DIM, getattr(config, _HEAD_DIM, None) or _head_dim(config))
            continue
        keys = [key for key, value in entries.items() if type(value) is int and value == size and _HEAD not in key]
        keys += [key for key, value in entries.items() if value is None]
        choices.append([{key: units} for key in keys])
    for combination in product(*choices):
        yield fixed | {key: value for chosen in combination for key, value in chosen.items()}


def _head_counts(entries: Mapping[str, Any], size: int, units: int) -> Sizes:
    """The entries that count heads, of queries as well as of keys and values, at the share that is kept."""
    counts = {k: v for k, v in entries.items() if type(v) is int and _HEAD in k and "dim" not in k and not v % size}
    return {key: value * units // size for key, value in counts.items()}


def _head_dim(config: Any) -> int:  # noqa: ANN401
    """The size of a head where the config does not say it."""
    hidden, heads = getattr(config, "hidden_size", 0), getattr(config, "num_attention_heads", 1)
    return int(hidden // heads)


def _tried(module: nn.Module, changes: Sizes) -> tuple[Any, dict[str, tuple[int, ...]]] | None:
    """A config with these changes and the shapes of its network's tensors, or None if there is no such network."""
    config: Any = deepcopy(module.config)
    try:
        for key, value in changes.items():
            setattr(config, key, value)
        with torch.device("meta"):
            made = type(module)(config)
    except Exception:  # of another's code, for sizes that it refuses
        return None
    return config, {name: tuple(tensor.shape) for name, tensor in made.state_dict().items()}


def _inexpressible(module: nn.Module, other: Shapes | None) -> ArgumentError:
    """The error that names the tensors that no config gives, the largest first."""
    shapes = other or {}
    names = sorted(shapes, key=lambda name: -math.prod(shapes[name]))[:3]
    given = f"a cut for which {type(module.config).__name__} has no sizes"
    given += f" (it can't give {', '.join(f'{name} {shapes[name]}' for name in names)})" if names else ""
    needed = "one that the config can say, which has one number for all layers, and often none for heads alone"
    return ArgumentError("cut", given, needed, "Leave these groups whole (nest(exclude=...)), or pass code=True.")
