"""BN3's prior over widths: the probability of keeping each block, given that the block before it is kept."""

import torch
from torch import Tensor, nn

from nestling.distributions.orders.chain import chain_length, chain_log_probs
from nestling.distributions.orders.order import Order
from nestling.distributions.tensors import register
from nestling.errors import ArgumentError
from nestling.tensor_arguments import probabilities, real_tensor


class BernoulliChain(Order):
    """p(width = j) = (1 - pi_{j+1}) prod_{k <= j} pi_k: BN3's prior, a chain of keep probabilities.

    Their shape is (..., K - num_always), one entry per block that can be cut: ``BernoulliChain(torch.full((31,),
    0.95))`` is a chain over 32 blocks.

    Args:
        probs: The probability of keeping each block, given that the one before is kept; a plain tensor.
        logits: The same as logits, which can be a Parameter; pass one of the two.
        num_always: How many blocks the smallest width keeps.

    Raises:
        ArgumentError: If both or neither are passed, or an entry is no probability.

    Examples:
        >>> from nestling.distributions import BernoulliChain
        >>> chain = BernoulliChain(torch.tensor([0.5, 0.5]))
        >>> chain.log_probs().exp()  # of the widths 1, 2 and 3
        tensor([0.5000, 0.2500, 0.2500])
    """

    logits: Tensor

    def __init__(self, probs: Tensor | None = None, *, logits: Tensor | None = None, num_always: int = 1) -> None:
        if isinstance(probs, nn.Parameter):
            raise ArgumentError(
                "probs", "a Parameter", "a plain tensor", "To learn a chain pass logits=nn.Parameter(...)."
            )
        if probs is not None and logits is None:
            logits = torch.logit(probabilities("probs", probs))
        elif logits is not None and probs is None:
            real_tensor("logits", logits)
        else:
            given = "neither" if probs is None else "both"
            raise ArgumentError(
                "probs, logits", given, "exactly one of the two", "Pass keep probabilities or their logits."
            )
        super().__init__(chain_length("probs" if probs is not None else "logits", logits, num_always), num_always)
        register(self, "logits", logits)

    def log_probs(self) -> Tensor:
        """Log-probabilities (..., S) of the widths."""
        return chain_log_probs(self.logits)
