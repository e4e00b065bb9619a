"""Runs a network at a cut: for the time of a call it has the cut's smaller tensors, and the sizes that fit them."""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor, fx, nn

from nestling.reading import Cut, Groups, Holders, Plan
from nestling.running.graph_module import RECALIBRATING, BakedSize, graph_module, refused_sizes, tensor_at
from nestling.running.layers import VariationalLayer, layer_type, make_plain, variational_layers
from nestling.running.norms import batch_norms
from nestling.running.twin import Twin, is_separable
from nestling.torch_parts import copy_persistence

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

    ``calls_layers`` says whether the module's layers run, which may draw weights per example, or a graph with one
    weight for all examples; ``plan`` describes that graph.
    """

    calls_layers = True
    plan: Plan | None = None

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
    """Runs the module's code, which takes every size from its tensors or from attributes of torch's layers."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
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
                for layer, name, value in _computed_sizes(self.holders, smaller)
                if getattr(layer, name) != value
            ]
        return sizes

    def open_sizes(self, network: nn.Module, cut: Cut) -> OpenSizes:
        """The size attributes of the network's layers."""
        holders = Holders(network)
        return lambda units, tensors: list(_computed_sizes(holders, tensors))

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
        sizes = list(_layer_sizes(holders, smaller))
        holders.put(smaller)
        for module, name, value in sizes:
            setattr(module, name, value)
        return copy


