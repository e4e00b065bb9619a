"""Finds residual branches on the graph: layers that can be dropped whole, leaving the stream that runs past them."""

from torch import fx

from nestling.reading.graph import shape_of
from nestling.reading.plan import Branch
from nestling.reading.trace import Trace
from nestling.reading.traced_value import Value


def find_branches(found: Trace) -> list[Branch]:
    """The innermost residual branches with tensors of their own, in the order they run."""
    nodes = list(found.graph.nodes)
    branches = [branch for node in nodes if (branch := _branch(found, nodes, node)) is not None]
    adds = {branch.add for branch in branches}
    return [branch for branch in branches if not branch.nodes & adds]


def stages(branches: list[Branch]) -> list[list[Branch]]:
    """The branches by the shape of the stream they add to."""
    by_shape: dict[tuple[int, ...] | None, list[Branch]] = {}
    for branch in branches:
        by_shape.setdefault(shape_of(branch.add), []).append(branch)
    return list(by_shape.values())


def _branch(found: Trace, nodes: list[fx.Node], node: fx.Node) -> Branch | None:
    if node.op != "call_function" or getattr(node.target, "__name__", "") not in ("add.Tensor", "add_.Tensor"):
        return None
    sides = [side for side in node.args[:2] if isinstance(side, fx.Node) and _fits(found, side, node)]
    if len(sides) < 2 or sides[0] is sides[1]:
        return None
    before = nodes[: nodes.index(node)]
    options = [_dropped(found, before, node, side, other) for side, other in (sides[::-1], sides)]
    own = [option for option in options if option.tensors]
    return max(own, key=lambda option: len(option.nodes), default=None)


def _fits(found: Trace, side: fx.Node, add: fx.Node) -> bool:
    value = found.values[side]
    return isinstance(value, Value) and value.from_input and value.shape == shape_of(add)


def _dropped(found: Trace, before: list[fx.Node], add: fx.Node, side: fx.Node, skip: fx.Node) -> Branch:
    """What dies if ``add`` gives ``skip`` instead of the sum."""
    dead: set[fx.Node] = set()
    for node in reversed(before):
        needed_only_here = node.users and all(user in dead or (user is add and node is side) for user in node.users)
        if needed_only_here and node is not skip:
            dead.add(node)
    names = found.graph.tensor_names
    owners = {names[node].rpartition(".")[0] for node in dead if node in names}
    for node, name in names.items():
        if name.rpartition(".")[0] in owners and all(not user.users for user in node.users):
            dead |= {node, *node.users}
    tensors = tuple(dict.fromkeys(names[node] for node in before if node in dead and node in names))
    return Branch(add, skip, frozenset(dead), tensors)
