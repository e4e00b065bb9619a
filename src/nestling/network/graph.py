"""The ATen graph of a module, with the name of the parameter or buffer behind each of its inputs."""

import re
import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from nestling.errors import TraceError
from nestling.network.tensors import Holders


@dataclass(frozen=True)
class Graph:
    """A graph whose placeholders are parameters and buffers (by name), constants, and the caller's inputs.

    ``recorded`` says that it is the path of one example, which other inputs may not take.
    """

    graph: fx.Graph
    tensor_names: dict[fx.Node, str]
    constants: dict[fx.Node, Tensor]
    in_spec: pytree.TreeSpec
    out_spec: pytree.TreeSpec
    recorded: bool = False

    @property
    def nodes(self) -> Iterable[fx.Node]:
        """The nodes in the order they run."""
        return self.graph.nodes

    def where(self, node: fx.Node) -> str:
        """The user's line that made a node, as ' at file:line (code)', or nothing where it is unknown."""
        line = user_line(node.meta.get("stack_trace") or "")
        return f" at {line}" if line else ""


def export_graph(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], *, dynamic: bool = False) -> Graph:
    """Export a module in the mode it is in; ``dynamic`` keeps the sizes of the inputs open where the code allows it."""
    shapes = _open_shapes(args, kwargs) if dynamic else None
    try:
        program = torch.export.export(module, args, kwargs, dynamic_shapes=shapes, strict=False)
    except Exception as fault:  # torch raises errors of many kinds, from the user's code and from its own
        trail = "".join(traceback.format_exception(fault))
        raise TraceError(user_line(str(fault)) or user_line(trail)) from fault
    signature = program.graph_signature
    canonical = Holders(module).canonical
    named = signature.inputs_to_parameters | signature.inputs_to_buffers
    lifted = signature.inputs_to_lifted_tensor_constants
    placeholders = [node for node in program.graph.nodes if node.op == "placeholder"]
    return Graph(
        graph=program.graph,
        tensor_names={node: canonical[named[node.name]] for node in placeholders if node.name in named},
        constants={node: program.constants[lifted[node.name]] for node in placeholders if node.name in lifted},
        in_spec=program.call_spec.in_spec,
        out_spec=program.call_spec.out_spec,
    )


def recorded_graph(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Graph:
    """The operations that run on the example, for code whose path depends on the data and can't be exported."""
    holders = Holders(module)
    tensors = {name: tensor.detach() for name, tensor in holders.tensors().items()}
    leaves, spec = pytree.tree_flatten((args, kwargs))

    def run(tensors: dict[str, Tensor], leaves: list[Any]) -> list[Any]:
        inputs = pytree.tree_unflatten(leaves, spec)
        with holders.replaced(tensors):
            return pytree.tree_leaves(module(*inputs[0], **inputs[1]))

    record = make_fx(run, tracing_mode="real", pre_dispatch=True, _error_on_data_dependent_ops=False)
    graph = record(tensors, leaves).graph
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    names = dict(zip(placeholders, tensors, strict=False))
    return Graph(graph, names, {}, spec, pytree.tree_structure([]), recorded=True)


def user_line(text: str) -> str:
    """The last line of the user's own code that a traceback in a text names, as 'file:line (code)', or nothing."""
    frames = re.findall(r'File "([^"]+)", line (\d+), in \w+\n\s*(.*)', text)
    own = [frame for frame in frames if "/torch/" not in frame[0] and "/nestling/" not in frame[0]]
    if not own:
        return ""
    path, line, code = own[-1]
    return f"{path.rsplit('/', 1)[-1]}:{line} ({code.strip()})"


def shape_of(node: fx.Node) -> tuple[int, ...] | None:
    """Shape of the tensor a node gives, with the example's sizes where they are open; None if it gives no tensor."""
    val = node.meta.get("val")
    return tuple(int(hint(size)) for size in val.shape) if isinstance(val, Tensor) else None


def hint(size: Any) -> Any:  # noqa: ANN401
    """The example's value of a size that may be symbolic or be computed by a node."""
    if isinstance(size, fx.Node):
        return hint(size.meta["val"])
    if isinstance(size, torch.SymInt):
        return size.node.hint
    return size


def _open_shapes(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401
    def open_all(leaf: Any) -> Any:  # noqa: ANN401
        return dict.fromkeys(range(leaf.ndim), torch.export.Dim.AUTO) if isinstance(leaf, Tensor) else None

    positional, named = pytree.tree_map(open_all, (args, kwargs))
    return (*positional, *named.values())
