"""A plan as JSON and tensors, and back: operations are stored by public name, and nothing else can be called."""

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from keyword import iskeyword
from typing import Any

import torch
from torch import Tensor, fx, nn

from nestling.errors import ArgumentError
from nestling.reading import Axis, BakedSize, Branch, Groups, Ids, Plan, PlannedSize
from nestling.storage.ranges import MOST_NUMBERS, whole
from nestling.torch_parts import OpOverload, OpOverloadPacket, schema_of

OWN_NAMESPACES = ("aten", "prims")
"""Namespaces of torch's operations; operations of other libraries run only if the file is trusted."""
MOST_POSITIONS = 2**22
"""The largest total number of positions of a graph's axes."""
END = 2**63 - 1
"""The number with which torch means the end of an axis."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,200}")
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{
        f"operator.{name}": getattr(operator, name)
        for name in "getitem add sub mul floordiv truediv mod neg eq ne lt le gt ge and_ or_ not_".split()
    },
    **{f"torch.{name}": getattr(torch, name) for name in "sym_max sym_min sym_not sym_int sym_float sym_ite".split()},
    **{f"math.{name}": getattr(math, name) for name in ("floor", "ceil", "trunc")},
}
"""Functions on sizes, and on results with several elements, that a graph may call beside torch's operations."""
_NAMES = {function: name for name, function in _FUNCTIONS.items()}
_KINDS = {"dtype": torch.dtype, "layout": torch.layout, "memory_format": torch.memory_format}


class UnwritableError(Exception):
    """A plan that contains something that JSON can't represent."""


Write = Callable[[Ids], Any]
Read = Callable[[Any, int], Ids]


def plan_to_json(plan: Plan, write: Write) -> tuple[dict[str, Any], list[Tensor]]:
    """The plan as JSON, and its constants; ``write`` turns a list of whole numbers into JSON."""
    places = {node: number for number, node in enumerate(plan.graph.nodes)}
    axes = list({id(size.axis): size.axis for size in plan.sizes}.values())
    numbers = {id(axis): number for number, axis in enumerate(axes)}
    if sum(axis.size for axis in axes) > MOST_POSITIONS:
        raise UnwritableError("axes with too many positions")
    record = {
        "nodes": [_node_to_json(plan, node, places) for node in plan.graph.nodes],
        "inputs": [_tree_to_json(tree) for tree in plan.inputs],
        "outputs": _tree_to_json(plan.outputs),
        "axes": [_axis_to_json(axis, write) for axis in axes],
        "sizes": [[places[size.node], list(size.place), numbers[id(size.axis)]] for size in plan.sizes],
        "branches": {name: _branch_to_json(branch, places) for name, branch in plan.branches.items()},
    }
    return record, list(plan.constants.values())


def plan_from_json(
    saved: Mapping[str, Any],
    constants: Sequence[Tensor],
    names: Mapping[str, str],
    groups: Groups,
    read: Read,
    *,
    trust: bool,
) -> Plan:
    """The plan of a module, checked; ``names`` maps each tensor name to its canonical name."""
    graph, tensor_names, constant_of = fx.Graph(), dict[fx.Node, str](), dict[fx.Node, Tensor]()
    nodes: list[fx.Node] = []
    for entry in saved["nodes"]:
        nodes.append(_node_from_json(graph, entry, nodes, trust=trust))
        if "tensor" in entry:
            tensor_names[nodes[-1]] = names[entry["tensor"]]
        elif "constant" in entry:
            constant_of[nodes[-1]] = constants[whole(entry["constant"], 0, len(constants) - 1)]
    if [node for node in nodes if node.op == "output"] != nodes[-1:]:
        raise _unlikely("nodes", "none, or no output at the end")
    results = len(nodes[-1].args[0])  # type: ignore[arg-type]
    others = [
        node for node in nodes if node.op == "placeholder" and node not in tensor_names and node not in constant_of
    ]
    args, kwargs = (_tree_from_json(tree, len(others)) for tree in saved["inputs"])
    if not isinstance(args, tuple) or not isinstance(kwargs, dict) or not all(map(_is_name, kwargs)):
        raise _unlikely("inputs", "other arguments than a function can have")
    if sum(whole(entry["size"], 1) for entry in saved["axes"]) > MOST_POSITIONS:
        raise _unlikely("axes", f"more than {MOST_POSITIONS} positions")
    axes = [_axis_from_json(entry, groups, read) for entry in saved["axes"]]
    return Plan(
        graph,
        tensor_names,
        constant_of,
        (args, kwargs),
        _tree_from_json(saved["outputs"], results),
        [_size_from_json(nodes, axes, *entry) for entry in saved["sizes"]],
        {name: _branch_from_json(nodes, entry, names) for name, entry in saved["branches"].items()},
    )


def sizes_to_json(sizes: Sequence[BakedSize], write: Write) -> dict[str, Any]:
    """The sizes in the code of modules as JSON, by the name of their attribute."""
    return {size.attribute: {"full": size.full, **_axis_to_json(size.axis, write)} for size in sizes}


