"""A plain network as a graph in JSON with tensors beside it, and a module made of these that runs no other code."""

import math
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

from nestling.errors import ArgumentError, TraceError
from nestling.reading import Groups, Holders, Ids, Plan
from nestling.running import TOLERANCE, Call, PlainGraph, batch_of, gap, with_noise
from nestling.storage.files import json_bytes, parsed
from nestling.storage.plan_json import UnwritableError, plan_from_json, plan_to_json
from nestling.storage.ranges import whole
from nestling.torch_parts import Measured, pytree

Made = TypeVar("Made", bound=PlainGraph)
HIDDEN, CONSTANT = ".hidden.", ".constant."
"""Prefixes of tensors that are not in the network's state: no tensor of a module has a name that starts so."""
LARGEST_GAP = 1e-3
"""The largest difference from the stored answers, relative to the largest of them: kernels differ by machine."""
_COARSE_GAP = 0.05
"""The same for numbers of 16 bits."""
_NUM_ANSWERS = 16
"""So many numbers of each output are stored."""
_MOST_VALUES = 4096
"""Whole numbers of the example are stored up to this many; of more only the largest is."""
_MOST_INPUT = 2**28
"""No input of an example has more numbers."""
_MOST_RUN = 2**34
"""The results of one run on the example may take this many bytes together."""
_UNUSED: dict[str, Any] = {"axes": [], "sizes": [], "branches": {}}
"""What a plan has only if the network can be cut."""
_ADVICE = "Extract the network again."


def graph_to_json(network: nn.Module, call: Call) -> tuple[dict[str, Any], dict[str, Tensor], PlainGraph]:
    """The graph of a plain network in eval mode as JSON, the tensors it needs beside the network's state, its module.

    The module was made of the JSON, and computes what the network does on the call. The sizes of batches stay open if
    the code allows it.
    """
    network, call = deepcopy(network).cpu().eval(), pytree.tree_map_only(Tensor, Tensor.cpu, call)
    last: Exception = TraceError("no example")
    for example, is_open in ((_batch_of_two(call), True), (call, True), (call, False)):
        try:
            record, extra = _record_of(network, example, dynamic=is_open)
            module = graph_from_json(parsed(json_bytes(record)), _unshared(network, record) | extra, PlainGraph)
            with torch.no_grad():
                worst = max(gap(network(*args, **kw), module(*args, **kw)) for args, kw in with_noise(call))
        except Exception as error:  # of torch, or of the network's own code for an example of another size
            last = error
            continue
        if worst <= TOLERANCE:
            return record, extra, module
        last = TraceError(f"its graph differs from it by {worst:.2g} of the largest output")
    why = str(last) or str(last.__cause__)
    raise TraceError(
        f"the network can't be stored as data ({' '.join(why.split())[:200]}). Keep it in Python (nl.extract), or "
        "export it for another runtime."
    ) from last


def graph_from_json(saved: Mapping[str, Any], tensors: Mapping[str, Tensor], made: type[Made]) -> Made:
    """The module of ``graph_to_json``, of the class ``made``; ``tensors`` are the network's state and those beside it.

    What nestling does not write is an error. The module runs once on the example, if that takes little memory, and must
    answer what it did when it was stored.
    """
    constants = [tensors[f"{CONSTANT}{n}"] for n in range(sum(name.startswith(CONSTANT) for name in tensors))]
    hidden = {name.removeprefix(HIDDEN): tensor for name, tensor in tensors.items() if name.startswith(HIDDEN)}
    held = hidden | {name: tensor for name, tensor in tensors.items() if not name.startswith((HIDDEN, CONSTANT))}
    names = {name: name for name in held}
    plan = plan_from_json({**saved, **_UNUSED}, constants, names, Groups([]), _no_list, trust=False)
    module = made(plan, held, buffers=saved["buffers"], hidden=hidden, shared=saved["shared"])
    example = _example_from_json(saved["example"], plan.inputs)
    _check_memory(module, example)
    _check_answers(saved["answers"], _answers(module, example))
    return module


def _record_of(network: nn.Module, example: Call, *, dynamic: bool) -> tuple[dict[str, Any], dict[str, Tensor]]:
    from nestling.reading import export_graph  # here, since it takes long to import and loading does not need it

    graph = export_graph(network, *example, dynamic=dynamic, asserted=True)
    args, kwargs = pytree.tree_unflatten(list(range(graph.in_spec.num_leaves)), graph.in_spec)
    outputs = pytree.tree_unflatten(list(range(graph.out_spec.num_leaves)), graph.out_spec)
    plan = Plan(graph.graph, graph.tensor_names, graph.constants, (args, kwargs), outputs, [], {})
    try:
        record, constants = plan_to_json(plan, _no_list)
        record = {key: value for key, value in record.items() if key not in _UNUSED}
        record["example"] = [_leaf_to_json(leaf) for leaf in pytree.tree_leaves(example)]
    except UnwritableError as error:
        raise TraceError(f"its graph has {error}") from None
    holders, state, parameters = Holders(network), network.state_dict(), dict(network.named_parameters())
    tensors, canonical = holders.tensors(), holders.canonical
    record["buffers"] = [name for name in tensors if name not in parameters]
    record["shared"] = {name: first for name, first in canonical.items() if name != first and name in state}
    record["answers"] = _answers(network, _example_from_json(record["example"], plan.inputs))
    extra = {f"{HIDDEN}{name}": tensor.detach() for name, tensor in tensors.items() if name not in state}
    return record, extra | {f"{CONSTANT}{number}": tensor for number, tensor in enumerate(constants)}


