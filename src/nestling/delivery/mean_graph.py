"""The operations of an extracted network, in order, with weights at their means and batch norms folded into layers."""

import operator
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from nestling.errors import ArgumentError, NestlingError
from nestling.reading import Cut
from nestling.running import Nested, batch_of, extract
from nestling.running.layers import VariationalLayer, mean_name, variational_layers
from nestling.running.moments import scale_and_shift
from nestling.torch_parts import BATCH_NORM_IN_EVAL

aten = torch.ops.aten
CONVOLUTIONS: dict[Any, int] = {aten.conv1d.default: 1, aten.conv2d.default: 2, aten.conv3d.default: 3}
"""Convolutions, with the number of axes of their positions."""
TRANSPOSED: dict[Any, int] = {
    aten.conv_transpose1d.default: 1,
    aten.conv_transpose2d.input: 2,
    aten.conv_transpose3d.input: 3,
}
"""Transposed convolutions, likewise."""
LINEAR = aten.linear.default
WITHOUT_EFFECT = {aten.clone.default, aten.detach.default, aten.alias.default, aten.contiguous.default}
"""Operations that hand on their input."""
_EXAMPLES = 3
"""The number of examples that the graph is recorded with: not 1, which torch.export would take for a fixed size."""


@dataclass(frozen=True)
class DrawnLayer:
    """A variational layer as the graph runs it: its path, and what a folded batch norm multiplies its outputs by."""

    path: str
    layer: VariationalLayer
    factor: Tensor | None = None

    def scaled(self, squares: Tensor) -> Tensor:
        """Squares that belong to a weight (out, ...), multiplied by the square of the factor."""
        if self.factor is None:
            return squares
        return squares * self.factor.square().view(-1, *[1] * (squares.ndim - 1))


@dataclass
class MeanGraph:
    """A graph of ATen operations from one input to one output; each size but that of the batch is fixed.

    ``tensors`` are the weights and other constants, by the placeholder that stands for them, and ``layers`` are the
    variational layers, by the node that runs them.
    """

    graph: fx.Graph
    input: fx.Node
    output: fx.Node
    tensors: dict[fx.Node, Tensor]
    layers: dict[fx.Node, DrawnLayer]
    example: Tensor

    @property
    def steps(self) -> list[fx.Node]:
        """The nodes that call an operation, in order."""
        return [node for node in self.graph.nodes if node.op == "call_function"]

    def reached(self, starts: Iterable[fx.Node]) -> set[fx.Node]:
        """Some nodes, and those that depend on them."""
        reached = set(starts)
        for node in self.steps:
            if reached.intersection(node.all_input_nodes):
                reached.add(node)
        return reached


def size_of(node: fx.Node) -> tuple[int, ...]:
    """The size of a node's tensor, with -1 for what is open."""
    return tuple(size if isinstance(size, int) else -1 for size in node.meta["val"].shape)


def argument(node: fx.Node, place: int, default: Any = None) -> Any:  # noqa: ANN401
    """An argument of a call by its place; the default if the call has fewer."""
    return node.args[place] if place < len(node.args) else default


def convolution_options(rest: Sequence[Any], rank: int) -> tuple[list[int], list[int], list[int], int]:
    """Stride, padding, dilation and groups of a convolution, from the arguments after its bias."""
    given = (*rest, *[[1], [0], [1], 1][len(rest) :])
    stride, padding, dilation = (list(sizes) * (rank if len(sizes) == 1 else 1) for sizes in given[:3])
    return stride, padding, dilation, given[3]


def mean_graph(nested: Nested, cut: float | Mapping[str, int] | Cut) -> MeanGraph:
    """The graph of what ``extract`` gives at a cut, for batches of any size."""
    args, kwargs = batch_of(*nested.example, _EXAMPLES)
    if kwargs or len(args) != 1 or not isinstance(args[0], Tensor):
        advice = "Export it without uncertainty, or nest a module that takes one tensor."
        raise ArgumentError("nested", "a network with several inputs", "one whose input is one tensor", advice)
    network = extract(nested, cut, uncertainty=True)
    shapes = ({0: torch.export.Dim.DYNAMIC},)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's own
            program = torch.export.export(network, args, dynamic_shapes=shapes, strict=False).run_decompositions({})
    except Exception as error:  # torch raises errors of many kinds if a size can't be left open
        why = " ".join(str(error).split())[:200]
        raise NestlingError(
            f"the network's graph can't be recorded for batches of any size ({why}). Export it without uncertainty."
        ) from None
    means = _read(program, variational_layers(network), args[0])
    if not means.layers:
        given, advice = "a network without variational layers", "Nest it with weights='auto', or export it plain."
        raise ArgumentError("nested", given, "one whose weights are drawn", advice)
    return means