def sizes_from_json(saved: Mapping[str, Any], module: nn.Module, groups: Groups, read: Read) -> list[BakedSize]:
    """The sizes in the code of a module, checked: each is a whole number that the module has."""
    if sum(whole(entry["size"], 1) for entry in saved.values()) > MOST_POSITIONS:
        raise _unlikely("sizes", f"more than {MOST_POSITIONS} positions")
    submodules, sizes = dict(module.named_modules()), list[BakedSize]()
    for attribute, entry in saved.items():
        path, _, name = attribute.rpartition(".")
        held = vars(submodules[path]).get(name) if path in submodules else None
        if type(held) is not int or held != entry["full"]:
            raise _unlikely("sizes", f"{attribute[:60]!r}, which the network does not have")
        sizes.append(BakedSize(attribute, held, _axis_from_json(entry, groups, read)))
    return sizes


def _node_to_json(plan: Plan, node: fx.Node, places: Mapping[fx.Node, int]) -> dict[str, Any]:
    if node in plan.tensor_names:
        return {"name": node.name, "tensor": plan.tensor_names[node]}
    if node.op == "placeholder":
        numbers = {constant: number for number, constant in enumerate(plan.constants)}
        return {"name": node.name} | ({"constant": numbers[node]} if node in numbers else {})
    if node.op == "output":
        return {"name": node.name, "output": [_value_to_json(value, places) for value in node.args[0]]}  # type: ignore[union-attr]
    if node.op != "call_function":
        raise UnwritableError(f"a node of kind {node.op}")
    args = [_value_to_json(value, places) for value in node.args]
    kwargs = {key: _value_to_json(value, places) for key, value in node.kwargs.items()}
    call = {"name": node.name, "call": _target_to_json(node.target), "args": args}
    return call | ({"kwargs": kwargs} if kwargs else {})


def _node_from_json(graph: fx.Graph, entry: Mapping[str, Any], nodes: Sequence[fx.Node], *, trust: bool) -> fx.Node:
    name = entry["name"]
    if not _is_name(name):
        raise _unlikely("name of a node", repr(name)[:40])
    if "output" in entry:
        return graph.create_node("output", "output", (list(_value_from_json(entry["output"], nodes)),), {}, name)
    if "call" not in entry:
        return graph.create_node("placeholder", name, (), {}, name)
    target = _target_from_json(entry["call"], trust=trust)
    args = tuple(_value_from_json(value, nodes) for value in entry["args"])
    kwargs = {key: _value_from_json(value, nodes) for key, value in entry.get("kwargs", {}).items()}
    _check_call(target, args, kwargs)
    return graph.create_node("call_function", target, args, kwargs, name)


def _target_to_json(target: Any) -> str:  # noqa: ANN401
    if isinstance(target, OpOverload):
        return str(target)
    if target not in _NAMES:
        raise UnwritableError(f"a call of {target}")
    return _NAMES[target]


def _target_from_json(name: str, *, trust: bool) -> Callable[..., Any]:
    """The function of that name: an operation of torch, or one of the few functions on sizes."""
    if name in _FUNCTIONS:
        return _FUNCTIONS[name]
    words = name.split(".")
    if len(words) != 3 or not all(map(_is_name, words)):
        raise _unlikely("call", repr(name)[:80])
    namespace, operation, overload = words
    if namespace not in OWN_NAMESPACES and not trust:
        raise ArgumentError("call", name[:80], "an operation of torch", "Pass trust=True if you know the file.")
    packet = getattr(getattr(torch.ops, namespace, None), operation, None)
    overloaded = getattr(packet, overload, None) if isinstance(packet, OpOverloadPacket) else None
    if not isinstance(overloaded, OpOverload) or _names_a_file(overloaded):
        raise _unlikely("call", name[:80])
    return overloaded


def _names_a_file(operation: OpOverload) -> bool:
    """Whether an operation reads or writes a file, as ``aten.from_file`` does."""
    return any(argument.name == "filename" for argument in schema_of(operation).arguments)


