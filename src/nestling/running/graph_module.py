"""Turns an exported graph back into a module whose sizes and mode can be set: for code that has fixed sizes."""

import operator
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from torch import Tensor, fx, nn

from nestling.errors import ShapeError
from nestling.reading import UNPROVEN, BakedSize, Branch, Plan, PlannedSize
from nestling.running.layers import VariationalLayer
from nestling.running.norms import batch_norms
from nestling.torch_parts import OpOverload, child_store, pytree, schema_of

RECALIBRATING = "recalibrating"
"""Attribute of a graph module that puts its batch norms in train mode, and nothing else."""
_OPERATIONS = "linear conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d".split()
"""The operations of variational layers on their weight."""
_OPTIONS = {"stride", "padding", "dilation", "groups", "output_padding"}
_MODE_ARGUMENTS = {"dropout": "train", "alpha_dropout": "train", "feature_dropout": "train"}


def graph_module(
    module: nn.Module,
    plan: Plan,
    state: Mapping[str, Tensor],
    dropped: Collection[Branch] = (),
    *,
    layers: Mapping[str, VariationalLayer] = MappingProxyType({}),
    follows_mode: bool = True,
) -> tuple[fx.GraphModule, list[BakedSize], dict[str, str]]:
    """A module that runs the graph on the tensors of ``module``, in train and in eval mode, without some branches.

    It has every tensor name of ``state`` except those of the dropped branches, whether the graph uses it or not.
    ``layers`` are variational layers, by path, which run in place of their operation; where the graph reads the weight
    of one for something else, the layer gives one draw for the whole batch.
    Also returned are the attributes that stand for sizes, and for each batch norm, by path, the name of the attribute
    that lets it be in train mode. ``follows_mode`` is off for a graph that was exported in eval mode, and stays in it.
    """
    builder = _Builder(module, plan, state, dropped, layers, follows_mode=follows_mode)
    return builder.build(), builder.sizes, builder.norms


def refused_sizes(fault: RuntimeError, advice: str) -> ShapeError | None:
    """The error to show instead of a graph's own if the sizes of its inputs are the cause, else None."""
    _, marker, why = str(fault).partition(UNPROVEN)
    given = "sizes for which the network's code may take another path than for its example"
    return ShapeError("inputs", given, f"sizes with {why}", advice) if marker else None