def _unshared(network: nn.Module, record: Mapping[str, Any]) -> dict[str, Tensor]:
    """The state of a network, each tensor once."""
    return {name: tensor for name, tensor in network.state_dict().items() if name not in record["shared"]}


def _batch_of_two(call: Call) -> Call:
    """Two copies of the first example: torch takes a size of one for a constant."""
    return batch_of(*call, 2)


def _no_list(*_: object) -> Ids:
    raise ArgumentError("graph", "one with axes that can be cut", "a plain network's", _ADVICE)


# The example, and the answers to it.


def _leaf_to_json(leaf: Any) -> Any:  # noqa: ANN401
    """An entry of the example: of a tensor what is needed to make one like it."""
    if not isinstance(leaf, Tensor):
        if leaf is not None and not isinstance(leaf, bool | int | float | str):
            raise UnwritableError(f"a {type(leaf).__name__} as an input")
        return {"value": leaf}
    about = {"shape": list(leaf.shape), "dtype": str(leaf.dtype).removeprefix("torch.")}
    if leaf.is_floating_point() or not leaf.numel():
        return about
    return about | ({"numbers": leaf.flatten().tolist()} if leaf.numel() <= _MOST_VALUES else {"most": int(leaf.max())})


def _leaf_from_json(saved: Mapping[str, Any]) -> Any:  # noqa: ANN401
    """A fixed input of the same shape: numbers spread over -2 to 2, or the example's own whole numbers if few."""
    if "value" in saved:
        return saved["value"]
    shape, dtype = [whole(size) for size in saved["shape"]], vars(torch).get(saved["dtype"])
    if not isinstance(dtype, torch.dtype) or math.prod(shape) > _MOST_INPUT:
        raise ArgumentError("example", str(saved)[:60], "a tensor as networks take them", _ADVICE)
    if "numbers" in saved:
        return torch.tensor(saved["numbers"], dtype=dtype).reshape(shape)
    places = torch.arange(math.prod(shape), dtype=torch.float64)
    if dtype.is_floating_point:
        return (places * 0.6180339887498949 % 1 * 4 - 2).to(dtype).reshape(shape)
    return (places % (whole(saved.get("most", 0)) + 1)).to(dtype).reshape(shape)


def _example_from_json(saved: Sequence[Mapping[str, Any]], inputs: Call) -> Call:
    """The arguments of the run on the example, laid out as those of the network."""
    leaves = [_leaf_from_json(entry) for entry in saved]
    example: Call = pytree.tree_map(leaves.__getitem__, inputs)
    return example


@torch.no_grad()
def _answers(module: nn.Module, example: Call) -> list[dict[str, Any]]:
    """For each output its shape and dtype, and some of its numbers, None for one that is not finite."""
    args, kwargs = example
    return [
        {
            "shape": list(leaf.shape),
            "dtype": str(leaf.dtype).removeprefix("torch."),
            "numbers": list(_some(leaf)) if leaf.is_floating_point() else [],
        }
        for leaf in pytree.tree_leaves(module(*args, **kwargs))
        if isinstance(leaf, Tensor)
    ]


def _some(output: Tensor) -> Iterator[float | None]:
    flat = output.flatten()
    for place in range(0, len(flat), max(1, len(flat) // _NUM_ANSWERS)):
        number = float(flat[place])
        yield number if math.isfinite(number) else None


def _check_memory(module: nn.Module, example: Call) -> None:
    """Refuse a graph whose run takes much memory, by the sizes of its results alone."""
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    state = {name: tensor.detach().to("meta") for name, tensor in tensors.items()}
    args, kwargs = pytree.tree_map_only(Tensor, lambda tensor: tensor.to("meta"), example)
    try:
        with torch.no_grad(), Measured(_MOST_RUN):
            functional_call(module, state, args, kwargs)
    except MemoryError as error:
        raise ArgumentError("graph", f"one that takes {error}", "a network's", _ADVICE) from None


def _check_answers(saved: Sequence[Mapping[str, Any]], computed: Sequence[Mapping[str, Any]]) -> None:
    """Refuse a module that answers otherwise than the network did when it was stored."""
    same = len(saved) == len(computed)
    for stored, answer in zip(saved, computed, strict=False):
        limit = _COARSE_GAP if answer["dtype"] in ("float16", "bfloat16") else LARGEST_GAP
        before, now = stored["numbers"], answer["numbers"]
        most = limit * max((abs(number) for number in now if number is not None), default=0.0)
        kinds = [number is None for number in before] == [number is None for number in now]
        same = same and kinds and all(stored[key] == answer[key] for key in ("shape", "dtype"))
        same = same and all(abs(a - b) <= most for a, b in zip(before, now, strict=True) if a is not None)
    if not same:
        raise ArgumentError("answers", "others than when the network was stored", "the same", _ADVICE)
