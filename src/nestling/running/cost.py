"""``cost``: the parameters, multiply-adds and bytes of a cut and, on request, its measured milliseconds."""

import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from nestling.arguments import count
from nestling.reading import Cut, make_cut
from nestling.running.nested import Nested
from nestling.running.packed_bits import num_bytes
from nestling.torch_parts import pytree

MEASURED_SECONDS = 0.5
MEASURED_RUNS = (11, 1000)
"""A latency is the median over the runs that fit in this time; their number lies within these bounds."""


@dataclass(frozen=True)
class Cost:
    """``macs``: multiply-adds per example; ``bytes``: those of parameters and buffers, quantised weights packed."""

    params: int
    macs: int
    bytes: int
    latency_ms: float | None = None


def cost(
    nested: Nested,
    cut: float | Mapping[str, int] | Cut,
    *,
    latency: bool = False,
    batch_size: int = 1,
    threads: int | None = None,
) -> Cost:
    """The cost of the plain network that ``extract`` would give at a cut.

    ``latency`` measures the median time of a forward pass on this device, over ``batch_size`` copies of the example
    and with this many CPU ``threads`` (None: torch's setting).
    """
    wanted = make_cut(nested.groups, cut)
    network = nested.extracted(wanted)
    args, kwargs = nested.example
    single = _batch(args, kwargs, 1)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        network(*single[0], **single[1])
    tensors = [*network.parameters(), *network.buffers()]
    measured = (
        _latency_ms(network, _batch(args, kwargs, count("batch_size", batch_size, "example")), threads)
        if latency
        else None
    )
    return Cost(
        params=sum(parameter.numel() for parameter in network.parameters()),
        macs=counter.get_total_flops() // 2,
        bytes=sum(tensor.numel() * tensor.element_size() for tensor in tensors) - bytes_saved(nested, wanted),
        latency_ms=measured,
    )


def bytes_saved(nested: Nested, cut: Cut) -> int:
    """How many bytes the quantised weights of a cut take less on disk than in memory."""
    tensors = nested.tensors() | nested.sliced_at(cut)
    saved = 0
    for name, levels in nested.levels_at(cut).items():
        tensor, scale = tensors[name], levels.log_tau
        packed_size = num_bytes(tensor.numel(), levels.num_pairs, nested=False) + scale.numel() * scale.element_size()
        saved += tensor.numel() * tensor.element_size() - packed_size
    return saved


def _batch(args: tuple[Any, ...], kwargs: dict[str, Any], size: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A batch of copies of the first example."""

    def repeated(tensor: Tensor) -> Tensor:
        return tensor[:1].expand(size, *tensor.shape[1:]).contiguous() if tensor.ndim else tensor

    batch: tuple[tuple[Any, ...], dict[str, Any]] = pytree.tree_map_only(Tensor, repeated, (args, kwargs))
    return batch


@torch.no_grad()
def _latency_ms(module: nn.Module, call: tuple[tuple[Any, ...], dict[str, Any]], threads: int | None) -> float:
    args, kwargs = call
    before = torch.get_num_threads()
    torch.set_num_threads(before if threads is None else count("threads", threads, "thread"))
    try:
        times: list[float] = []
        for _ in range(3):
            module(*args, **kwargs)
        while len(times) < MEASURED_RUNS[0] or (sum(times) < MEASURED_SECONDS and len(times) < MEASURED_RUNS[1]):
            times.append(_seconds(module, args, kwargs))
    finally:
        torch.set_num_threads(before)
    return 1e3 * statistics.median(times)


def _seconds(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> float:
    _synchronise()
    start = time.perf_counter()
    module(*args, **kwargs)
    _synchronise()
    return time.perf_counter() - start


def _synchronise() -> None:
    """Wait until an accelerator has finished."""
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()
