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
from nestling.running import Call, ModuleRunner, gap, in_mode, were_trained
from nestling.torch_parts import pytree

Sort = Literal["auto", "norm", "taylor", "none"]
Loss = Callable[[Any, Any], Tensor]


def check_sort(sort: str, batches: object, loss: object) -> None:
    """Raise an error for an unknown way of sorting, and for missing or superfluous batches or loss."""
    if sort not in get_args(Sort):
        needed = f"one of {', '.join(get_args(Sort))}"
        raise ArgumentError("sort", repr(sort), needed, "'none' keeps the units in the order they have.")
    if sort == "taylor" and batches is None:
        needed = "an iterable of (inputs, targets) pairs with sort='taylor'"
        raise ArgumentError("batches", "None", needed, "Pass a few batches of training data, or sort='norm'.")
    for name, value in (("batches", batches), ("loss", loss)):
        if sort != "taylor" and value is not None:
            given = f"a {type(value).__name__} with sort={sort!r}"
            raise ArgumentError(name, given, "left out", "Only sort='taylor' looks at data.")


def chosen_sort(sort: Sort, module: nn.Module) -> Sort:
    """What "auto" means for a network: "norm" if one of its batch norms has been trained on a batch, else "none"."""
    if sort != "auto":
        return sort
    return "norm" if were_trained(module) else "none"


@torch.no_grad()
def sort_units(module: nn.Module, groups: Groups, call: Call, importance: Mapping[str, Tensor]) -> dict[str, str]:
    """Put the units of the free groups in descending order of importance (size,), in place.

    Returns the reasons of the groups that keep their order. Each new order is first tried on disturbed copies of the
    tensors. A group keeps its order if a new one changes what the network computes, because the position of a unit has
    a meaning, or if part of an unsaved buffer belongs to it, which would not fit the weights after loading.
    """
    tensors = Holders(module).tensors()
    orders = {name: torch.argsort(scores, descending=True, stable=True).cpu() for name, scores in importance.items()}
    moved = [group for group in _sortable(groups) if not _in_order(orders[group.name])]
    unsaved = tensors.keys() - module.state_dict().keys()
    pairs = ((group, name) for group in moved for name in group.tensors)
    reasons = {group.name: f"since its buffer {name} is not saved" for group, name in pairs if name in unsaved}
    tried = [group for group in moved if group.name not in reasons]
    permutable = _permutable(_check(module, groups, call), tried, orders) if tried else []
    for group in permutable:
        permute(tensors, group, orders[group.name])
    not_permutable = {group.name for group in tried} - {group.name for group in permutable}
    return reasons | dict.fromkeys(sorted(not_permutable), "since that would change what the network computes")


def norms(module: nn.Module, groups: Groups) -> dict[str, Tensor]:
    """The sum of the absolute weights (size,) that produce each unit, for every free group of units.

    Li et al., Pruning Filters for Efficient ConvNets (2017), section 3.1, over all layers that produce the unit.
    """
    sizes = {name: weight.abs() for name, weight in _weights(Holders(module)).items()}
    return {group.name: _by_unit(group, sizes) for group in _sortable(groups)}


def taylor(
    module: nn.Module, groups: Groups, batches: Iterable[tuple[Call, Any]], loss: Loss | None
) -> dict[str, Tensor]:
    """The squared first-order change of the loss when a unit is removed (size,), averaged over batches, per group.

    Molchanov et al., Importance Estimation for Neural Network Pruning (2019), the joint importance of a set of weights:
    the squared sum of gradient times weight over the weights that produce the unit. The network runs in eval mode, with
    the norms' running statistics.
    """
    network, units = deepcopy(module), _sortable(groups)
    holders = Holders(network)
    leaves = {name: weight.requires_grad_() for name, weight in _weights(holders).items()}
    totals = {group.name: torch.zeros(group.size, dtype=torch.float64) for group in units}
    num_batches = 0
    for num_batches, (call, targets) in enumerate(batches, start=1):
        with torch.enable_grad(), in_mode(network, training=False), holders.replaced(leaves):
            batch_loss = (loss or F.cross_entropy)(network(*call[0], **call[1]), targets)
            gradients = _gradients(batch_loss, list(leaves.values()), num_batches)
        products = {name: gradient * leaves[name].detach() for name, gradient in zip(leaves, gradients, strict=True)}
        for group in units:
            totals[group.name] += _by_unit(group, products).square()
    if not num_batches:
        raise ArgumentError("batches", "none", "at least one (inputs, targets) pair", "An iterator runs only once.")
    return {name: total / num_batches for name, total in totals.items()}


