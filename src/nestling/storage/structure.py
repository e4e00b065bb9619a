"""All that ``nest`` decided about a network, as JSON and tensors, and the network made from it without tracing."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from nestling.distributions.weights import POSTERIORS
from nestling.errors import ArgumentError
from nestling.network import order_maker, orders_of
from nestling.reading import KINDS, Bits, Group, Groups, Ids, Slice, smallest_cut
from nestling.running import Call, GraphRunner, ModuleRunner, Nested, Pick, Runner, in_mode
from nestling.running.layers import VariationalLayer, check_sampling, convert_layers, converted_layers, exact_type
from nestling.storage.plan_json import (
    UnwritableError,
    plan_from_json,
    plan_to_json,
    sizes_from_json,
    sizes_to_json,
)
from nestling.storage.ranges import from_ranges, to_ranges, whole

LISTS, CONSTANTS = "lists.", "constants."
"""Prefixes of the names of a structure's tensors: irregular lists of whole numbers, and constants of its graph."""
_ADVICE = "Restore it from a copy, or train again."


def structure_of(nested: Nested) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The groups of a network, and how it was made from its module: None if JSON can't represent its graph."""
    lists, constants = _Lists({}), list[Tensor]()
    made: dict[str, Any] = {
        "order": (nested.made_with or {}).get("order"),
        "rescale": nested.rescale,
        "bits": asdict(nested.quantised.bits),
        "private": [cut.as_dict() for cut in nested.private.cuts],
        "layers": {path: list(settings) for path, settings in converted_layers(nested.module).items()},
        "output": None if callable(nested.output) else nested.output,
        "sizes": sizes_to_json(nested.attribute_sizes, lists.write),
        "plan": None,
    }
    groups = [_group_to_json(group, lists) for group in nested.groups]
    try:
        if nested.plan is not None:
            made["plan"], constants = plan_to_json(nested.plan, lists.write)
    except UnwritableError:
        return {"groups": groups, "made": None}, lists.tensors
    tensors = {f"{CONSTANTS}{number}": tensor for number, tensor in enumerate(constants)}
    return {"groups": groups, "made": made}, lists.tensors | tensors


def restored(
    module: nn.Module,
    record: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    example: Call,
    *,
    trust: bool,
) -> Nested:
    """The nested network that ``structure_of`` described; it changes the module in place and uses its weights.

    A record that does not fit the module is an error. The network runs once, on the example at the smallest cut.
    """
    made, lists = record["made"], _Lists(dict(tensors))
    plain = ModuleRunner(module)
    names, state = plain.holders.canonical, dict(module.state_dict(keep_vars=True))
    output = made.get("output")
    if output is not None:
        if not isinstance(output, str | int):
            raise ArgumentError("output", repr(output)[:40], "a key or an index", _ADVICE)
        module.register_forward_hook(Pick(output))
    _convert(module, made["layers"])
    plain.refresh()
    axes = _Axes(plain.tensors())
    groups = Groups([_group_from_json(entry, axes, lists) for entry in record["groups"]])
    if len({group.name for group in groups}) < len(groups):
        raise ArgumentError("groups", "two with the same name", "groups with different names", _ADVICE)
    runner: Runner = ModuleRunner(module, sizes_from_json(made.get("sizes", {}), module, groups, lists.read), groups)
    if made["plan"] is not None:
        constants = [tensors[f"{CONSTANTS}{n}"] for n in range(sum(name.startswith(CONSTANTS) for name in tensors))]
        plan = plan_from_json(made["plan"], constants, names, groups, lists.read, trust=trust)
        runner = GraphRunner(module, plan, groups, state)
    branches = {} if runner.plan is None else runner.plan.branches
    if not branches.keys() >= {name for group in groups for name in group.drops}:
        raise ArgumentError("groups", "one that drops something other than a layer", "layers of the graph", _ADVICE)
    orders = orders_of(groups, order_maker(made["order"]), plain.tensors().values())
    if not isinstance(made["rescale"], bool):
        raise ArgumentError("rescale", repr(made["rescale"])[:40], "true or false", _ADVICE)
    options: dict[str, Any] = {"rescale": made["rescale"], "bits": Bits(**made["bits"]), "private": made["private"]}
    options["output"] = output
    nested = Nested(module, groups, orders, runner, example=example, **options)
    _run_once(nested)
    return nested


def _convert(module: nn.Module, saved: Mapping[str, Any]) -> None:
    """Make layers variational, as the record says for each path."""
    submodules = dict(module.named_modules())
    for path in saved:
        layer = submodules.get(path)
        if layer is None or not (isinstance(layer, VariationalLayer) or exact_type(layer).variational):
            raise ArgumentError("layers", repr(path)[:60], "linear or convolution layers of the network", _ADVICE)
    for posterior, sampling in saved.values():
        check_sampling(sampling)
        if posterior not in POSTERIORS:
            raise ArgumentError("layers", repr(posterior)[:40], f"one of {', '.join(POSTERIORS)}", _ADVICE)
    convert_layers(module, {path: (POSTERIORS[name], sampling) for path, (name, sampling) in saved.items()})