def _check_call(target: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Refuse arguments that the operation does not have: their names become code that runs the graph."""
    if not isinstance(target, OpOverload):
        if kwargs or any(isinstance(value, str | list | dict) for value in args):
            raise _unlikely("call", f"{_NAMES[target]} of something other than sizes")
        return
    names = [argument.name for argument in schema_of(target).arguments]
    if len(args) > len(names) or not kwargs.keys() <= set(names[len(args) :]):
        raise _unlikely("call", f"{target} with arguments that it does not have")


def _value_to_json(value: Any, places: Mapping[fx.Node, int]) -> Any:  # noqa: ANN401
    """An argument of a call; a value that JSON does not have is an object with one entry, whose key is the type."""
    if isinstance(value, int) and not abs(value) <= MOST_NUMBERS and value != END:
        raise UnwritableError("a number beyond bounds")
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": repr(value)}
    if isinstance(value, fx.Node):
        return {"node": places[value]}
    if isinstance(value, list):
        return [_value_to_json(entry, places) for entry in value]
    if isinstance(value, tuple):
        return {"tuple": [_value_to_json(entry, places) for entry in value]}
    if isinstance(value, slice):
        return {"slice": [_value_to_json(entry, places) for entry in (value.start, value.stop, value.step)]}
    if isinstance(value, torch.device):
        return {"device": str(value)}
    for kind, of in _KINDS.items():
        if isinstance(value, of):
            return {kind: str(value).removeprefix("torch.")}
    raise UnwritableError(f"an argument of the type {type(value).__name__}")


def _value_from_json(saved: Any, nodes: Sequence[fx.Node]) -> Any:  # noqa: ANN401
    if isinstance(saved, list):
        return [_value_from_json(entry, nodes) for entry in saved]
    if isinstance(saved, int) and not isinstance(saved, bool):
        return saved if saved == END else whole(saved, -MOST_NUMBERS)
    if not isinstance(saved, dict):
        return saved
    ((kind, content),) = saved.items()
    if kind == "node":
        return nodes[whole(content, 0, len(nodes) - 1)]
    if kind in ("tuple", "slice"):
        make = tuple if kind == "tuple" else lambda ends: slice(*ends)
        return make([_value_from_json(entry, nodes) for entry in content])
    if kind == "float":
        return float(content)
    if kind == "device":
        return torch.device(content)
    constant = vars(torch).get(content)
    if not isinstance(constant, _KINDS[kind]):
        raise _unlikely(kind, repr(content)[:40])
    return constant


def _tree_to_json(tree: Any) -> Any:  # noqa: ANN401
    """Nested tuples, lists and dictionaries of numbers."""
    if type(tree) is int:
        return tree
    if type(tree) in (tuple, list):
        return {type(tree).__name__: [_tree_to_json(entry) for entry in tree]}
    if type(tree) is dict and all(isinstance(key, str) for key in tree):
        return {"dict": {key: _tree_to_json(entry) for key, entry in tree.items()}}
    raise UnwritableError(f"a {type(tree).__name__} of inputs or outputs")


def _tree_from_json(saved: Any, count: int) -> Any:  # noqa: ANN401
    if not isinstance(saved, dict):
        return whole(saved, 0, count - 1)
    ((kind, content),) = saved.items()
    if kind == "dict":
        return {key: _tree_from_json(entry, count) for key, entry in content.items()}
    return {"tuple": tuple, "list": list}[kind](_tree_from_json(entry, count) for entry in content)


def _axis_to_json(axis: Axis, write: Write) -> dict[str, Any]:
    parts = [{name: write(units) for name, units in part.items()} for part in axis.parts]
    return {"size": axis.size, "always": axis.always, "parts": parts}


def _axis_from_json(entry: Mapping[str, Any], groups: Groups, read: Read) -> Axis:
    size = entry["size"]
    always = whole(entry["always"], 0, size)
    parts = [{groups[name].name: read(units, size) for name, units in part.items()} for part in entry["parts"]]
    lengths = [{len(units) for units in part.values()} for part in parts]
    if any(len(equal) != 1 for equal in lengths) or always + sum(sum(equal) for equal in lengths) != size:
        raise _unlikely("axis", f"one of {size} positions with others in its parts")
    return Axis(size, always, tuple(parts))


def _size_from_json(nodes: Sequence[fx.Node], axes: Sequence[Axis], node: Any, place: Any, axis: Any) -> PlannedSize:  # noqa: ANN401
    called = nodes[whole(node, 0, len(nodes) - 1)]
    name, *index = place
    if not isinstance(called.target, OpOverload) or len(index) > 1:
        raise _unlikely("size", f"one in the arguments of {called.name}")
    if name not in [argument.name for argument in schema_of(called.target).arguments]:
        raise _unlikely("size", f"one in an argument that {called.name} does not have")
    return PlannedSize(called, (name, *(whole(position) for position in index)), axes[whole(axis, 0, len(axes) - 1)])


def _branch_to_json(branch: Branch, places: Mapping[fx.Node, int]) -> dict[str, Any]:
    ends = {"add": places[branch.add], "skip": places[branch.skip], "tensors": list(branch.tensors)}
    return ends | {"nodes": sorted(places[node] for node in branch.nodes)}


def _branch_from_json(nodes: Sequence[fx.Node], entry: Mapping[str, Any], names: Mapping[str, str]) -> Branch:
    add, skip, *others = (nodes[whole(n, 0, len(nodes) - 1)] for n in (entry["add"], entry["skip"], *entry["nodes"]))
    return Branch(add, skip, frozenset(others), tuple(names[name] for name in entry["tensors"]))


def _is_name(name: object) -> bool:
    """Whether a value can be a name in code."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None and not iskeyword(name)


def _unlikely(name: str, given: str) -> ArgumentError:
    return ArgumentError(
        name, given, "what nestling writes of a graph", "Restore the file from a copy, or train again."
    )