class _Builder:
    def __init__(
        self,
        module: nn.Module,
        plan: Plan,
        state: Mapping[str, Tensor],
        dropped: Collection[Branch],
        layers: Mapping[str, VariationalLayer],
        *,
        follows_mode: bool,
    ) -> None:
        self.module = module
        self.layers = layers
        self.follows_mode = follows_mode
        self.plan = plan
        dropped_names = {name for branch in dropped for name in branch.tensors}
        self.state = {name: tensor for name, tensor in state.items() if name not in dropped_names}
        self.dead = {node for branch in dropped for node in branch.nodes}
        self.skips = {branch.add: branch.skip for branch in dropped}
        self.root = nn.Module()
        self.root.training = module.training
        setattr(self.root, RECALIBRATING, False)
        self.graph = fx.Graph()
        self.sizes: list[BakedSize] = []
        self.norms: dict[str, str] = {}
        self.baked: dict[fx.Node, list[PlannedSize]] = {}
        for size in plan.sizes:
            self.baked.setdefault(size.node, []).append(size)

    def build(self) -> fx.GraphModule:
        source = self.plan
        inputs = [n for n in source.graph.nodes if n.op == "placeholder" and self._attribute(n) is None]
        copied = dict(zip(inputs, _add_inputs(self.graph, *source.inputs), strict=True))
        if self.follows_mode:
            self.training = self.graph.get_attr("training")
            recalibrating = self.graph.get_attr(RECALIBRATING)
            self.any_training = self.graph.call_function(operator.or_, (self.training, recalibrating))
        for node in source.graph.nodes:
            if node in self.skips:
                copied[node] = copied[self.skips[node]]
            elif node not in copied and node not in self.dead:
                copied[node] = self._copy(node, copied)
        self._run_layers(copied)
        built = fx.GraphModule(self.root, self.graph)
        for (
            name,
            tensor,
        ) in self.state.items():  # what the graph does not use stays in the state, under all of its names
            path = name.rpartition(".")[0]
            if path in self.layers:
                _put_at(built, path, self.layers[path])
            else:
                hold_at(built, name, tensor)
        for node, name in source.tensor_names.items():
            if node in copied and name not in self.state:  # fx keeps every buffer it copies in the state
                hold_at(built, name, tensor_at(self.module, name), persistent=False)
        for node, tensor in source.constants.items():
            if node in copied:
                hold_at(built, f"constant_{node.name}", tensor, persistent=False)
        built.training = self.module.training
        return built

    def _run_layers(self, copied: Mapping[fx.Node, fx.Node]) -> None:
        """Put layers in place of the operations on their weights."""
        for source, name in self.plan.tensor_names.items():
            path, _, key = name.rpartition(".")
            if path not in self.layers or source not in copied:
                continue
            _put_at(self.root, path, self.layers[path])
            held = copied[source]
            for user, node in [(user, copied[user]) for user in source.users if key == "weight" and user in copied]:
                if runs_layer(user, self.layers[path], self.plan.tensor_names):
                    with self.graph.inserting_before(node):
                        layer = self.graph.get_attr(path)
                        result = self.graph.call_function(VariationalLayer.run, (layer, node.args[0]))
                    node.replace_all_uses_with(result)
                    self.graph.erase_node(node)
            if key == "weight" and held.users:
                with self.graph.inserting_before(held):
                    drawn = self.graph.call_function(VariationalLayer.draw, (self.graph.get_attr(path),))
                held.replace_all_uses_with(drawn)
            if not held.users:
                self.graph.erase_node(held)

    def _copy(self, node: fx.Node, copied: dict[fx.Node, fx.Node]) -> fx.Node:
        attribute = self._attribute(node)
        if attribute is not None:
            name, tensor = attribute
            if name.rpartition(".")[0] not in self.layers:
                hold_at(self.root, name, tensor, persistent=name in self.state)
            return self.graph.get_attr(name)
        if node.op == "output":
            results = [copied[result] if isinstance(result, fx.Node) else result for result in node.args[0]]  # type: ignore[union-attr]
            output: fx.Node = self.graph.output(pytree.tree_map(results.__getitem__, self.plan.outputs))
            return output
        new = self.graph.node_copy(node, copied.__getitem__)
        for size in self.baked.get(node, ()):
            self._replace_size(new, size)
        if self.follows_mode and isinstance(new.target, OpOverload):
            self._follow_mode(new, node)
        return new

    def _attribute(self, node: fx.Node) -> tuple[str, Tensor] | None:
        """The name and tensor behind a placeholder that is not one of the caller's inputs."""
        if node in self.plan.tensor_names:
            name = self.plan.tensor_names[node]
            return name, tensor_at(self.module, name)
        if node in self.plan.constants:
            return f"constant_{node.name}", self.plan.constants[node]
        return None

    def _replace_size(self, node: fx.Node, size: PlannedSize) -> None:
        """Put an attribute in place of a size in a call's arguments; a size taken from the input is scaled."""
        full = _argument(node, size.place)
        if isinstance(full, int) and full < 0:
            return
        attribute = f"size_{len(self.sizes)}"
        fixed = full if isinstance(full, int) else size.axis.size
        setattr(self.root, attribute, fixed)
        self.sizes.append(BakedSize(attribute, fixed, size.axis))
        with self.graph.inserting_before(node):
            value = self.graph.get_attr(attribute)
            if not isinstance(full, int):
                product = self.graph.call_function(operator.mul, (full, value))
                value = self.graph.call_function(operator.floordiv, (product, fixed))
        _set_argument(node, size.place, value)

    def _follow_mode(self, node: fx.Node, source: fx.Node) -> None:
        """Make an operation that was exported in train mode follow the mode of the module."""
        name = schema_of(node.target).name.removeprefix("aten::")
        flag = _MODE_ARGUMENTS.get(name.removesuffix("_"))
        if flag is not None and _argument(node, (flag,)) is True:
            _set_argument(node, (flag,), self.training)
        keeps_statistics = name == "batch_norm" and _argument(node, ("running_mean",)) is not None
        if keeps_statistics and _argument(node, ("training",)) is True:
            held = next((n for n in node.all_input_nodes if n.op == "get_attr"), None)
            _set_argument(node, ("training",), self.any_training if held is None else self._norm_mode(node, held))
        if name == "scaled_dot_product_attention" and _argument(node, ("dropout_p",)):
            with self.graph.inserting_before(node):
                rate = self.graph.call_function(operator.mul, (_argument(node, ("dropout_p",)), self.training))
            _set_argument(node, ("dropout_p",), rate)
        if name == "add_" and self._counts_batches(source):
            _set_argument(node, ("other",), self._norm_mode(node, node.all_input_nodes[0]))

    def _counts_batches(self, node: fx.Node) -> bool:
        """Whether an addition in place counts the batches of a norm, the first addition to a counter or a later one."""
        while node.op == "call_function" and isinstance(node.args[0], fx.Node):
            node = node.args[0]
        return self.plan.tensor_names.get(node, "").endswith("num_batches_tracked")

    def _norm_mode(self, node: fx.Node, held: fx.Node) -> fx.Node:
        """Whether a batch norm, found by one of its tensors, trains: when the module does, unless its flag is off."""
        while held.op != "get_attr":
            held = held.all_input_nodes[0]
        path = str(held.target).rpartition(".")[0]
        if path not in batch_norms(self.module):
            return self.any_training
        flag = self.norms.setdefault(path, f"norm_{len(self.norms)}")
        setattr(self.root, flag, True)
        with self.graph.inserting_before(node):
            is_on = self.graph.get_attr(flag)
            return self.graph.call_function(operator.and_, (self.any_training, is_on))


