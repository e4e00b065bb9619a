"""The chain of conditional keep probabilities that BN3's prior and posterior share."""

from torch import Tensor
from torch.nn import functional as F

from nestling.arguments import count
from nestling.errors import ShapeError


def chain_log_probs(logits: Tensor) -> Tensor:
    """Log-probabilities (..., S) of the widths from the logits (..., S - 1) of keeping each next block.

    p(v_j) = (1 - pi_{j+1}) prod_{k <= j} pi_k, the product over *all* earlier blocks (BN3 eq. 33, errata E4 and E5), as
    sums of log-sigmoids: no logarithm of a small number. An infinite logit makes some widths impossible (-inf).
    """
    reached = F.pad(F.logsigmoid(logits).cumsum(-1), (1, 0))
    return reached + F.pad(F.logsigmoid(-logits), (0, 1))


def chain_length(name: str, values: Tensor, num_always: int) -> int:
    """The number of blocks of a chain: the entries of ``values`` (..., S - 1) plus the blocks that are always kept."""
    if values.ndim < 1:
        needed = "a tensor with one entry per block that can be cut"
        advice = f"For a constant use torch.full((num_blocks - num_always,), {values.item():g})."
        raise ShapeError(name, "a single number", needed, advice)
    return values.shape[-1] + count("num_always", num_always, "how many blocks the smallest width keeps")
