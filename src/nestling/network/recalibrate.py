"""``recalibrate``: collects the statistics of batch norms at a cut, which the nested network remembers for it."""

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils import _pytree as pytree

from nestling.errors import ArgumentError
from nestling.network.cut import Cut, make_cut
from nestling.network.modes import in_mode
from nestling.network.nested import Nested, as_call
from nestling.processes import ALONE, current


def recalibrate(
    nested: Nested,
    loader: Iterable[Any],
    cut: float | Mapping[str, int] | Cut,
    *,
    num_batches: int | None = None,
    spread: bool = False,
) -> None:
    """Average the batch statistics of every batch norm over the loader, at a cut and with the weights at their means.

    ``loader`` gives inputs, or pairs whose first element they are; all of it is used unless ``num_batches`` says how
    much. From then on the network uses these statistics at that cut, in eval mode and when it is extracted; those of
    other cuts are left as they are. ``spread`` shares the batches among the processes of torch.distributed, each of
    which must make the call.
    """
    wanted = make_cut(nested.groups, cut)
    norms = {path: part for path, part in nested.module.named_modules() if _tracks(part)}
    processes = current() if spread else ALONE
    totals: dict[str, Tensor] = {}
    count = 0
    with torch.no_grad(), in_mode(nested, training=False):
        for number, batch in enumerate(islice(loader, num_batches)):
            count += 1
            if number % processes.count == processes.rank:
                _add(totals, _batch_statistics(nested, wanted, norms, batch))
    if not count:
        raise ArgumentError("loader", "no batch", "at least one batch", "Pass a loader that is not used up.")
    everywhere: dict[str, Tensor] = {}
    for found in processes.gather_tensors(totals):
        _add(everywhere, found)
    own = nested.tensors()
    nested.statistics[wanted] = {name: total.to(own[name].device) / count for name, total in everywhere.items()}


def _add(totals: dict[str, Tensor], more: Mapping[str, Tensor]) -> None:
    for name, value in more.items():
        totals[name] = totals[name] + value if name in totals else value


def _tracks(part: nn.Module) -> bool:
    return isinstance(part, _BatchNorm) and part.running_mean is not None


def _batch_statistics(nested: Nested, cut: Cut, norms: Mapping[str, nn.Module], batch: Any) -> dict[str, Tensor]:  # noqa: ANN401
    """Mean and variance of one batch in every norm, read off running buffers that started at zero."""
    tensors = nested.tensors()
    smaller = nested.tensors_at(cut)
    fresh: dict[str, Tensor] = {}
    weight: dict[str, float] = {}
    for path, norm in norms.items():
        for key in ("running_mean", "running_var", "num_batches_tracked"):
            name = f"{path}.{key}" if path else key
            fresh[name] = torch.zeros_like(smaller.get(name, tensors[name]))
            weight[name] = 1.0 if norm.momentum is None else float(norm.momentum)  # type: ignore[arg-type]
    inputs = batch[0] if isinstance(batch, tuple | list) else batch
    device = next((tensor.device for tensor in fresh.values()), None)
    args, kwargs = as_call(pytree.tree_map_only(Tensor, lambda tensor: tensor.to(device), inputs))
    nested.bound(cut, smaller | fresh, norms)(*args, **kwargs)
    return {name: value / weight[name] for name, value in fresh.items() if value.is_floating_point()}
