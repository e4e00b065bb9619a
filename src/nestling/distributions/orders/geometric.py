"""Nested dropout's order: each block after those that are always kept has the same conditional keep probability."""

import torch
from torch import Tensor

from nestling.arguments import probability
from nestling.distributions.orders.chain import chain_log_probs
from nestling.distributions.orders.order import Order
from nestling.distributions.tensors import register
from nestling.tensor_arguments import floating_dtype


class Geometric(Order):
    """P(width = num_always - 1 + i) = (1 - keep) keep^(i-1), with the remaining mass at full width (erratum E9).

    Args:
        num_blocks: The number of blocks.
        keep_prob: The probability of keeping each next block; 1 always keeps all.
        num_always: How many blocks the smallest width keeps.
        dtype: Of its log-probabilities; None for torch's default.

    Raises:
        RangeError: If it is no probability, or the counts do not fit.

    Examples:
        >>> from nestling.distributions import Geometric
        >>> Geometric(3, 0.5).log_probs().exp()
        tensor([0.5000, 0.2500, 0.2500])
    """

    table: Tensor

    def __init__(
        self, num_blocks: int, keep_prob: float, *, num_always: int = 1, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__(num_blocks, num_always)
        keep_prob = probability("keep_prob", keep_prob)
        keep_probs = torch.full((self.num_widths - 1,), keep_prob, dtype=floating_dtype(dtype))
        register(self, "table", chain_log_probs(torch.logit(keep_probs)))

    def log_probs(self) -> Tensor:
        """Log-probabilities (S,) of the widths."""
        return self.table
