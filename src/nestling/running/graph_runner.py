"""Runs a network at a cut by its exported graph: for code with sizes that no attribute holds, and dropped layers."""

from collections.abc import Collection, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from torch import Tensor, fx, nn

from nestling.reading import BakedSize, Cut, Groups, Holders, Plan
from nestling.running.graph_module import RECALIBRATING, graph_module, refused_sizes, runs_layer, tensor_at
from nestling.running.layers import VariationalLayer, variational_layers
from nestling.running.norms import batch_norms
from nestling.running.runner import REMEMBERED_CUTS, BoundNetwork, OpenSizes, Runner, units_of
from nestling.running.twin import Twin
from nestling.torch_parts import copy_persistence


class GraphRunner(Runner):
    """Runs the exported graph: for code with fixed sizes (attention, splits), and where whole layers are dropped.

    Variational layers run in place of their operation on the graph. Where the graph reads the weight of one for
    something else, it takes the mean, or one draw for the whole batch.
    """

    plan: Plan

    def __init__(self, module: nn.Module, plan: Plan, groups: Groups, state: Mapping[str, Tensor]) -> None:
        """``state`` is the module's state before layers became variational, with the tensors themselves."""
        super().__init__(module)
        self.plan, self._groups, self._state = plan, groups, state
        self._norms = batch_norms(module)
        self._programs: dict[tuple[frozenset[str], bool], _Program] = {}
        self._programs_of_cuts: dict[Cut, tuple[_Program, list[tuple[str, int]]]] = {}

    @property
    def calls_layers(self) -> bool:  # type: ignore[override]
        """Whether no layer is asked for one draw of its weight."""
        layers, names = variational_layers(self.module), self.plan.tensor_names
        weights = {f"{path}.weight": layer for path, layer in layers.items()}
        read = [(node, weights[name]) for node, name in names.items() if name in weights]
        return all(runs_layer(user, layer, names) for node, layer in read for user in node.users)

    def refresh(self) -> None:
        """Look up the module's tensors and layers again."""
        super().refresh()
        self._programs, self._programs_of_cuts = {}, {}

    def run(self, cut: Cut, smaller: Mapping[str, Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401
        """Run the graph on the smaller tensors, with the sizes of the cut."""
        return self.bound(cut, smaller)(*args, **kwargs)

    def bound(self, cut: Cut, smaller: Mapping[str, Tensor], norms: Collection[str] = ()) -> BoundNetwork:
        """The graph with the sizes of the cut, and the layers and tensors of a twin of the module."""
        prepared = self._programs_of_cuts.get(cut)
        if prepared is None:
            if len(self._programs_of_cuts) >= REMEMBERED_CUTS:
                self._programs_of_cuts.clear()
            program = self._program(cut, with_layers=True)
            prepared = self._programs_of_cuts[cut] = program, self._sizes(program, cut)
        program, sizes = prepared
        training = {path for path, norm in self._norms.items() if norm.training} | set(norms)
        flags: dict[str, bool] = {flag: path in training for path, flag in program.norms.items()}
        attributes = dict(sizes) | flags | {RECALIBRATING: bool(training), "training": self.module.training}
        return _BoundGraph(program, attributes, self.twin(smaller))

    def extracted(self, cut: Cut, smaller: Mapping[str, Tensor]) -> nn.Module:
        """A copy of the graph as a module, with the tensor names of the original and the sizes of the cut."""
        return self._copy_of_graph(cut, smaller, with_layers=False)

    def _copy_of_graph(self, cut: Cut, smaller: Mapping[str, Tensor], *, with_layers: bool) -> fx.GraphModule:
        program = self._program(cut, with_layers=with_layers)
        copy = deepcopy(program.module)
        copy_persistence(program.module, copy)
        module = self.twin(smaller).module
        Holders(copy).put({name: tensor_at(module, name) for name in program.names})
        flags = [(flag, True) for flag in program.norms.values()]
        for name, value in [*self._sizes(program, cut), *flags, (RECALIBRATING, False)]:
            setattr(copy, name, value)
        return copy

    def variational(self, cut: Cut, smaller: Mapping[str, Tensor]) -> nn.Module:
        """The extracted graph with the variational layers in place."""
        return self._copy_of_graph(cut, smaller, with_layers=True)

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
        sizes, whole = self._program(cut, with_layers=False).sizes, {group.name: group.size for group in self._groups}
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

    def _program(self, cut: Cut, *, with_layers: bool) -> "_Program":
        """The graph without the branches that a cut drops, with the variational layers or with plain weights."""
        dropped = self._dropped_branches(cut)
        if (dropped, with_layers) not in self._programs:
            branches = [self.plan.branches[name] for name in dropped]
            layers = _layers_at_all_paths(self.module) if with_layers else {}
            module, sizes, norms = graph_module(self.module, self.plan, self._state, branches, layers=layers)
            holders, names = Holders(module), list[str]()
            for name in dict.fromkeys(self.plan.tensor_names.values()):
                path = name.rpartition(".")[0]
                inside = [f"{path}.{own}" for own in Holders(layers[path]).canonical] if path in layers else [name]
                names += [name for name in inside if name in holders.canonical]
            self._programs[dropped, with_layers] = _Program(module, holders, list(dict.fromkeys(names)), sizes, norms)
        return self._programs[dropped, with_layers]

    def _sizes(self, program: "_Program", cut: Cut) -> list[tuple[str, int]]:
        units = units_of(self._groups, cut)
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
    """A program with the attributes of a cut, and the tensors of a twin of the module at that cut."""

    def __init__(self, program: _Program, attributes: Mapping[str, object], source: Twin) -> None:
        self._source, whole = source, program.holders.tensors()
        tensors = {id(whole[name]): tensor_at(source.module, name) for name in program.names}
        self._module = Twin(program.module, tensors).module
        vars(self._module).update(attributes)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        try:
            return self._module.forward(*args, **kwargs)  # fx's call would print the graph where an operation fails
        except RuntimeError as fault:
            refused = refused_sizes(fault, "Nest it with such an example.")
            if refused is None:
                raise
            raise refused from fault

    def is_fresh(self) -> bool:
        """Whether the module's attributes have not changed since this was made."""
        return self._source.is_fresh()


def _layers_at_all_paths(module: nn.Module) -> dict[str, VariationalLayer]:
    """The variational layers of a module by path, each under all of its paths."""
    paths = module.named_modules(remove_duplicate=False)
    return {path: layer for path, layer in paths if isinstance(layer, VariationalLayer)}
