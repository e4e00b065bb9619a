"""Runs a network at a cut: for the time of a call it has the cut's smaller tensors, and the sizes that fit them."""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import deepcopy
from dataclasses import dataclass
from itertools import chain
from typing import Any, Protocol

from torch import Tensor, nn

from nestling.reading import BakedSize, Cut, Group, Holders, Plan
from nestling.running.layers import layer_type, make_plain
from nestling.running.twin import Twin, is_separable

Attributes = list[tuple[nn.Module, str, Any]]
OpenSizes = Callable[[Mapping[str, Any], Mapping[str, Tensor]], Attributes]
"""Gives sizes for a number of units of each group, and tensors by name."""
REMEMBERED_CUTS = 1024
"""The sizes of this many cuts are remembered."""
_ONE_AT_A_TIME = threading.RLock()
"""Held by calls of networks that can have no twin: these calls run on the module itself."""


class BoundNetwork(Protocol):
    """A network at a cut that already has the cut's tensors: any number of threads may call it."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        """Run the network."""

    def is_fresh(self) -> bool:
        """Whether the module's attributes, its modes included, have not changed since this was made."""


class Runner(ABC):
    """Runs ``module`` with smaller tensors in place of its own, and takes smaller copies out of it.

    ``calls_layers`` says whether every variational layer draws for itself, or a graph asks some for one weight for all
    examples; ``plan`` describes the graph that runs. ``sizes`` are attributes of the module's code.
    """

    calls_layers = True
    plan: Plan | None = None
    sizes: Sequence[BakedSize] = ()

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.holders = Holders(module)
        self._separable: bool | None = None

    def refresh(self) -> None:
        """Look up the module's tensors again, after layers were replaced."""
        self.holders = Holders(self.module)

    def recheck_separable(self) -> None:
        """Find out again whether the module can have twins, since an attribute changed; one that can't never can."""
        if self._separable:
            self._separable = None

    @abstractmethod
    def run(self, cut: Cut, smaller: Mapping[str, Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401
        """Run the module itself at a cut, given the cut's smaller tensors: in training, by one thread."""

    @abstractmethod
    def bound(self, cut: Cut, smaller: Mapping[str, Tensor], norms: Collection[str] = ()) -> BoundNetwork:
        """The network at a cut, given the cut's smaller tensors; nothing is written on the module.

        ``norms`` are paths of batch norms that run in train mode.
        """

    def tensors(self) -> dict[str, Tensor]:
        """The parameters and buffers of the module, without duplicates."""
        return self.holders.tensors()

    def at_rest(self) -> AbstractContextManager[object]:
        """Wait until no call in eval mode has put a cut's tensors into the module; calls of twins never do."""
        return nullcontext()

    def twin(self, smaller: Mapping[str, Tensor]) -> Twin:
        """A twin of the module with smaller tensors."""
        whole = self.holders.tensors()
        return Twin(self.module, {id(whole[name]): tensor for name, tensor in smaller.items()})

    @abstractmethod
    def extracted(self, cut: Cut, smaller: Mapping[str, Tensor]) -> nn.Module:
        """A plain module that owns the smaller tensors."""

    @abstractmethod
    def open_sizes(self, network: nn.Module, cut: Cut) -> OpenSizes:
        """The sizes that the network extracted at a cut computes with, at other widths, which may be symbolic."""

    @abstractmethod
    def dropped(self, cut: Cut) -> frozenset[str]:
        """Names of the tensors of layers that a cut drops whole."""

    @abstractmethod
    def variational(self, cut: Cut, smaller: Mapping[str, Tensor]) -> nn.Module:
        """A module that owns the smaller tensors and keeps its variational layers."""


class ModuleRunner(Runner):
    """Runs the module's code, which takes every size from its tensors or from attributes.

    Those of torch's layers follow their tensors; ``sizes`` are the others that change when ``groups`` are cut.
    """

    def __init__(self, module: nn.Module, sizes: Sequence[BakedSize] = (), groups: Iterable[Group] = ()) -> None:
        super().__init__(module)
        self.sizes, self._groups = sizes, groups
        self._sizes_of_cuts: dict[Cut, Attributes] = {}

    def run(self, cut: Cut, smaller: Mapping[str, Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401
        """Run the module's code on the smaller tensors."""
        with self.holders.replaced(smaller), set_for_a_while(self._changed_sizes(cut, smaller)):
            return self.module(*args, **kwargs)

    def bound(self, cut: Cut, smaller: Mapping[str, Tensor], norms: Collection[str] = ()) -> BoundNetwork:
        """A twin of the module; where none can be made, the module itself, for one thread at a time."""
        if self._separable is None:
            self._separable = is_separable(self.module)
        if not self._separable:
            return _InTurn(self, cut, smaller, norms)
        twin = self.twin(smaller)
        for module, name, value in self._changed_sizes(cut, smaller):
            setattr(twin.counterpart(module), name, value)
        for path in norms:
            twin.counterpart(self.module.get_submodule(path)).training = True
        return twin

    def tensors(self) -> dict[str, Tensor]:
        """The parameters and buffers of the module, without duplicates."""
        with self.at_rest():
            return self.holders.tensors()

    def at_rest(self) -> AbstractContextManager[object]:
        """Wait for calls that run on the module itself; between them it has all its whole tensors."""
        return nullcontext() if self._separable else _ONE_AT_A_TIME

    def _changed_sizes(self, cut: Cut, smaller: Mapping[str, Tensor]) -> Attributes:
        """The sizes that layers compute with, where a cut changes them."""
        sizes = self._sizes_of_cuts.get(cut)
        if sizes is None:
            if len(self._sizes_of_cuts) >= REMEMBERED_CUTS:
                self._sizes_of_cuts.clear()
            sizes = self._sizes_of_cuts[cut] = [
                (layer, name, value)
                for layer, name, value in chain(
                    _computed_sizes(self.holders, smaller), self._code_sizes(self.module, cut)
                )
                if getattr(layer, name) != value
            ]
        return sizes

    def _code_sizes(self, module: nn.Module, cut: Cut) -> Attributes:
        """The sizes of a cut in the code of the module or of a copy."""
        units = units_of(self._groups, cut)
        return [(*_held(module, size.attribute), size.at(units)) for size in self.sizes]

    def open_sizes(self, network: nn.Module, cut: Cut) -> OpenSizes:
        """The size attributes of the network's layers, and those in its code."""
        holders, whole = Holders(network), {group.name: group.size for group in self._groups}
        in_code = [(*_held(network, size.attribute), size) for size in self.sizes]
        return lambda units, tensors: [
            *_computed_sizes(holders, tensors),
            *((module, name, size.open_at(whole | dict(units), whole)) for module, name, size in in_code),
        ]

    def extracted(self, cut: Cut, smaller: Mapping[str, Tensor]) -> nn.Module:
        """A copy of the module, each of its layers plain and with the sizes it now has."""
        return make_plain(self.variational(cut, smaller))

    def dropped(self, cut: Cut) -> frozenset[str]:
        """None: the module's code runs every layer."""
        return frozenset()

    def variational(self, cut: Cut, smaller: Mapping[str, Tensor]) -> nn.Module:
        """A copy of the module that keeps its variational layers."""
        with self.at_rest():
            copy = deepcopy(self.module)
        holders = Holders(copy)
        sizes = [*_layer_sizes(holders, smaller), *self._code_sizes(copy, cut)]
        holders.put(smaller)
        for module, name, value in sizes:
            setattr(module, name, value)
        return copy


@dataclass(frozen=True)
class _InTurn:
    """A network that can have no twin, since some object that it holds refers back to it: threads run it in turn."""

    runner: Runner
    cut: Cut
    smaller: Mapping[str, Tensor]
    norms: Collection[str]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        training: Attributes = [(self.runner.module.get_submodule(path), "training", True) for path in self.norms]
        with _ONE_AT_A_TIME, set_for_a_while(training):
            return self.runner.run(self.cut, self.smaller, args, kwargs)

    def is_fresh(self) -> bool:
        """Always: nothing was copied."""
        return True


def units_of(groups: Iterable[Group], cut: Cut) -> dict[str, int]:
    """The number of units that each group keeps; a group that the cut does not name keeps all."""
    widths = cut.as_dict()
    return {group.name: group.units(widths.get(group.name, group.num_blocks)) for group in groups}


def _held(module: nn.Module, attribute: str) -> tuple[nn.Module, str]:
    """The submodule that holds an attribute whose name has dots, and its name there."""
    path, _, name = attribute.rpartition(".")
    return module.get_submodule(path), name


def _layer_sizes(holders: Holders, smaller: Mapping[str, Tensor]) -> Iterator[tuple[nn.Module, str, Any]]:
    """The size attributes of every layer that gets a smaller tensor."""
    whole = holders.tensors()
    for module, names in holders.members:
        if any(name in smaller for name in names.values()):
            tensors = {key: smaller.get(name, whole[name]) for key, name in names.items()}
            for name, value in layer_type(module).sizes(module, tensors).items():
                yield module, name, value


def _computed_sizes(holders: Holders, smaller: Mapping[str, Tensor]) -> Iterator[tuple[nn.Module, str, Any]]:
    """The size attributes that layers with a smaller tensor compute with."""
    for layer, name, value in _layer_sizes(holders, smaller):
        if name in layer_type(layer).computes_with:
            yield layer, name, value


@contextmanager
def set_for_a_while(wanted: Attributes) -> Iterator[None]:
    """Give attributes of modules other values inside the ``with`` statement."""
    before = [getattr(module, name) for module, name, _ in wanted]
    try:
        for module, name, value in wanted:
            setattr(module, name, value)
        yield
    finally:
        for (module, name, _), value in zip(wanted, before, strict=True):
            setattr(module, name, value)