class GraphRunner(Runner):
    """Runs the exported graph: for code with fixed sizes (attention, splits), and where whole layers are dropped.

    Each call reads the graph's tensors from the module: the mean of a variational layer's weight, or one draw of the
    weight for the whole batch.
    """

    calls_layers = False
    plan: Plan

    def __init__(self, module: nn.Module, plan: Plan, groups: Groups, state: Mapping[str, Tensor]) -> None:
        """``state`` is the module's state before layers became variational, with the tensors themselves."""
        super().__init__(module)
        self.plan, self._groups, self._state = plan, groups, state
        self._norms = batch_norms(module)
        self._programs: dict[frozenset[str], _Program] = {}
        self._programs_of_cuts: dict[Cut, tuple[_Program, list[tuple[str, int]]]] = {}

    def run(self, cut: Cut, smaller: Mapping[str, Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401
        """Run the graph on the smaller tensors, with the sizes of the cut."""
        return self.bound(cut, smaller)(*args, **kwargs)

    def bound(self, cut: Cut, smaller: Mapping[str, Tensor], norms: Collection[str] = ()) -> BoundNetwork:
        """The graph with the sizes of the cut; each call takes, or draws, its tensors from a twin of the module."""
        prepared = self._programs_of_cuts.get(cut)
        if prepared is None:
            if len(self._programs_of_cuts) >= REMEMBERED_CUTS:
                self._programs_of_cuts.clear()
            program = self._program(cut)
            prepared = self._programs_of_cuts[cut] = program, self._sizes(program, cut)
        program, sizes = prepared
        training = {path for path, norm in self._norms.items() if norm.training} | set(norms)
        flags: dict[str, bool] = {flag: path in training for path, flag in program.norms.items()}
        attributes = dict(sizes) | flags | {RECALIBRATING: bool(training), "training": self.module.training}
        return _BoundGraph(program, attributes, self.twin(smaller))

    def extracted(self, cut: Cut, smaller: Mapping[str, Tensor]) -> nn.Module:
        """A copy of the graph as a module, with the tensor names of the original and the sizes of the cut."""
        return self._copy_of_graph(cut, smaller)

    def _copy_of_graph(self, cut: Cut, smaller: Mapping[str, Tensor]) -> fx.GraphModule:
        program = self._program(cut)
        copy = deepcopy(program.module)
        copy_persistence(program.module, copy)
        module = self.twin(smaller).module
        Holders(copy).put({name: tensor_at(module, name) for name in program.names})
        flags = [(flag, True) for flag in program.norms.values()]
        for name, value in [*self._sizes(program, cut), *flags, (RECALIBRATING, False)]:
            setattr(copy, name, value)
        return copy

    def variational(self, cut: Cut, smaller: Mapping[str, Tensor]) -> nn.Module:
        """The extracted graph with the variational layers in place: it uses their weights instead of the means."""
        copy = self._copy_of_graph(cut, smaller)
        layers = variational_layers(self.module)
        for node in copy.graph.find_nodes(op="get_attr"):
            path, _, key = str(node.target).rpartition(".")
            if key == "weight" and path in layers:
                copy.set_submodule(path, _smaller_layer(layers[path], path, smaller))
                with copy.graph.inserting_before(node):
                    drawn = copy.graph.call_function(VariationalLayer.draw, (copy.graph.get_attr(path),))
                node.replace_all_uses_with(drawn)
                copy.graph.erase_node(node)
        copy.recompile()
        return copy

    def __deepcopy__(self, memo: dict[int, Any]) -> "GraphRunner":
        """A runner of the copied module; the plan is shared, and the programs are made again when needed."""
        copy = GraphRunner.__new__(GraphRunner)
        copy.__dict__.update(self.__dict__)
        for name in ("module", "holders", "_norms", "_state"):
            setattr(copy, name, deepcopy(getattr(self, name), memo))
        copy._programs, copy._programs_of_cuts = {}, {}
        return copy

    def open_sizes(self, network: nn.Module, cut: Cut) -> OpenSizes:
        """The sizes in the code of the graph."""
        sizes, whole = self._program(cut).sizes, {group.name: group.size for group in self._groups}
        return lambda units, tensors: [
            (network, size.attribute, size.open_at(whole | dict(units), whole)) for size in sizes
        ]

    def dropped(self, cut: Cut) -> frozenset[str]:
        """The tensors of the branches that a cut drops."""
        return frozenset(name for branch in self._dropped_branches(cut) for name in self.plan.branches[branch].tensors)

    def _dropped_branches(self, cut: Cut) -> frozenset[str]:
        widths = cut.as_dict()
        layers = [group for group in self._groups if group.drops and group.name in widths]
        return frozenset(name for group in layers for name in group.drops[group.units(widths[group.name]) :])

    def _program(self, cut: Cut) -> "_Program":
        """The graph without the branches that a cut drops."""
        dropped_branches = self._dropped_branches(cut)
        if dropped_branches not in self._programs:
            branches = [self.plan.branches[name] for name in dropped_branches]
            module, sizes, norms = graph_module(self.module, self.plan, self._state, branches)
            dropped_names = {name for branch in branches for name in branch.tensors}
            names = [name for name in dict.fromkeys(self.plan.tensor_names.values()) if name not in dropped_names]
            self._programs[dropped_branches] = _Program(module, Holders(module), names, sizes, norms)
        return self._programs[dropped_branches]

    def _sizes(self, program: "_Program", cut: Cut) -> list[tuple[str, int]]:
        widths = cut.as_dict()
        units = {group.name: group.units(widths.get(group.name, group.num_blocks)) for group in self._groups}
        return [(size.attribute, size.at(units)) for size in program.sizes]


@dataclass(frozen=True)
class _Program:
    """A graph as a module, where its tensors are, their names, the sizes in its code, and the flags of its norms."""

    module: fx.GraphModule
    holders: Holders
    names: list[str]
    sizes: list[BakedSize]
    norms: dict[str, str]


class _BoundGraph:
    """A program with the attributes of a cut; a tensor is drawn if a layer of the twin draws its weight."""

    def __init__(self, program: _Program, attributes: Mapping[str, object], layers: Twin) -> None:
        self._program, self._attributes, self._layers = program, attributes, layers
        self._last: tuple[list[Tensor], Twin] | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        tensors = [_drawn_tensor(self._layers.module, name) for name in self._program.names]
        last = self._last
        if last is None or not all(a is b for a, b in zip(tensors, last[0], strict=True)):
            whole = self._program.holders.tensors()
            twin = Twin(
                self._program.module,
                {id(whole[name]): tensor for name, tensor in zip(self._program.names, tensors, strict=True)},
            )
            vars(twin.module).update(self._attributes)
            last = self._last = tensors, twin
        try:
            return last[1].module.forward(*args, **kwargs)  # fx's call would print the graph where an operation fails
        except RuntimeError as fault:
            refused = refused_sizes(fault, "Nest it with such an example.")
            if refused is None:
                raise
            raise refused from fault

    def is_fresh(self) -> bool:
        """Whether the module's attributes have not changed since this was made."""
        return self._layers.is_fresh()


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


def _smaller_layer(layer: VariationalLayer, path: str, smaller: Mapping[str, Tensor]) -> VariationalLayer:
    """A copy of a layer with its smaller tensors."""
    copy = deepcopy(layer)
    holders = Holders(copy)
    holders.put({name: smaller[f"{path}.{name}"] for name in holders.tensors() if f"{path}.{name}" in smaller})
    return copy


def _drawn_tensor(module: nn.Module, name: str) -> Tensor:
    """The tensor of that name in a plain network, drawn if its layer is variational and draws now."""
    path, _, key = name.rpartition(".")
    owner = module.get_submodule(path)
    if isinstance(owner, VariationalLayer) and key == "weight":
        return owner.draw()
    tensor: Tensor = getattr(owner, key)
    return tensor


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
