"""A network whose units are gated where they are read, so that a dropped unit is never read."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from nestling.distributions.gates import Gate
from nestling.pruning.sites import Reader, Site
from nestling.reading import Groups
from nestling.running import ModuleRunner, Nested, as_call
from nestling.running.layers import Stochastic

GATES = "gates"
"""Name of the gates in a gated network; they are not in its module, which may call all of its submodules."""


def gated(
    module: nn.Module,
    example: Any,  # noqa: ANN401
    gates: "Gates",
) -> Nested:
    """A copy of a module with gates at their sites, ready for ``train``; it has no widths to draw."""
    copy = deepcopy(module)
    parameter = next(copy.parameters(), None)
    if parameter is not None:
        gates.to(parameter.device, parameter.dtype)
    copy.register_forward_pre_hook(_Begin(gates))
    copy.register_forward_hook(_Begin(gates), always_call=True)
    for number, site in enumerate(gates.sites):
        for reader in site.readers:
            copy.get_submodule(reader.path).register_forward_pre_hook(_Multiply(gates, number, reader))
    return attach_gates(without_widths(copy, example), gates)


def attach_gates(nested: Nested, gates: "Gates") -> Nested:
    """A network with the gates of its module as a submodule, so that they are trained and saved with it."""
    nested.register_module(GATES, gates)
    return nested


def without_widths(module: nn.Module, example: Any) -> Nested:  # noqa: ANN401
    """A module as a nested network without groups to cut, as the training loop needs it."""
    return Nested(module, Groups([]), {}, ModuleRunner(module), example=as_call(example), rescale=False)


def gates_in(nested: Nested) -> "Gates":
    """The gates of a gated network."""
    gates = nested.get_submodule(GATES)
    assert isinstance(gates, Gates)
    return gates


class Gates(Stochastic):
    """The gates of a network, each drawn once per forward pass for all the readers of its site.

    In train mode a gate multiplies by a sample. In eval mode it multiplies by its mean (inside ``drawing`` by a sample)
    and, for units dropped at the ``threshold`` (None: each gate's default), by zero, so that the network computes the
    same as the pruned one.
    """

    def __init__(self, sites: Sequence[Site], gates: Sequence[Gate], threshold: float | None) -> None:
        super().__init__()
        self.sites = tuple(sites)
        self.threshold = threshold
        self._gates = nn.ModuleList(gates)
        for number, site in enumerate(sites):
            self.register_buffer(f"alive_{number}", torch.ones(site.size, dtype=torch.bool))

    def alive(self, name: str) -> Tensor:
        """Which units (size,) of a site were not dropped permanently; eval mode leaves the others out."""
        number = [site.name for site in self.sites].index(name)
        return self.get_buffer(f"alive_{number}")

    @property
    def by_name(self) -> dict[str, Gate]:
        """The gate of each site, by the site's name."""
        return dict(zip((site.name for site in self.sites), self._gates, strict=True))  # type: ignore[arg-type]

    def replace(self, number: int, gate: Gate) -> None:
        """Put another gate at a site."""
        self._gates[number] = gate

    @contextmanager
    def watch(self, see: Callable[[str, Tensor], object]) -> Iterator[None]:
        """Call ``see`` with the name and the multipliers of every site, within the ``with`` statement."""
        token = _watching.set({**_watching.get(), self: see})
        try:
            yield
        finally:
            _watching.reset(token)

    def begin(self) -> None:
        """Forget the samples of the last forward pass."""
        _drawn.set({gates: multipliers for gates, multipliers in _drawn.get().items() if gates is not self})

    def multiplied(self, number: int, reader: Reader, x: Tensor) -> Tensor:
        """An input of a reader with the units of a site multiplied by their gate."""
        drawn = _drawn.get().get(self, {})
        if number not in drawn:
            drawn = {**drawn, number: self._multipliers(number, unit_features(reader, x))}
            _drawn.set({**_drawn.get(), self: drawn})
            see = _watching.get().get(self)
            if see is not None:
                see(self.sites[number].name, drawn[number])
        return scaled(reader, x, drawn[number])

    def _multipliers(self, number: int, features: Tensor) -> Tensor:
        gate = self._gates[number]
        assert isinstance(gate, Gate)
        if self.training:
            return gate.sample(features)
        multipliers = gate.sample(features) if self.is_drawing else gate.expectation(features)
        return multipliers * gate.keep_for(features, self.threshold) * self.get_buffer(f"alive_{number}")


_drawn: ContextVar[Mapping[Gates, Mapping[int, Tensor]]] = ContextVar("drawn", default={})  # noqa: B039  # never written to
"""The samples of the current forward pass in this thread or task, by the number of the site."""
_watching: ContextVar[Mapping[Gates, Callable[[str, Tensor], object]]] = ContextVar("watching", default={})  # noqa: B039


class FoldedGates(Gates):
    """The gates of a smaller network, which keeps all of its units and has the gates' means in its weights."""

    def _multipliers(self, number: int, features: Tensor) -> Tensor:
        gate = self._gates[number]
        assert isinstance(gate, Gate)
        return gate.sample(features) / gate.expectation(features) if self.is_drawing else torch.ones_like(features[0])


def unit_features(reader: Reader, x: Tensor) -> Tensor:
    """The mean (batch, size) of each unit of an input over its positions and rows."""
    unit_axis = reader.axis % x.ndim
    other_axes = [axis for axis in range(1, x.ndim) if axis != unit_axis]
    means = x.mean(other_axes) if other_axes else x
    return means if reader.is_plain else means[:, reader.rows.to(x.device)].mean(-1)


def scaled(reader: Reader, x: Tensor, multipliers: Tensor) -> Tensor:
    """An input with each unit multiplied; ``multipliers`` are (size,) or (batch, size)."""
    if not reader.is_plain:
        ones = multipliers.new_ones(*multipliers.shape[:-1], 1)
        multipliers = torch.cat([multipliers, ones], -1)[..., reader.unit_of.to(x.device)]
    shape = [1] * x.ndim
    shape[reader.axis] = reader.num_features
    shape[0] = multipliers.shape[0] if multipliers.ndim > 1 else shape[0]
    return x * multipliers.view(shape)


class _Begin:
    """Forgets the samples before a forward pass, and after it, so that none keeps its autograd graph alive."""

    def __init__(self, gates: Gates) -> None:
        self.gates = gates

    def __call__(self, *_: object) -> None:
        self.gates.begin()


class _Multiply:
    """Multiplies the input of a layer by a gate."""

    def __init__(self, gates: Gates, number: int, reader: Reader) -> None:
        self.gates, self.number, self.reader = gates, number, reader

    def __call__(self, module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return self.gates.multiplied(self.number, self.reader, args[0]), *args[1:]
