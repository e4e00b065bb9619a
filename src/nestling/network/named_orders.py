"""The orders that groups are given, by name."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from nestling.distributions.orders import Downhill, Geometric, Order, Uniform
from nestling.errors import ArgumentError
from nestling.network.group import Groups

OrderMaker = Callable[[int, int], Order]
START_LOGIT = 3.0
"""Keep logit that a learned order starts from (BN3): each next block is kept with probability 0.95."""
NESTED_KEEP_PROB = 0.95
"""Keep probability of the fixed geometric order."""


def order_maker(order: str | OrderMaker) -> OrderMaker:
    """What makes an order of (num_blocks, num_always), by its name or as the caller gave it."""
    if callable(order) and not isinstance(order, type):
        return order
    if not isinstance(order, str) or order not in _ORDERS:
        needed = f"one of {', '.join(_ORDERS)}, or a function that is called with (num_blocks, num_always)"
        raise ArgumentError("order", repr(order), needed, "'downhill' is learned, the others are fixed.")
    return _ORDERS[order]


def orders_of(groups: Groups, make: OrderMaker, tensors: Iterable[Tensor]) -> dict[str, Order]:
    """An order for each free group, on the device of the network's tensors."""
    device = next((tensor.device for tensor in tensors), None)
    return {group.name: make(group.num_blocks, group.num_always).to(device) for group in groups.free}


def _downhill(num_blocks: int, num_always: int) -> Order:
    logits = torch.full((num_blocks - num_always,), START_LOGIT)
    return Downhill(nn.Parameter(logits), num_always=num_always)


_ORDERS: dict[str, OrderMaker] = {
    "downhill": _downhill,
    "uniform": lambda num_blocks, num_always: Uniform(num_blocks, num_always=num_always),
    "geometric": lambda num_blocks, num_always: Geometric(num_blocks, NESTED_KEEP_PROB, num_always=num_always),
    "full": lambda num_blocks, num_always: Geometric(num_blocks, 1.0, num_always=num_always),
}
