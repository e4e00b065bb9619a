"""Runs a network at a cut by its exported graph: for code with sizes that no attribute holds, and dropped layers."""

from collections.abc import Collection, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from torch import Tensor, fx, nn

from nestling.reading import BakedSize, Cut, Groups, Holders, Plan
from nestling.running.graph_module import RECALIBRATING, graph_module, refused_sizes, tensor_at
from nestling.running.layers import VariationalLayer, variational_layers
from nestling.running.norms import batch_norms
from nestling.running.runner import REMEMBERED_CUTS, BoundNetwork, OpenSizes, Runner, units_of
from nestling.running.twin import Twin
from nestling.torch_parts import copy_persistence


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