def permute(tensors: Mapping[str, Tensor], group: Group, order: Tensor) -> None:
    """Put the units of a group in another order, in every tensor they are part of: the network computes the same."""
    for piece in group.slices:
        tensor = tensors[piece.tensor]
        rows = piece.rows.to(tensor.device)
        moved = tensor.index_select(piece.axis, rows[order.to(tensor.device)].reshape(-1))
        tensor.index_copy_(piece.axis, rows.reshape(-1), moved)


def _gradients(loss: object, leaves: list[Tensor], number: int) -> tuple[Tensor, ...]:
    """The gradients of the loss of a batch with respect to ``leaves``, in their order."""
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        given = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else f"a {type(loss).__name__}"
        raise ShapeError("loss", given, "a function whose result is a tensor of one number", "Take the mean.")
    if not bool(torch.isfinite(loss)):
        advice = "Check the data, and that the network is in working order."
        raise NonFiniteError("loss", f"{loss.item()} on batch {number}", "finite on every batch", advice)
    if not loss.requires_grad:
        raise ArgumentError("loss", "one without a gradient", "a function of the network's output", "Don't detach it.")
    return torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True)


def _sortable(groups: Groups) -> list[Group]:
    """The free groups of units; layers keep the order in which they run, and bits the order of their levels."""
    return [group for group in groups.free if group.slices]


def _weights(holders: Holders) -> dict[str, Tensor]:
    """The weights of convolutions, linear layers and similar layers, by name; no biases, no weights of norms."""
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
    """A check of the whole network with disturbed weights, and on disturbed inputs if the network runs on them.

    The example may be all zeros, and with zeros a unit in the wrong place would go unnoticed.
    """
    generator = torch.Generator().manual_seed(0)
    disturbed = pytree.tree_map_only(Tensor, partial(_disturbed, generator=generator), call)
    check = CutCheck(ModuleRunner(scratch(module)), groups, [disturbed])
    return check if check.runs() else CutCheck(ModuleRunner(scratch(module)), groups, [call])


def _disturbed(tensor: Tensor, generator: torch.Generator) -> Tensor:
    if not tensor.is_floating_point():
        return tensor
    return tensor + torch.randn(tensor.shape, generator=generator).to(tensor)


def _permutable(check: CutCheck, moved: list[Group], orders: Mapping[str, Tensor]) -> list[Group]:
    """The groups whose units can be put in order, all together, without changing the outputs of the network."""
    if not moved:
        return []
    expected = check.whole()
    if _same(check, expected, moved, orders):
        return moved
    permutable = []
    for group in moved:
        if _same(check, expected, [group], orders):
            permute(check.tensors, group, orders[group.name])
            permutable.append(group)
    return permutable


def _same(check: CutCheck, expected: object, moved: list[Group], orders: Mapping[str, Tensor]) -> bool:
    """Whether the outputs are as expected with some groups put in order, which is undone afterwards."""
    for group in moved:
        permute(check.tensors, group, orders[group.name])
    outputs = check.whole()
    for group in moved:
        permute(check.tensors, group, torch.argsort(orders[group.name]))
    return gap(expected, outputs) <= check.tolerance


def _in_order(order: Tensor) -> bool:
    return torch.equal(order, torch.arange(len(order)))
