"""Puts the units of each group in order of importance, most important first, so that cuts keep what matters."""

from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from functools import partial
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nestling.errors import ArgumentError, NonFiniteError, ShapeError
from nestling.network.check import CutCheck, scratch
from nestling.reading import Group, Groups, Holders
from nestling.running import ModuleRunner, gap, in_mode
from nestling.torch_parts import pytree

Sort = Literal["auto", "norm", "taylor", "none"]
Loss = Callable[[Any, Any], Tensor]
Call = tuple[tuple[Any, ...], dict[str, Any]]


def check_sort(sort: str, batches: object, loss: object) -> None:
    """Refuse a way of sorting that there is not, and one without the batches that it needs."""
    if sort not in get_args(Sort):
        needed = f"one of {', '.join(get_args(Sort))}"
        raise ArgumentError("sort", repr(sort), needed, "'none' keeps the units in the order they have.")
    if sort == "taylor" and batches is None:
        needed = "an iterable of (inputs, targets) pairs with sort='taylor'"
        raise ArgumentError("batches", "None", needed, "Pass a few batches of training data, or sort='norm'.")
    for name, given in (("batches", batches), ("loss", loss)):
        if sort != "taylor" and given is not None:
            given_text = f"a {type(given).__name__} with sort={sort!r}"
            raise ArgumentError(name, given_text, "left out", "Only sort='taylor' looks at data.")


def chosen_sort(sort: Sort, module: nn.Module) -> Sort:
    """What "auto" means for a network: "norm" if a batch norm of it has seen a batch in training, else "none"."""
    if sort != "auto":
        return sort
    counts = (count for name, count in module.named_buffers() if name.endswith("num_batches_tracked"))
    return "norm" if any(bool(count > 0) for count in counts) else "none"


@torch.no_grad()
def sort_units(module: nn.Module, groups: Groups, call: Call, importance: Mapping[str, Tensor]) -> dict[str, str]:
    """Put the units of the free groups in descending order of importance (size,), in place; why some were left alone.

    Each order is first tried on disturbed copies of the tensors. A group in which it changes what the network computes,
    because the position of a unit has a meaning, keeps the order it has. So does one that owns part of a buffer that is
    not saved with the network, which would be in another order than the weights after loading.
    """
    tensors = Holders(module).tensors()
    orders = {name: torch.argsort(own, descending=True, stable=True).cpu() for name, own in importance.items()}
    moved = [group for group in _sortable(groups) if not _in_order(orders[group.name])]
    lost = tensors.keys() - module.state_dict().keys()
    left = {g.name: f"since its buffer {name} is not saved" for g in moved for name in g.tensors if name in lost}
    tried = [group for group in moved if group.name not in left]
    lawful = _lawful(_check(module, groups, call), tried, orders) if tried else []
    for group in lawful:
        permute(tensors, group, orders[group.name])
    unlawful = {group.name for group in tried} - {group.name for group in lawful}
    return left | dict.fromkeys(sorted(unlawful), "since that would change what the network computes")


def norms(module: nn.Module, groups: Groups) -> dict[str, Tensor]:
    """The sum of the absolute weights (size,) that produce each unit, for every free group of units.

    Li et al., Pruning Filters for Efficient ConvNets (2017), section 3.1, over all layers that produce the unit.
    """
    sizes = {name: weight.abs() for name, weight in _weights(Holders(module)).items()}
    return {group.name: _by_unit(group, sizes) for group in _sortable(groups)}


def taylor(
    module: nn.Module, groups: Groups, batches: Iterable[tuple[Call, Any]], loss: Loss | None
) -> dict[str, Tensor]:
    """How much the loss changes, to first order, when a unit is removed: squared and averaged over batches (size,).

    Molchanov et al., Importance Estimation for Neural Network Pruning (2019), the joint importance of a set of weights:
    the square of the sum of gradient times weight, over the weights that produce the unit. The network runs in eval
    mode, with norms as they are.
    """
    own, units = deepcopy(module), _sortable(groups)
    holders = Holders(own)
    leaves = {name: weight.requires_grad_() for name, weight in _weights(holders).items()}
    totals = {group.name: torch.zeros(group.size, dtype=torch.float64) for group in units}
    number = 0
    for number, (call, targets) in enumerate(batches, start=1):
        with torch.enable_grad(), in_mode(own, training=False), holders.replaced(leaves):
            value = (loss or F.cross_entropy)(own(*call[0], **call[1]), targets)
            slopes = _gradients(value, list(leaves.values()), number)
        products = {name: g * leaves[name].detach() for name, g in zip(leaves, slopes, strict=True)}
        for group in units:
            totals[group.name] += _by_unit(group, products).square()
    if not number:
        raise ArgumentError("batches", "none", "at least one (inputs, targets) pair", "An iterator runs only once.")
    return {name: total / number for name, total in totals.items()}