def _read(program: torch.export.ExportedProgram, layers: Mapping[str, VariationalLayer], example: Tensor) -> MeanGraph:
    graph, tensors = program.graph, _tensors(program)
    means = {mean_name(path): path for path in layers}
    names = program.graph_signature.inputs_to_parameters
    drawn: dict[fx.Node, DrawnLayer] = {}
    for node in tensors:
        path = means.get(names.get(node.name, ""))
        if path is None:
            continue
        for user in node.users:
            drawn[user] = DrawnLayer(path, layers[path])
            if user.target not in {LINEAR, *CONVOLUTIONS, *TRANSPOSED} or argument(user, 1) is not node:
                raise NestlingError(
                    f"the weight of {path} is read by {user.target}, not by a linear layer or a convolution. "
                    "Exclude it from the weights that are drawn, or export without uncertainty."
                )
    for node in [*graph.nodes]:
        if node.target in WITHOUT_EFFECT:
            node.replace_all_uses_with(node.args[0])
        elif node.target is BATCH_NORM_IN_EVAL:
            _fold(graph, node, tensors, drawn)
    graph.eliminate_dead_code(lambda node: node.op in ("placeholder", "output"))
    (output,) = next(iter(graph.find_nodes(op="output"))).args[0]
    given = program.graph_signature.user_inputs[0]
    source = next(node for node in graph.nodes if node.name == given)
    return MeanGraph(graph, source, output, tensors, drawn, example)


def _tensors(program: torch.export.ExportedProgram) -> dict[fx.Node, Tensor]:
    """The parameter, buffer or constant behind each placeholder."""
    signature = program.graph_signature
    held = {**program.state_dict, **program.constants}
    places = {
        **signature.inputs_to_parameters,
        **signature.inputs_to_buffers,
        **signature.inputs_to_lifted_tensor_constants,
    }
    nodes = program.graph.find_nodes(op="placeholder")
    return {node: held[places[node.name]].detach() for node in nodes if node.name in places}


def _fold(graph: fx.Graph, norm: fx.Node, tensors: dict[fx.Node, Tensor], drawn: dict[fx.Node, DrawnLayer]) -> None:
    """Fold a batch norm into the layer whose output it alone reads, if there is one."""
    layer, *constants, _, eps = norm.args
    (result,) = norm.users
    if not isinstance(layer, fx.Node) or len(layer.users) > 1 or result.target is not operator.getitem:
        return
    is_dense = layer.target is LINEAR and len(size_of(layer)) == 2
    weight = tensors.get(layer.args[1]) if is_dense or layer.target in CONVOLUTIONS else None  # type: ignore[arg-type]
    if weight is None:
        return
    of_norm: list[Any] = [tensors.get(node) for node in constants]  # type: ignore[arg-type]
    factor, shift = scale_and_shift(of_norm[0], of_norm[1], of_norm[2], of_norm[3], float(str(eps)))
    old_bias = argument(layer, 2)
    if old_bias is not None:
        shift = shift + tensors[old_bias] * factor
    folded = {"weight": weight * factor.view(-1, *[1] * (weight.ndim - 1)), "bias": shift}
    with graph.inserting_before(next(iter(graph.nodes))):
        nodes = [graph.placeholder(f"{layer.name}_{name}") for name in folded]
    tensors.update(zip(nodes, folded.values(), strict=True))
    layer.args = (layer.args[0], *nodes, *layer.args[3:])
    if layer in drawn:
        drawn[layer] = DrawnLayer(drawn[layer].path, drawn[layer].layer, factor)
    result.replace_all_uses_with(layer)