def runs_layer(node: fx.Node, layer: VariationalLayer, tensor_names: Mapping[fx.Node, str]) -> bool:
    """Whether an operation on a layer's weight is what the layer itself computes, with its bias and options."""
    schema = schema_of(node.target)
    if schema is None or schema.name.removeprefix("aten::") not in _OPERATIONS:
        return False
    weight, bias = _argument(node, ("weight",)), _argument(node, ("bias",))
    path = tensor_names.get(weight, "").rpartition(".")[0]
    if node.args[0] is weight or tensor_names.get(bias) != (None if layer.bias is None else f"{path}.bias"):
        return False
    names = _OPTIONS & {argument.name for argument in schema.arguments}
    return all(_is_same(_argument(node, (name,)), getattr(layer, name)) for name in names)


def _is_same(given: Any, option: Any) -> bool:  # noqa: ANN401
    """Whether two options are the same; a number stands for itself on every axis."""
    if isinstance(option, tuple | list):
        return list(option) == (list(given) if isinstance(given, tuple | list) else [given] * len(option))
    return bool(given == option)


def _add_inputs(graph: fx.Graph, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[fx.Node]:
    """Makes placeholders for the arguments of a call; returns for each leaf the node that takes it out of them."""
    tops = [(graph.placeholder(f"input_{i}"), value) for i, value in enumerate(args)]
    tops += [(graph.placeholder(name), value) for name, value in kwargs.items()]
    leaves: dict[int, fx.Node] = {}
    for node, value in tops:
        _add_leaves(graph, node, value, leaves)
    return [leaves[leaf] for leaf in range(len(leaves))]


def _add_leaves(graph: fx.Graph, node: fx.Node, value: Any, leaves: dict[int, fx.Node]) -> None:  # noqa: ANN401
    if isinstance(value, int):
        leaves[value] = node
    elif isinstance(value, tuple | list | dict):
        for key, entry in value.items() if isinstance(value, dict) else enumerate(value):
            _add_leaves(graph, graph.call_function(operator.getitem, (node, key)), entry, leaves)


def _argument(node: fx.Node, place: tuple[str | int, ...]) -> Any:  # noqa: ANN401
    schema = schema_of(node.target)
    names = [argument.name for argument in schema.arguments]
    index = names.index(str(place[0]))
    default = schema.arguments[index].default_value if schema.arguments[index].has_default_value() else None
    value = node.args[index] if index < len(node.args) else node.kwargs.get(names[index], default)
    return value[place[1]] if len(place) > 1 else value  # type: ignore[index]


def _set_argument(node: fx.Node, place: tuple[str | int, ...], value: Any) -> None:  # noqa: ANN401
    names = [argument.name for argument in schema_of(node.target).arguments]
    index = names.index(str(place[0]))
    if len(place) > 1:
        whole = list(_argument(node, place[:1]))
        whole[int(place[1])] = value
        value = whole
    if index < len(node.args):
        node.update_arg(index, value)
    else:
        node.update_kwarg(names[index], value)


def tensor_at(module: nn.Module, name: str) -> Tensor:
    """The tensor that a module has under a name with dots."""
    path, _, key = name.rpartition(".")
    tensor: Tensor = getattr(module.get_submodule(path), key)
    return tensor


def hold_at(root: nn.Module, name: str, tensor: Tensor, *, persistent: bool = True) -> None:
    """Give a module a parameter or buffer under a name with dots, with the submodules that the name needs."""
    path, _, key = name.rpartition(".")
    parent = _submodule(root, path)
    if isinstance(tensor, nn.Parameter):
        parent.register_parameter(key, tensor)
    else:
        parent.register_buffer(key, tensor, persistent=persistent)


def _put_at(root: nn.Module, path: str, layer: nn.Module) -> None:
    """Give a module a submodule under a path."""
    parent, _, key = path.rpartition(".")
    child_store(_submodule(root, parent))[key] = layer


def _submodule(root: nn.Module, path: str) -> nn.Module:
    """The submodule at a path, which is made if there is none."""
    for child in path.split(".") if path else []:
        if child not in child_store(root):
            root.add_module(child, nn.Module())
        root = root.get_submodule(child)
    return root
