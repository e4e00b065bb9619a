"""What a cut costs, worked out fast enough to be asked thousands of times."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch.utils.flop_counter import FlopCounterMode

from nestling.errors import ArgumentError, DtypeError, RangeError
from nestling.reading import Cut, full_cut, smallest_cut
from nestling.running import Cost, Nested, bytes_saved, cost
from nestling.running.layers import VariationalLayer, mean_name
from nestling.torch_parts import pytree

OwnCost = Callable[[Nested, Cut], float]


@dataclass(frozen=True)
class CostType:
    """What a search can go by: ``estimate`` makes, of a network, what tells the cost of any cut, fast.

    ``field`` is where the ``Cost`` of a network that was taken out has it exactly; None where the estimate is exact.
    """

    estimate: Callable[[Nested], Callable[[Cut], float]]
    field: str | None = None


class Costs:
    """The cost that a search goes by, of any cut of a network, by its name in ``COSTS`` or by a function."""

    def __init__(self, nested: Nested, wanted: str | OwnCost) -> None:
        self.nested = nested
        if not callable(wanted) and wanted not in COSTS:
            needed = f"one of {', '.join(COSTS)}, or a function of (nested, cut)"
            raise ArgumentError("cost", repr(wanted), needed, "Check its spelling.")
        self.name = "own" if callable(wanted) else wanted
        self._type = CostType(lambda nested: partial(wanted, nested)) if callable(wanted) else COSTS[wanted]
        self._estimate = self._type.estimate(nested)
        self._known: dict[Cut, float] = {}

    def __call__(self, cut: Cut) -> float:
        """The cost of a cut; a latency is estimated from the slope of each group."""
        if cut not in self._known:
            self._known[cut] = checked_cost(self._estimate(cut), cut)
        return self._known[cut]

    def exact(self, cut: Cut) -> tuple[Cost, float]:
        """Every cost of the network that ``extract`` gives, and the one the search goes by, measured if it is time."""
        field = self._type.field
        found = cost(self.nested, cut, latency=field == "latency_ms")
        return found, self(cut) if field is None else float(getattr(found, field))


def checked_cost(value: object, cut: Cut) -> float:
    """What a user's cost function gave, if it is a number that a cost can be."""
    where = f"{value!r} at the widths {cut.as_dict()}"
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise DtypeError("cost", where, "a number", "Have the function return a float.")
    if not math.isfinite(value) or value < 0:
        raise RangeError("cost", where, "finite and at least 0", "Check the function that was passed.")
    return float(value)


class Sizes:
    """Parameters, multiply-adds and bytes from the shapes that a cut leaves; checked against a network taken out."""

    def __init__(self, nested: Nested) -> None:
        self.nested = nested
        full = full_cut(nested.groups)
        plain = nested.extracted(full)
        self._params = _sources(nested, [name for name, _ in plain.named_parameters()])
        self._held = _sources(nested, [name for name, _ in plain.named_buffers()])
        self._bytes = {name: t.element_size() for name, t in (*plain.named_parameters(), *plain.named_buffers())}
        self._macs = _macs_by_weight(nested, plain, self._params)
        probe = Cut(tuple((g.name, max(g.num_always, g.num_blocks // 2)) for g in nested.groups.free))
        known = cost(nested, probe)
        self._is_right = self._fast(probe) == (known.params, known.macs, known.bytes)

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
        found = cost(self.nested, cut)
        return found.params, found.macs, found.bytes

    def _fast(self, cut: Cut) -> tuple[int, int, int]:
        own, smaller, gone = self.nested.tensors(), self.nested.sliced_at(cut), self.nested.dropped(cut)

        def size(name: str) -> int:
            return 0 if name in gone else smaller.get(name, own[name]).numel()

        params = {name: size(source) for name, source in self._params.items()}
        held = params | {name: size(source) for name, source in self._held.items()}
        macs = sum(round(rate * params[name]) for name, rate in self._macs.items())
        in_memory = sum(self._bytes[name] * number for name, number in held.items())
        return sum(params.values()), macs, in_memory - bytes_saved(self.nested, cut)


def _sources(nested: Nested, names: list[str]) -> dict[str, str]:
    """For each tensor of the plain network the one of the nested network whose shape it has."""
    own = nested.tensors()
    layers = {path for path, part in nested.module.named_modules() if isinstance(part, VariationalLayer)}
    found = {}
    for name in names:
        path, _, key = name.rpartition(".")
        source = mean_name(path) if path in layers and key == "weight" else name
        if source in own:
            found[name] = source
    return found


def _macs_by_weight(nested: Nested, plain: torch.nn.Module, parameters: Mapping[str, str]) -> dict[str, float]:
    """How many multiply-adds each element of a weight takes part in, for one example."""
    args, kwargs = nested.example
    one = pytree.tree_map_only(torch.Tensor, lambda t: t[:1] if t.ndim else t, (args, kwargs))
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        plain(*one[0], **one[1])
    by_layer = {name.partition(".")[2]: sum(own.values()) // 2 for name, own in counter.get_flop_counts().items()}
    rates = {}
    for name in parameters:
        path, _, key = name.rpartition(".")
        if key == "weight" and by_layer.get(path):
            rates[name] = by_layer[path] / plain.get_parameter(name).numel()
    return rates


class _Slopes:
    """Milliseconds, as the whole network's less what each group saves in proportion to the blocks it gives up."""

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
        self._saved = {name: own * share for name, own in saved.items()}

    def __call__(self, cut: Cut) -> float:
        """The estimate for a cut, which is right at the full width and at the smallest."""
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
"""What a search can go by, by name."""


def _milliseconds(nested: Nested, cut: Cut) -> float:
    found = cost(nested, cut, latency=True).latency_ms
    assert found is not None
    return found