def _run_once(nested: Nested) -> None:
    """Run the network, so that errors show before it is returned."""
    cut = smallest_cut(nested.groups)
    with torch.no_grad(), in_mode(nested, training=False):
        nested.bound(cut, nested.tensors_at(cut))(*nested.example[0], **nested.example[1])


class _Lists:
    """Lists of whole numbers: ranges if they are regular, else names of tensors."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self.tensors = tensors

    def write(self, values: Ids) -> Any:  # noqa: ANN401
        """The JSON that stands for the values in the record."""
        ranges = to_ranges(values)
        if ranges is not None:
            return ranges
        name = f"{LISTS}{len(self.tensors)}"
        self.tensors[name] = torch.from_numpy(values.ravel().astype(np.int32))
        return name

    def read(self, saved: Any, most: int) -> Ids:  # noqa: ANN401
        """The values, at most ``most`` of them."""
        if not isinstance(saved, str):
            return from_ranges(saved, most)
        ids = self.tensors[saved]
        if not saved.startswith(LISTS) or ids.dtype != torch.int32 or ids.ndim != 1 or not 0 < len(ids) <= most:
            raise ArgumentError("a list", f"{saved[:40]!r}", f"whole numbers, at most {most}", _ADVICE)
        return ids.numpy().astype(np.int64)


def _group_to_json(group: Group, lists: _Lists) -> dict[str, Any]:
    return {
        "name": group.name,
        "kind": group.kind,
        "size": group.size,
        "num_blocks": group.num_blocks,
        "num_always": group.num_always,
        "exact": group.exact,
        "inner": group.inner,
        "free": group.free,
        "frozen_because": group.frozen_because,
        "slices": [
            {"tensor": piece.tensor, "axis": piece.axis, "rows": lists.write(piece.rows.numpy()), "reads": piece.reads}
            for piece in group.slices
        ],
        "drops": list(group.drops),
        "quantises": list(group.quantises),
    }


def _group_from_json(entry: Mapping[str, Any], axes: "_Axes", lists: _Lists) -> Group:
    """A group, checked against the axes of the module."""
    fields = dict(entry)
    is_free, slices, name, size = fields.pop("free"), fields.pop("slices"), fields["name"], whole(entry["size"], 1)
    num_blocks = whole(fields["num_blocks"], 1, size)
    whole(fields["num_always"], 1, num_blocks)
    texts = (name, *fields["drops"], *fields["quantises"], fields["frozen_because"] or "")
    is_valid = fields["kind"] in KINDS and all(isinstance(fields[key], bool) for key in ("exact", "inner"))
    if (
        not is_valid
        or not all(isinstance(text, str) for text in texts)
        or is_free is not (fields["frozen_because"] is None)
    ):
        raise ArgumentError("groups", f"{str(name)[:40]!r}, with wrong or missing entries", "what a group has", _ADVICE)
    if (fields["drops"] and len(fields["drops"]) != size) or not axes.shapes.keys() >= set(fields["quantises"]):
        raise ArgumentError("groups", f"{name[:40]!r} with other layers", "layers of the network", _ADVICE)
    pieces = tuple(_slice_from_json(piece, size, axes, lists, is_free=is_free) for piece in slices)
    return Group(
        **fields | {"slices": pieces, "drops": tuple(fields["drops"]), "quantises": tuple(fields["quantises"])}
    )


def _slice_from_json(entry: Mapping[str, Any], size: int, axes: "_Axes", lists: _Lists, *, is_free: bool) -> Slice:
    name, shape = entry["tensor"], axes.shapes.get(entry["tensor"])
    if shape is None or not isinstance(entry["reads"], bool):
        raise ArgumentError("slices", f"one of {str(name)[:60]}", "tensors of the network", _ADVICE)
    axis = whole(entry["axis"], 0, len(shape) - 1)
    rows = lists.read(entry["rows"], shape[axis])
    axes.take(name, axis, len(rows), is_free=is_free)
    if len(rows) % size or rows.min() < 0 or rows.max() >= shape[axis]:
        description = f"{len(rows)} rows up to {rows.max()} for {size} units, of {name}"
        raise ArgumentError("slices", description, f"rows of an axis of {shape[axis]}", _ADVICE)
    return Slice(name, axis, torch.from_numpy(rows).reshape(size, -1), entry["reads"])


class _Axes:
    """The axes of a module's tensors; each row belongs to at most one unit that can be cut.

    A group that can't be cut lists its axes whole, also the rows of another group in them: those of a stream, say, that
    a shortcut sets between channels of zeros. The other group may not have been chosen to be cut, which makes it two.
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self.shapes = {name: tensor.shape for name, tensor in tensors.items()}
        self._rows_left = {
            (name, axis, is_free): size if is_free else 2 * size
            for name, shape in self.shapes.items()
            for axis, size in enumerate(shape)
            for is_free in (True, False)
        }

    def take(self, name: str, axis: int, count: int, *, is_free: bool) -> None:
        """Take rows of an axis for a group, which can be cut if it ``is_free``."""
        self._rows_left[name, axis, is_free] -= count
        if self._rows_left[name, axis, is_free] < 0:
            needed = "each row in one group that can be cut and two that can't, at most"
            raise ArgumentError("slices", f"the rows of {name} too often", needed, _ADVICE)
