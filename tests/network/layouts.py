"""Cuts found by trying: which rows a unit owns in each tensor is searched for, and the oracle says which try is right.

This needs no rules about operations. Building a case at two sizes tells how many rows a unit owns along each axis of
each tensor; how they may lie there is a short list (side by side, spread out, and behind or before other sizes).
"""

from collections.abc import Iterator
from functools import cache
from itertools import permutations, product

import torch
from torch import Tensor
from zoo_case import Case

Axis = tuple[str, int]
MOST_TRIES = 5000


@cache
def rows_per_unit(case: Case, size: str) -> dict[Axis, int]:
    """How many entries the axes of all tensors lose when `size` shrinks by one unit; axes that lose none are absent."""
    full = case.full().state_dict()
    less = case.smaller({size: case.sizes[size] - 1}).state_dict()
    assert full.keys() == less.keys(), f"{case.name}: a smaller {size} changes the names of the tensors"
    losses = {(name, axis): n - less[name].shape[axis] for name in full for axis, n in enumerate(full[name].shape)}
    return {axis: loss for axis, loss in losses.items() if loss}


def tries(case: Case, kept: dict[str, int]) -> Iterator[dict[Axis, Tensor]]:
    """All lawful-looking ways to cut the network to the sizes `kept`: places that stay, along each axis that shrinks.

    Tensors of one module that shrink alike are cut alike.
    """
    owners: dict[Axis, dict[str, int]] = {}
    for size in case.anchors:
        if size in case.frozen:
            continue
        for axis, rows in rows_per_unit(case, size).items():
            owners.setdefault(axis, {})[size] = rows
    shapes = {name: tensor.shape for name, tensor in case.full().state_dict().items()}
    alike: dict[tuple, list[Axis]] = {}
    for (name, axis), sizes in owners.items():
        if sizes.keys() & kept.keys():
            alike.setdefault((name.rpartition(".")[0], tuple(sizes.items()), shapes[name][axis]), []).append(
                (name, axis)
            )
    choices = [list(_layouts(case, dict(sizes), length, kept)) for _, sizes, length in alike]
    for number, chosen in enumerate(product(*choices)):
        assert number < MOST_TRIES, f"{case.name}: too many layouts to try"
        yield {axis: places for axes, places in zip(alike.values(), chosen, strict=True) for axis in axes}


def taken(state: dict[str, Tensor], places: dict[Axis, Tensor]) -> dict[str, Tensor]:
    """The state with only the given places left along the given axes."""
    return {name: _taken(name, tensor, places) for name, tensor in state.items()}


def _taken(name: str, tensor: Tensor, places: dict[Axis, Tensor]) -> Tensor:
    for axis in range(tensor.ndim):
        if (name, axis) in places:
            tensor = tensor.index_select(axis, places[name, axis])
    return tensor.clone()


def _layouts(case: Case, sizes: dict[str, int], length: int, kept: dict[str, int]) -> Iterator[Tensor]:
    """The places that stay on one axis, for each order of its segments and each way to lay out a segment."""
    constant = length - sum(case.sizes[size] * rows for size, rows in sizes.items())
    mixed = len(sizes) > 1 or constant > 0
    seen = set()
    for apart in product(*[(False, True) if mixed and rows > 1 else (False,) for rows in sizes.values()]):
        segments = [("", constant)] * (constant > 0)
        for (size, rows), split in zip(sizes.items(), apart, strict=True):
            segments += [(size, 1)] * rows if split else [(size, rows)]
        for order in permutations(segments):
            for spreads in product(*[_spreads(rows) if size else (1,) for size, rows in order]):
                places = tuple(_places(case, order, spreads, kept))
                if places not in seen:
                    seen.add(places)
                    yield torch.tensor(places)


def _spreads(rows: int) -> tuple[int, ...]:
    """In how many runs the rows of one unit may lie."""
    return tuple(runs for runs in range(1, rows + 1) if rows % runs == 0)


def _places(case: Case, segments: tuple, spreads: tuple[int, ...], kept: dict[str, int]) -> Iterator[int]:
    """The places that stay, ascending; a segment of n units with r rows each lies as (runs, n, r / runs)."""
    offset = 0
    for (size, rows), runs in zip(segments, spreads, strict=True):
        units = case.sizes[size] if size else 1
        stay = kept.get(size, units)
        for run, unit, row in product(range(runs), range(stay), range(rows // runs)):
            yield offset + (run * units + unit) * (rows // runs) + row
        offset += units * rows
