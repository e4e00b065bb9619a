"""The cost of a cut, computed fast enough for thousands of cuts."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch.utils.flop_counter import FlopCounterMode

from nestling.errors import ArgumentError, DtypeError, RangeError
from nestling.reading import Cut, full_cut, smallest_cut
from nestling.running import Cost, Nested, bytes_saved, cost
from nestling.running.layers import mean_name, variational_layers
from nestling.torch_parts import pytree

UserCost = Callable[[Nested, Cut], float]


@dataclass(frozen=True)
class CostType:
    """A cost that a search can use: ``estimate`` makes from a network a fast function that gives the cost of any cut.

    ``field`` is the field of ``Cost`` with the exact value for an extracted network; None if the estimate is exact.
    """

    estimate: Callable[[Nested], Callable[[Cut], float]]
    field: str | None = None


class Costs:
    """The cost that a search uses, for any cut of a network, by its name in ``COSTS`` or by a function."""

    def __init__(self, nested: Nested, wanted: str | UserCost) -> None:
        self.nested = nested
        if not callable(wanted) and wanted not in COSTS:
            needed = f"one of {', '.join(COSTS)}, or a function of (nested, cut)"
            raise ArgumentError("cost", repr(wanted), needed, "Check its spelling.")
        self.name = "own" if callable(wanted) else wanted
        self._type = CostType(lambda nested: partial(wanted, nested)) if callable(wanted) else COSTS[wanted]
        self._estimate = self._type.estimate(nested)
        self._computed: dict[Cut, float] = {}

    def __call__(self, cut: Cut) -> float:
        """The cost of a cut; a latency is estimated from the slope of each group."""
        if cut not in self._computed:
            self._computed[cut] = checked_cost(self._estimate(cut), cut)
        return self._computed[cut]

    def exact(self, cut: Cut) -> tuple[Cost, float]:
        """Every cost of the network that ``extract`` gives, and the one that the search uses; latency is measured."""
        field = self._type.field
        exact_cost = cost(self.nested, cut, latency=field == "latency_ms")
        return exact_cost, self(cut) if field is None else float(getattr(exact_cost, field))


def checked_cost(value: object, cut: Cut) -> float:
    """The value that a user's cost function returned, checked to be finite and at least 0."""
    given = f"{value!r} at the widths {cut.as_dict()}"
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise DtypeError("cost", given, "a number", "Have the function return a float.")
    if not math.isfinite(value) or value < 0:
        raise RangeError("cost", given, "finite and at least 0", "Check the function that was passed.")
    return float(value)


class Sizes:
    """Parameters, multiply-adds and bytes from the shapes of a cut, checked once against an extracted network."""

    def __init__(self, nested: Nested) -> None:
        self.nested = nested
        full = full_cut(nested.groups)
        plain = nested.extracted(full)
        self._params = _sources(nested, [name for name, _ in plain.named_parameters()])
        self._buffer_sources = _sources(nested, [name for name, _ in plain.named_buffers()])
        self._bytes = {name: t.element_size() for name, t in (*plain.named_parameters(), *plain.named_buffers())}
        self._macs = _macs_by_weight(nested, plain, self._params)
        probe = Cut(tuple((g.name, max(g.num_always, g.num_blocks // 2)) for g in nested.groups.free))
        exact = cost(nested, probe)
        self._is_right = self._fast(probe) == (exact.params, exact.macs, exact.bytes)

    def params(self, cut: Cut) -> int:
        """Parameters of the plain network."""
        return self._all(cut)[0]

    def macs(self, cut: Cut) -> int:
        """Multiply-adds for one example."""
        return self._all(cut)[1]

    def bytes(self, cut: Cut) -> int:
        """Bytes of parameters and buffers."""
        return self._all(cut)[2]

    def _all(self, cut: Cut) -> tuple[int, int, int]:
        if self._is_right:
            return self._fast(cut)
        exact = cost(self.nested, cut)
        return exact.params, exact.macs, exact.bytes

    def _fast(self, cut: Cut) -> tuple[int, int, int]:
        tensors, smaller, dropped = self.nested.tensors(), self.nested.sliced_at(cut), self.nested.dropped(cut)

        def size(name: str) -> int:
            return 0 if name in dropped else smaller.get(name, tensors[name]).numel()

        params = {name: size(source) for name, source in self._params.items()}
        num_elements = params | {name: size(source) for name, source in self._buffer_sources.items()}
        macs = sum(round(rate * params[name]) for name, rate in self._macs.items())
        in_memory = sum(self._bytes[name] * number for name, number in num_elements.items())
        return sum(params.values()), macs, in_memory - bytes_saved(self.nested, cut)


def _sources(nested: Nested, names: list[str]) -> dict[str, str]:
    """For each tensor of the plain network, the tensor of the nested network that has its shape."""
    tensors = nested.tensors()
    layers = variational_layers(nested.module)
    sources = {}
    for name in names:
        path, _, key = name.rpartition(".")
        source = mean_name(path) if path in layers and key == "weight" else name
        if source in tensors:
            sources[name] = source
    return sources


def _macs_by_weight(nested: Nested, plain: torch.nn.Module, parameters: Mapping[str, str]) -> dict[str, float]:
    """The number of multiply-adds per element of a weight, for one example."""
    args, kwargs = nested.example
    one_example = pytree.tree_map_only(torch.Tensor, lambda t: t[:1] if t.ndim else t, (args, kwargs))
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        plain(*one_example[0], **one_example[1])
    by_layer = {name.partition(".")[2]: sum(counts.values()) // 2 for name, counts in counter.get_flop_counts().items()}
    rates = {}
    for name in parameters:
        path, _, key = name.rpartition(".")
        if key == "weight" and by_layer.get(path):
            rates[name] = by_layer[path] / plain.get_parameter(name).numel()
    return rates


class _Slopes:
    """Milliseconds: those of the whole network, less the time each group saves in proportion to its removed blocks."""

    def __init__(self, nested: Nested) -> None:
        self._groups = nested.groups.free
        whole = full_cut(nested.groups)
        smallest = smallest_cut(nested.groups)
        self._full = _milliseconds(nested, whole)
        self._least = min(self._full, _milliseconds(nested, smallest))
        saved = {}
        for group in self._groups:
            alone = Cut(tuple((n, group.num_always if n == group.name else width) for n, width in whole.widths))
            saved[group.name] = max(0.0, self._full - _milliseconds(nested, alone))
        total = sum(saved.values())
        share = (self._full - self._least) / total if total else 0.0
        self._saved = {name: milliseconds * share for name, milliseconds in saved.items()}

    def __call__(self, cut: Cut) -> float:
        """The estimate for a cut, which is exact at the full width and at the smallest."""
        time = self._full
        for group in self._groups:
            spare = group.num_blocks - group.num_always
            time -= self._saved[group.name] * (group.num_blocks - cut[group.name]) / spare if spare else 0.0
        return max(time, self._least)


COSTS: dict[str, CostType] = {
    "params": CostType(lambda nested: Sizes(nested).params, "params"),
    "macs": CostType(lambda nested: Sizes(nested).macs, "macs"),
    "bytes": CostType(lambda nested: Sizes(nested).bytes, "bytes"),
    "latency": CostType(_Slopes, "latency_ms"),
}
"""The costs that a search can use, by name."""


def _milliseconds(nested: Nested, cut: Cut) -> float:
    latency = cost(nested, cut, latency=True).latency_ms
    assert latency is not None
    return latency
