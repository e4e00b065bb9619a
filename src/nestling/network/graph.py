"""The ATen graph of a module, with the name of the parameter or buffer behind each of its inputs."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from nestling.network.tensors import Holders


@dataclass(frozen=True)
class Graph:
    """A graph whose placeholders are parameters and buffers (by name), constants, and the caller's inputs."""

    graph: fx.Graph
    tensor_names: dict[fx.Node, str]
    constants: dict[fx.Node, Tensor]
    in_spec: pytree.TreeSpec
    out_spec: pytree.TreeSpec

    @property
    def nodes(self) -> Iterable[fx.Node]:
        """The nodes in the order they run."""
        return self.graph.nodes

    def where(self, node: fx.Node) -> str:
        """The user's line that made a node, as ' at file:line (code)', or nothing where it is unknown."""
        frames = re.findall(r'File "([^"]+)", line (\d+), in \w+\n\s*(.*)', node.meta.get("stack_trace") or "")
        own = [frame for frame in frames if "/torch/" not in frame[0]] or frames
        if not own:
            return ""
        path, line, code = own[-1]
        return f" at {path.rsplit('/', 1)[-1]}:{line} ({code.strip()})"


def export_graph(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], *, dynamic: bool = False) -> Graph:
    """Export a module in the mode it is in; ``dynamic`` keeps the sizes of the inputs open where the code allows it."""
    shapes = _open_shapes(args, kwargs) if dynamic else None
    program = torch.export.export(module, args, kwargs, dynamic_shapes=shapes, strict=False)
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