def permute(tensors: Mapping[str, Tensor], group: Group, order: Tensor) -> None:
    """Put the units of a group in another order, in every tensor that knows them: the network computes the same."""
    for piece in group.slices:
        tensor = tensors[piece.tensor]
        rows = piece.rows.to(tensor.device)
        moved = tensor.index_select(piece.axis, rows[order.to(tensor.device)].reshape(-1))
        tensor.index_copy_(piece.axis, rows.reshape(-1), moved)


def _gradients(value: object, leaves: list[Tensor], number: int) -> tuple[Tensor, ...]:
    """The gradient of the loss of a batch with respect to each tensor, in their order."""
    if not isinstance(value, Tensor) or value.numel() != 1:
        given = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
        raise ShapeError("loss", given, "a function whose result is a tensor of one number", "Take the mean.")
    if not bool(torch.isfinite(value)):
        advice = "Check the data, and that the network is in working order."
        raise NonFiniteError("loss", f"{value.item()} on batch {number}", "finite on every batch", advice)
    if not value.requires_grad:
        raise ArgumentError("loss", "one without a gradient", "a function of the network's output", "Don't detach it.")
    return torch.autograd.grad(value, leaves, allow_unused=True, materialize_grads=True)


def _sortable(groups: Groups) -> list[Group]:
    """The free groups of units; layers keep the order they run in, bits that of their levels."""
    return [group for group in groups.free if group.slices]


def _weights(holders: Holders) -> dict[str, Tensor]:
    """The weights of convolutions, linear layers and the like, by name: neither biases nor the weights of norms."""
    tensors = {name: tensor.detach() for name, tensor in holders.tensors().items()}
    return {name: tensor for name, tensor in tensors.items() if tensor.ndim > 1 and tensor.is_floating_point()}


def _by_unit(group: Group, values: Mapping[str, Tensor]) -> Tensor:
    """The sum (size,) of the values of all weights that produce each unit; zeros if there are none."""
    total = torch.zeros(group.size, dtype=torch.float64)
    for piece in group.slices:
        if not piece.reads and piece.tensor in values:
            value = values[piece.tensor]
            others = [axis for axis in range(value.ndim) if axis != piece.axis]
            total += value.sum(others, dtype=torch.float64).cpu()[piece.rows].sum(1)
    return total


def _check(module: nn.Module, groups: Groups, call: Call) -> CutCheck:
    """The whole network on the example with disturbed weights, and on disturbed inputs if it takes them.

    An example may be all zeros, which a unit in the wrong place would pass on as zeros too.
    """
    noise = torch.Generator().manual_seed(0)
    disturbed = pytree.tree_map_only(Tensor, partial(_disturbed, generator=noise), call)
    check = CutCheck(ModuleRunner(scratch(module)), groups, *disturbed)
    return check if check.runs() else CutCheck(ModuleRunner(scratch(module)), groups, *call)


def _disturbed(tensor: Tensor, generator: torch.Generator) -> Tensor:
    if not tensor.is_floating_point():
        return tensor
    return tensor + torch.randn(tensor.shape, generator=generator).to(tensor)


def _lawful(check: CutCheck, moved: list[Group], orders: Mapping[str, Tensor]) -> list[Group]:
    """Those of the groups whose units can be put in order, together, without a change in what is computed."""
    if not moved:
        return []
    expected = check.whole()
    if _same(check, expected, moved, orders):
        return moved
    lawful = []
    for group in moved:
        if _same(check, expected, [group], orders):
            permute(check.tensors, group, orders[group.name])
            lawful.append(group)
    return lawful


def _same(check: CutCheck, expected: object, moved: list[Group], orders: Mapping[str, Tensor]) -> bool:
    """Whether the network computes what it should when groups are put in order, which is undone afterwards."""
    for group in moved:
        permute(check.tensors, group, orders[group.name])
    found = check.whole()
    for group in moved:
        permute(check.tensors, group, torch.argsort(orders[group.name]))
    return gap(expected, found) <= check.tolerance


def _in_order(order: Tensor) -> bool:
    return torch.equal(order, torch.arange(len(order)))
