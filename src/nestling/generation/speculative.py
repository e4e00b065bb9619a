"""The rule of speculative decoding: which tokens of a draft are kept, so that texts are distributed as the target's.

Leviathan, Kalman and Matias 2023, and Chen et al. 2023. A draft proposes tokens from its distribution q. The target's
distributions p after each of them come from one pass. Each is kept with probability min(1, p / q), and after the first
one that is not, a token is drawn from what p has in excess of q.
"""

import torch
from torch import Tensor


def next_distribution(logits: Tensor, temperature: float) -> Tensor:
    """Probabilities (n, V) of logits (n, V) over a temperature, in float64; at 0 all is on the likeliest token."""
    if temperature == 0:
        return torch.zeros_like(logits, dtype=torch.float64).scatter_(1, logits.argmax(1, keepdim=True), 1.0)
    return (logits.double() / temperature).softmax(1)


def acceptance(target: Tensor, draft: Tensor, proposed: Tensor) -> Tensor:
    """The probability (n,) with which each proposed token is kept: min(1, p / q) at the token.

    Args:
        target: Distributions p (n, V).
        draft: Distributions q (n, V), from which the tokens were drawn.
        proposed: The tokens (n,).
    """
    index = proposed.unsqueeze(1)
    return (target.gather(1, index) / draft.gather(1, index)).squeeze(1).clamp(max=1)


def residual(target: Tensor, draft: Tensor) -> Tensor:
    """The distribution (V,) of the token in place of one that was not kept: max(0, p - q), normalised."""
    excess = (target - draft).clamp(min=0)
    total = excess.sum()
    return excess / total if total > 0 else target  # equal distributions, which refuse nothing except by rounding


def verified(target: Tensor, draft: Tensor, proposed: Tensor, uniforms: Tensor) -> tuple[int, Tensor]:
    """How many of the proposed tokens are kept, and the distribution (V,) of the one token that follows them.

    Args:
        target: Distributions p (n + 1, V), one more than there are proposals.
        draft: Distributions q (n, V).
        proposed: The tokens (n,).
        uniforms: A uniform random number (n,) in [0, 1) for each.
    """
    refused = (uniforms >= acceptance(target[:-1], draft, proposed)).nonzero()
    if not len(refused):
        return len(proposed), target[-1]
    kept = int(refused[0])
    return kept, residual(target[kept], draft[kept])
