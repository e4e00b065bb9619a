"""A network whose units are gated where they are read, so that a unit that is dropped is never read."""

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
"""Name under which a gated network holds its gates; not its module, which may well call everything that it holds."""


def gated(
    module: nn.Module,
    example: Any,  # noqa: ANN401
    held: "Gates",
) -> Nested:
    """A copy of a module with gates at their sites, ready for ``train``; it has no widths to draw."""
    copy = deepcopy(module)
    parameter = next(copy.parameters(), None)
    if parameter is not None:
        held.to(parameter.device, parameter.dtype)
    copy.register_forward_pre_hook(_Begin(held))
    copy.register_forward_hook(_End(held), always_call=True)
    for number, site in enumerate(held.sites):
        for reader in site.readers:
            copy.get_submodule(reader.path).register_forward_pre_hook(_Multiply(held, number, reader))
    return holding(without_widths(copy, example), held)


def holding(nested: Nested, held: "Gates") -> Nested:
    """A network that holds the gates of its module, to be trained and kept with it."""
    nested.register_module(GATES, held)
    return nested


def without_widths(module: nn.Module, example: Any) -> Nested:  # noqa: ANN401
    """A module as a nested network of which nothing is cut: what the training loop takes."""
    return Nested(module, Groups([]), {}, ModuleRunner(module), example=as_call(example), rescale=False)


def gates_in(nested: Nested) -> "Gates":
    """The gates of a gated network."""
    held = nested.get_submodule(GATES)
    assert isinstance(held, Gates)
    return held


class Gates(Stochastic):
    """The gates of a network, each drawn once in a forward pass for all the readers of its site.

    In train mode a gate multiplies by a draw; in eval mode by its mean (by a draw inside ``drawing``), and by zero
    where it keeps nothing at the ``threshold`` (None: each gate's own), so that the network computes what the pruned
    one will.
    """

    def __init__(self, sites: Sequence[Site], gates: Sequence[Gate], threshold: float | None) -> None:
        super().__init__()
        self.sites = tuple(sites)
        self.threshold = threshold
        self._gates = nn.ModuleList(gates)
        for number, site in enumerate(sites):
            self.register_buffer(f"alive_{number}", torch.ones(site.size, dtype=torch.bool))

    def alive(self, name: str) -> Tensor:
        """Which units (size,) of a site were not given up for good; eval mode leaves the others out."""
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
        """Show the multipliers of every site, with its name, to ``see`` inside the block."""
        token = _watching.set({**_watching.get(), self: see})
        try:
            yield
        finally:
            _watching.reset(token)

    def begin(self) -> None:
        """Forget the draws of the last forward pass."""
        _drawn.set({gates: own for gates, own in _drawn.get().items() if gates is not self})

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
        multipliers = gate.sample(features) if self.draws else gate.expectation(features)
        return multipliers * gate.keep_for(features, self.threshold) * self.get_buffer(f"alive_{number}")


_drawn: ContextVar[Mapping[Gates, Mapping[int, Tensor]]] = ContextVar("drawn", default={})  # noqa: B039  # never written to
"""What was drawn in the forward pass that runs now in this thread or task, by the number of the site."""
_watching: ContextVar[Mapping[Gates, Callable[[str, Tensor], object]]] = ContextVar("watching", default={})  # noqa: B039


class FoldedGates(Gates):
    """The gates of a smaller network, which keeps all of its units and has their means in its weights."""

    def _multipliers(self, number: int, features: Tensor) -> Tensor:
        gate = self._gates[number]
        assert isinstance(gate, Gate)
        return gate.sample(features) / gate.expectation(features) if self.draws else torch.ones_like(features[0])


def unit_features(reader: Reader, x: Tensor) -> Tensor:
    """The mean (batch, size) of each unit of an input over its positions and rows."""
    along = reader.axis % x.ndim
    rest = [axis for axis in range(1, x.ndim) if axis != along]
    means = x.mean(rest) if rest else x
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
    """Begins a forward pass."""

    def __init__(self, held: Gates) -> None:
        self.held = held

    def __call__(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        self.held.begin()


class _End:
    """Ends a forward pass, so that nothing of its graph stays."""

    def __init__(self, held: Gates) -> None:
        self.held = held

    def __call__(self, module: nn.Module, args: tuple[Any, ...], output: object) -> None:
        self.held.begin()


class _Multiply:
    """Multiplies what a layer reads."""

    def __init__(self, held: Gates, number: int, reader: Reader) -> None:
        self.held, self.number, self.reader = held, number, reader

    def __call__(self, module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return self.held.multiplied(self.number, self.reader, args[0]), *args[1:]
