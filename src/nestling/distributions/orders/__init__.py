"""Orders: probability distributions over the width of a group of blocks."""

from collections.abc import Callable

from nestling.distributions.orders.bernoulli_chain import BernoulliChain
from nestling.distributions.orders.downhill import Downhill
from nestling.distributions.orders.estimators import expected_loss, leave_one_out, with_baseline
from nestling.distributions.orders.geometric import Geometric
from nestling.distributions.orders.order import Order, RelaxedOrder, kl
from nestling.distributions.orders.uniform import Uniform

OrderMaker = Callable[[int, int], Order]
"""Makes an order from (num_blocks, num_always)."""
NESTED_KEEP_PROB = 0.95
"""Keep probability of the fixed geometric order."""
ORDERS: dict[str, OrderMaker] = {
    "downhill": Downhill.learned,
    "uniform": lambda num_blocks, num_always: Uniform(num_blocks, num_always=num_always),
    "geometric": lambda num_blocks, num_always: Geometric(num_blocks, NESTED_KEEP_PROB, num_always=num_always),
    "full": lambda num_blocks, num_always: Geometric(num_blocks, 1.0, num_always=num_always),
}
"""The orders that ``nest`` can give groups, by name."""

__all__ = [
    "ORDERS",
    "BernoulliChain",
    "Downhill",
    "Geometric",
    "Order",
    "OrderMaker",
    "RelaxedOrder",
    "Uniform",
    "expected_loss",
    "kl",
    "leave_one_out",
    "with_baseline",
]
