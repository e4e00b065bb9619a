"""Finds residual branches on the graph: layers that can be dropped whole, leaving the stream that runs past them."""

from torch import fx

from nestling.reading.graph import shape_of
from nestling.reading.plan import Branch
from nestling.reading.trace import Trace
from nestling.reading.traced_value import Value


def find_branches(traced: Trace) -> list[Branch]:
    """The innermost residual branches that have tensors, in the order they run."""
    nodes = list(traced.graph.nodes)
    branches = [branch for node in nodes if (branch := _branch(traced, nodes, node)) is not None]
    adds = {branch.add for branch in branches}
    return [branch for branch in branches if not branch.nodes & adds]


def stages(branches: list[Branch]) -> list[list[Branch]]:
    """The branches by the shape of the stream they add to."""
    by_shape: dict[tuple[int, ...] | None, list[Branch]] = {}
    for branch in branches:
        by_shape.setdefault(shape_of(branch.add), []).append(branch)
    return list(by_shape.values())


def _branch(traced: Trace, nodes: list[fx.Node], node: fx.Node) -> Branch | None:
    if node.op != "call_function" or getattr(node.target, "__name__", "") not in ("add.Tensor", "add_.Tensor"):
        return None
    operands = [operand for operand in node.args[:2] if isinstance(operand, fx.Node) and _fits(traced, operand, node)]
    if len(operands) < 2 or operands[0] is operands[1]:
        return None
    before = nodes[: nodes.index(node)]
    candidates = [_dropped(traced, before, node, operand, skip) for operand, skip in (operands[::-1], operands)]
    with_tensors = [candidate for candidate in candidates if candidate.tensors]
    return max(with_tensors, key=lambda candidate: len(candidate.nodes), default=None)


def _fits(traced: Trace, operand: fx.Node, add: fx.Node) -> bool:
    value = traced.values[operand]
    return isinstance(value, Value) and value.from_input and value.shape == shape_of(add)


def _dropped(traced: Trace, before: list[fx.Node], add: fx.Node, operand: fx.Node, skip: fx.Node) -> Branch:
    """The nodes and tensors that are no longer needed if ``add`` gives ``skip`` instead of the sum."""
    dead: set[fx.Node] = set()
    for node in reversed(before):
        needed_only_here = node.users and all(user in dead or (user is add and node is operand) for user in node.users)
        if needed_only_here and node is not skip:
            dead.add(node)
    names = traced.graph.tensor_names
    owners = {names[node].rpartition(".")[0] for node in dead if node in names}
    for node, name in names.items():
        if name.rpartition(".")[0] in owners and all(not user.users for user in node.users):
            dead |= {node, *node.users}
    tensors = tuple(dict.fromkeys(names[node] for node in before if node in dead and node in names))
    return Branch(add, skip, frozenset(dead), tensors)
