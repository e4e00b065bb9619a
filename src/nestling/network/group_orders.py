"""Gives each group an order over its widths."""

from collections.abc import Iterable

from torch import Tensor

from nestling.distributions.orders import ORDERS, Order, OrderMaker
from nestling.errors import ArgumentError
from nestling.reading import Groups


def order_maker(order: str | OrderMaker) -> OrderMaker:
    """The function that makes an order from (num_blocks, num_always), by name or as the caller passed it."""
    if callable(order) and not isinstance(order, type):
        return order
    if not isinstance(order, str) or order not in ORDERS:
        needed = f"one of {', '.join(ORDERS)}, or a function that is called with (num_blocks, num_always)"
        raise ArgumentError("order", repr(order), needed, "'downhill' is learned, the others are fixed.")
    return ORDERS[order]


def orders_of(groups: Groups, make: OrderMaker, tensors: Iterable[Tensor]) -> dict[str, Order]:
    """An order for each free group, on the device of the network's tensors."""
    device = next((tensor.device for tensor in tensors), None)
    return {group.name: make(group.num_blocks, group.num_always).to(device) for group in groups.free}
