"""The ATen graph of a module, with the name of the parameter or buffer behind each of its inputs."""

import logging
import operator
import re
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export import ExportedProgram

from nestling.errors import TraceError
from nestling.reading.attribute_sizes import noting_attributes
from nestling.reading.holders import Holders
from nestling.torch_parts import ASSERTED_METADATA, SIZES_ASSERTED, example_size, exported, pytree, recorded


@dataclass(frozen=True)
class Graph:
    """A graph whose placeholders are parameters and buffers (by name), constants, and the caller's inputs.

    ``recorded`` means that the graph is the path of one example, and that other inputs may take another path.
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
        """The user's line that made a node, as ' at file:line (code)'; empty if the line is unknown."""
        line = user_line(node.meta.get("stack_trace") or "")
        return f" at {line}" if line else ""


UNPROVEN = "the network's code may take another path for inputs of these sizes than for the example: it needs "
"""How the error of a graph begins that was called with sizes for which it does not hold."""


def export_graph(
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    dynamic: bool = False,
    sides: bool = False,
    asserted: bool = False,
) -> Graph:
    """Export a module in the mode it is in; ``dynamic`` keeps the sizes of the inputs open where the code allows it.

    Of images only the batch size stays open, unless ``sides`` is set. A dynamic graph, or one with ``asserted`` sizes,
    raises an error for sizes that could take another path through the code.
    """
    shapes = _open_shapes(args, kwargs, sides) if dynamic else None
    try:
        with quiet_torch_logs(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The tensor attributes")  # torch misreads the list of an LSTM's weights
            program = exported(Traced(module), (args, kwargs), {}, shapes)
    except Exception as fault:  # torch raises errors of many kinds, from the user's code and from torch's
        trail = "".join(traceback.format_exception(fault))
        raise TraceError(user_line(str(fault)) or user_line(trail)) from fault
    _inline(program.graph_module)
    for node in program.graph.find_nodes(op="call_function", target=ASSERTED_METADATA):
        program.graph.erase_node(node)  # the assertion fixes the precision; the check runs in another
    if dynamic or asserted:
        _assert_sizes(program)
    program.graph.eliminate_dead_code()
    signature = program.graph_signature
    canonical = Holders(module).canonical
    named = signature.inputs_to_parameters | signature.inputs_to_buffers
    names = {placeholder: canonical[name.removeprefix("module.")] for placeholder, name in named.items()}
    lifted = signature.inputs_to_lifted_tensor_constants
    placeholders = [node for node in program.graph.nodes if node.op == "placeholder"]
    return Graph(
        graph=program.graph,
        tensor_names={node: names[node.name] for node in placeholders if node.name in names},
        constants={node: program.constants[lifted[node.name]] for node in placeholders if node.name in lifted},
        in_spec=pytree.tree_structure((args, kwargs)),
        out_spec=program.call_spec.out_spec,
    )


class Traced(nn.Module):
    """A module wrapped for the export, so that torch does not print the graph to stderr where tracing fails.

    It takes both kinds of arguments as values: torch can't leave the sizes of arguments by name open.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401
        """Run the module, and turn torch's errors into ``TraceError``, for which torch does not print the graph."""
        try:
            with noting_attributes(self.module):
                return self.module(*args, **kwargs)
        except RuntimeError as fault:
            raise TraceError(str(fault)) from fault


_tracing: ContextVar[bool] = ContextVar("tracing", default=False)
"""Whether this thread or task is inside ``quiet_torch_logs``."""


def _is_logged(record: logging.LogRecord) -> bool:
    return not _tracing.get() or record.levelno > logging.ERROR


@contextmanager
def quiet_torch_logs() -> Iterator[None]:
    """Keep torch's loggers in this thread from reporting why an export fails: ``TraceError`` says it."""
    loggers = logging.root.manager.loggerDict
    for name in [name for name in loggers if name.partition(".")[0] == "torch"]:
        for handler in getattr(loggers[name], "handlers", ()):
            handler.addFilter(_is_logged)
    token = _tracing.set(True)
    try:
        yield
    finally:
        _tracing.reset(token)


def recorded_graph(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Graph:
    """The operations that run on the example, for code whose path depends on the data and can't be exported."""
    holders = Holders(module)
    tensors = {name: tensor.detach() for name, tensor in holders.tensors().items()}
    leaves, spec = pytree.tree_flatten((args, kwargs))

    def run(tensors: dict[str, Tensor], leaves: list[Any]) -> list[Any]:
        inputs = pytree.tree_unflatten(leaves, spec)
        with holders.replaced(tensors):
            return pytree.tree_leaves(module(*inputs[0], **inputs[1]))

    graph = recorded(run, tensors, leaves)
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    names = dict(zip(placeholders, tensors, strict=False))
    return Graph(graph, names, {}, spec, pytree.tree_structure([]), recorded=True)


def user_line(text: str) -> str:
    """The last line of the user's code in the traceback that a text contains, as 'file:line (code)', or ''."""
    frames = re.findall(r'File "([^"]+)", line (\d+), in \w+\n\s*(.*)', text)
    user_frames = [frame for frame in frames if "/torch/" not in frame[0] and "/nestling/" not in frame[0]]
    if not user_frames:
        return ""
    path, line, code = user_frames[-1]
    return f"{path.rsplit('/', 1)[-1]}:{line} ({code.strip()})"


def shape_of(node: fx.Node) -> tuple[int, ...] | None:
    """Shape of a node's output, with the example's sizes where sizes are open; None if the output is no tensor."""
    tensor = node.meta.get("val")
    return tuple(int(hint(size)) for size in tensor.shape) if isinstance(tensor, Tensor) else None


def hint(size: Any) -> Any:  # noqa: ANN401
    """The example's value of a size that may be symbolic or be computed by a node."""
    if isinstance(size, fx.Node):
        return hint(size.meta["val"])
    if isinstance(size, torch.SymInt):
        return example_size(size)
    return size


def _inline(graph_module: fx.GraphModule) -> None:
    """Replace each ``no_grad`` or ``autocast`` subgraph by its nodes; the results of ``no_grad`` are detached."""
    graph = graph_module.graph
    for node in list(graph.nodes):
        name = str(node.target)
        if node.op != "call_function" or name not in ("wrap_with_set_grad_enabled", "wrap_with_autocast"):
            continue
        operands = enumerate(node.args)
        body_argument = next(i for i, operand in operands if isinstance(operand, fx.Node) and operand.op == "get_attr")
        body = getattr(graph_module, node.args[body_argument].target)
        _inline(body)
        without_gradient = name == "wrap_with_set_grad_enabled" and node.args[0] is False
        results = _copy_before(node, body.graph, node.args[body_argument + 1 :], detached=without_gradient)
        for user in list(node.users):
            assert user.target is operator.getitem
            user.replace_all_uses_with(results[user.args[1]])
            graph.erase_node(user)
        graph.erase_node(node)


def _copy_before(node: fx.Node, body: fx.Graph, operands: Sequence[Any], *, detached: bool) -> list[Any]:
    """Copy the nodes of a graph in front of ``node`` and return their results."""
    remaining = iter(operands)
    copied: dict[fx.Node, Any] = {}
    with node.graph.inserting_before(node):
        for inner in body.nodes:
            if inner.op == "placeholder":
                copied[inner] = next(remaining)
            elif inner.op != "output":
                copied[inner] = node.graph.node_copy(inner, copied.__getitem__)
        (returned,) = next(inner for inner in body.nodes if inner.op == "output").args
        results = [copied[result] if isinstance(result, fx.Node) else result for result in returned]
        return [_detached(result) if detached else result for result in results]


def _detached(result: Any) -> Any:  # noqa: ANN401
    if not isinstance(result, fx.Node) or not isinstance(result.meta.get("val"), Tensor):
        return result
    node = result.graph.call_function(torch.ops.aten.detach.default, (result,))
    node.meta = dict(result.meta)
    return node


def _assert_sizes(program: ExportedProgram) -> None:
    """Assert in a graph the sizes that torch keeps beside it, and name the inputs in what torch asserts itself."""
    graph, names = program.graph, dict[str, str]()
    ranges = {str(symbol): limits for symbol, limits in program.range_constraints.items()}
    first = next(node for node in graph.nodes if node.op != "placeholder")
    with graph.inserting_before(first):
        for node in graph.find_nodes(op="placeholder"):
            tensor = node.meta.get("val")
            if node.name not in program.graph_signature.user_inputs or not isinstance(tensor, Tensor):
                continue
            sizes: Sequence[Any] = tensor.shape
            for axis, size in enumerate(sizes):
                name = f"{node.name}.shape[{axis}]"
                if names.setdefault(str(size), name) != name and isinstance(size, torch.SymInt):
                    continue  # an operation pairs it with an axis whose range is asserted
                for compare, limit in _limits(size, ranges.get(str(size))):
                    value = graph.call_function(torch.ops.aten.sym_size.int, (node, axis))
                    value.meta["val"] = int(hint(size))
                    holds = graph.call_function(compare, (value, limit))
                    text = f"{UNPROVEN}{name} {_SIGNS[compare]} {limit}"
                    graph.call_function(SIZES_ASSERTED, (holds, text))
    for node in graph.find_nodes(op="call_function", target=SIZES_ASSERTED):
        if not node.args[1].startswith(UNPROVEN):
            match = re.search(r"expression (.*) on node", node.args[1])
            condition = re.sub(r"\bs\d+\b", lambda m: names.get(m[0], m[0]), match[1] if match else node.args[1])
            node.update_arg(1, UNPROVEN + condition)


_SIGNS = {operator.eq: "==", operator.le: "<=", operator.ge: ">="}


def _limits(size: int | torch.SymInt, limits: Any) -> list[tuple[Callable[..., Any], int]]:  # noqa: ANN401
    """The comparisons with whole numbers that a size must pass; torch counts 0 and 1 as below any range."""
    if isinstance(size, int):
        return [(operator.eq, size)]
    if limits is None:
        return []
    if limits.is_singleton():
        return [(operator.eq, int(limits.lower))]
    least = [(operator.ge, int(limits.lower))] if limits.lower > 2 else []
    return least + ([(operator.le, int(limits.upper))] if limits.upper.is_Integer else [])


def _open_shapes(args: tuple[Any, ...], kwargs: dict[str, Any], sides: bool) -> Any:  # noqa: ANN401
    """All sizes of all inputs left open, laid out as the arguments are; those of images only if ``sides`` is set.

    With open image sides the export takes up to twice as long, and attention does not need them.
    """

    def open_all(leaf: Any) -> Any:  # noqa: ANN401
        if not isinstance(leaf, Tensor):
            return None
        return dict.fromkeys(range(leaf.ndim if leaf.ndim < 4 or sides else 1), torch.export.Dim.AUTO)

    return pytree.tree_map(open_all, {"args": args, "kwargs": kwargs})  # as Traced takes them
