"""FN3's ordered dropout: every width is equally likely."""

import math

import torch
from torch import Tensor

from nestling.distributions.orders.order import Order
from nestling.distributions.tensors import register
from nestling.tensor_arguments import floating_dtype


class Uniform(Order):
    """P(width = j) = 1 / S: block m of M is kept with probability (M + 1 - m) / M (FN3 2.2, erratum E18).

    Args:
        num_blocks: The number of blocks.
        num_always: How many blocks the smallest width keeps.
        dtype: Of its log-probabilities; None for torch's default.

    Raises:
        RangeError: If the counts do not fit.

    Examples:
        >>> from nestling.distributions import Uniform
        >>> Uniform(4).keep_probs()
        tensor([1.0000, 0.7500, 0.5000, 0.2500])
    """

    table: Tensor

    def __init__(self, num_blocks: int, *, num_always: int = 1, dtype: torch.dtype | None = None) -> None:
        super().__init__(num_blocks, num_always)
        register(self, "table", torch.full((self.num_widths,), -math.log(self.num_widths), dtype=floating_dtype(dtype)))

    def log_probs(self) -> Tensor:
        """Log-probabilities (S,) of the widths."""
        return self.table
