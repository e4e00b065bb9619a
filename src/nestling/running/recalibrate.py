"""``recalibrate``: collects the statistics of batch norms at a cut, which the nested network remembers for it."""

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from nestling.errors import ArgumentError
from nestling.processes import ALONE, current
from nestling.reading import Cut, make_cut
from nestling.running.batches import Read, as_call, inputs_of, read_by
from nestling.running.modes import in_mode
from nestling.running.nested import Nested
from nestling.running.norms import norms_with_statistics
from nestling.torch_parts import BatchNorm, pytree

_STATISTICS = ("running_mean", "running_var")
_COUNT = " batches"
"""Suffix of the name under which the batches of a norm are counted."""


def recalibrate(
    nested: Nested,
    loader: Iterable[Any],
    cut: float | Mapping[str, int] | Cut,
    *,
    num_batches: int | None = None,
    spread: bool = False,
    batch: Read | None = None,
) -> None:
    """Collect the statistics of batch norms at a cut, which the network then uses there.

    The batch statistics of every norm are averaged over the loader, with the weights at their means. From then on the
    network uses them at that cut, in eval mode and when it is extracted. The statistics of other cuts do not change.

    Args:
        nested: The network.
        loader: Batches of training data: inputs, pairs whose first element is the input, or dictionaries.
        cut: A fraction of every group, widths by group name, or a ``Cut``.
        num_batches: How many batches are used; None for all.
        spread: Share the batches among the processes of torch.distributed, each of which must make the call.
        batch: A function that reads batches of another form.

    Raises:
        ArgumentError: If the loader has no batch, or the cut can't be used.

    Examples:
        >>> colours = torch.randn(8, 3, 32, 32)
        >>> convolutional = nl.nest(nl.models.build("vgg11", width=0.125), colours[:2], num_blocks=4)
        >>> nl.recalibrate(convolutional, [colours], 0.5)
        >>> len(convolutional.statistics)
        1
    """
    wanted = make_cut(nested.groups, cut)
    norms = norms_with_statistics(nested.module)
    processes = current() if spread else ALONE
    totals: dict[str, Tensor] = {}
    count = 0
    with torch.no_grad(), in_mode(nested, training=False):
        for number, each in enumerate(islice(read_by(loader, batch), num_batches)):
            count += 1
            if number % processes.count == processes.rank:
                _add(totals, _batch_statistics(nested, wanted, norms, inputs_of(each)))
    if not count:
        raise ArgumentError("loader", "no batch", "at least one batch", "Pass a loader that still has batches.")
    everywhere: dict[str, Tensor] = {}
    for process_totals in processes.gather_tensors(totals):
        _add(everywhere, process_totals)
    tensors = nested.tensors()
    batches = {name.removesuffix(_COUNT): total for name, total in everywhere.items() if name.endswith(_COUNT)}
    nested.statistics[wanted] = {
        name: (total / batches[name.rpartition(".")[0]]).to(tensors[name].device)
        for name, total in everywhere.items()
        if not name.endswith(_COUNT)
    }


def _add(totals: dict[str, Tensor], more: Mapping[str, Tensor]) -> None:
    for name, value in more.items():
        totals[name] = totals[name] + value if name in totals else value


def _batch_statistics(nested: Nested, cut: Cut, norms: Mapping[str, BatchNorm], inputs: Any) -> dict[str, Tensor]:  # noqa: ANN401
    """Mean and variance of one batch in every norm that runs, and the count 1.

    They are read from running statistics that start at zero. A norm that runs several times has a weighted mean.
    """
    tensors = nested.tensors()
    smaller = nested.tensors_at(cut)
    names = {
        path: {key: f"{path}.{key}" if path else key for key in (*_STATISTICS, "num_batches_tracked")} for path in norms
    }
    fresh = {
        name: torch.zeros_like(smaller.get(name, tensors[name])) for keys in names.values() for name in keys.values()
    }
    device = next((tensor.device for tensor in fresh.values()), None)
    args, kwargs = as_call(pytree.tree_map_only(Tensor, lambda tensor: tensor.to(device), inputs))
    nested.call(nested.bound(cut, smaller | fresh, norms), args, kwargs)
    statistics: dict[str, Tensor] = {}
    for path, norm in norms.items():
        times = int(fresh[names[path]["num_batches_tracked"]])
        momentum = 1.0 if norm.momentum is None else float(norm.momentum)
        weight = 1 - (1 - momentum) ** times
        if weight:
            statistics |= {names[path][key]: fresh[names[path][key]] / weight for key in _STATISTICS}
            statistics[path + _COUNT] = torch.ones((), device=device)
    return statistics
