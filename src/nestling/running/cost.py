"""``cost``: the parameters, multiply-adds and bytes of a cut and, on request, its measured milliseconds."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from nestling.arguments import count
from nestling.reading import Cut, make_cut
from nestling.running.batches import Call
from nestling.running.nested import Nested
from nestling.running.packed_bits import num_bytes
from nestling.torch_parts import pytree

MEASURED_SECONDS = 0.5
MEASURED_RUNS = (11, 1000)
"""A latency is the median over the runs that fit in this time; their number lies within these bounds."""


@dataclass(frozen=True)
class Cost:
    """What a network costs.

    Attributes:
        params: Parameters.
        macs: Multiply-adds per example.
        bytes: Bytes of parameters and buffers, quantised weights packed.
        latency_ms: Median milliseconds of a forward pass on this device; None if it was not measured.

    Examples:
        >>> half, whole = nl.cost(nested, 0.5), nl.cost(nested, 1.0)
        >>> half.macs < whole.macs, whole.params, whole.latency_ms is None
        (True, 2778, True)
    """

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

    Args:
        nested: The network.
        cut: A fraction of every group, widths by group name, or a ``Cut``.
        latency: Measure the median time of a forward pass on this device.
        batch_size: How many copies of the example are run for that.
        threads: With so many CPU threads; None for torch's setting.

    Returns:
        Parameters, multiply-adds, bytes, and milliseconds if they were asked for.

    Raises:
        ArgumentError: If the cut or a number can't be used.

    Examples:
        >>> nl.cost(nested, {"layers.1": 4}).params < nl.cost(nested, 1.0).params
        True
    """
    wanted = make_cut(nested.groups, cut)
    network = nested.extracted(wanted)
    args, kwargs = nested.example
    measured = (
        latencies_ms([network], batch_of(args, kwargs, count("batch_size", batch_size, "example")), threads)[0]
        if latency
        else None
    )
    whole = cost_of(network, nested.example)
    return replace(whole, bytes=whole.bytes - bytes_saved(nested, wanted), latency_ms=measured)


def cost_of(network: nn.Module, example: Call) -> Cost:
    """The cost of a plain network as it is in memory, without its latency."""
    args, kwargs = batch_of(*example, 1)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        network(*args, **kwargs)
    tensors = [*network.parameters(), *network.buffers()]
    return Cost(
        params=sum(parameter.numel() for parameter in network.parameters()),
        macs=counter.get_total_flops() // 2,
        bytes=sum(tensor.numel() * tensor.element_size() for tensor in tensors),
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


def batch_of(args: tuple[Any, ...], kwargs: dict[str, Any], size: int) -> Call:
    """A batch of copies of the first example."""

    def repeated(tensor: Tensor) -> Tensor:
        return tensor[:1].expand(size, *tensor.shape[1:]).contiguous() if tensor.ndim else tensor

    batch: Call = pytree.tree_map_only(Tensor, repeated, (args, kwargs))
    return batch


@torch.no_grad()
def latencies_ms(modules: Sequence[Callable[..., Any]], call: Call, threads: int | None = None) -> list[float]:
    """The median milliseconds of a call of each module, run in turns so that a busy machine slows all of them alike."""
    args, kwargs = call
    before = torch.get_num_threads()
    torch.set_num_threads(before if threads is None else count("threads", threads, "thread"))
    least, most = MEASURED_RUNS
    times: list[list[float]] = []
    try:
        for _ in range(3):
            for module in modules:
                module(*args, **kwargs)
        start = time.perf_counter()
        while len(times) < least or (time.perf_counter() < start + MEASURED_SECONDS and len(times) < most):
            times.append([_seconds(module, args, kwargs) for module in modules])
    finally:
        torch.set_num_threads(before)
    return [1e3 * statistics.median(seconds) for seconds in zip(*times, strict=True)]


def _seconds(module: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> float:
    _synchronise()
    start = time.perf_counter()
    module(*args, **kwargs)
    _synchronise()
    return time.perf_counter() - start


def _synchronise() -> None:
    """Wait until an accelerator has finished."""
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()
