"""Orders: probability distributions over the width of a group of blocks."""

from nestling.distributions.orders.bernoulli_chain import BernoulliChain
from nestling.distributions.orders.downhill import Downhill
from nestling.distributions.orders.estimators import expected_loss, leave_one_out, with_baseline
from nestling.distributions.orders.geometric import Geometric
from nestling.distributions.orders.order import Order, kl
from nestling.distributions.orders.uniform import Uniform

__all__ = [
    "BernoulliChain",
    "Downhill",
    "Geometric",
    "Order",
    "Uniform",
    "expected_loss",
    "kl",
    "leave_one_out",
    "with_baseline",
]
