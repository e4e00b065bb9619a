"""BN3's posterior over widths: the Downhill distribution, whose relaxed samples are masks that only go down."""

import math
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nestling.distributions.noise import gumbel_noise
from nestling.distributions.orders.chain import chain_length, chain_log_probs
from nestling.distributions.orders.order import RelaxedOrder, masks_from_steps
from nestling.distributions.tensors import register
from nestling.tensor_arguments import last_size, real_tensor

START_LOGIT = 3.0
"""Initial keep logit of a learned order (BN3): each next block is kept with probability 0.95."""


class Downhill(RelaxedOrder):
    """A chain of keep probabilities sigmoid(``logits``) whose mask can be relaxed at a ``temperature`` (BN3 section 2).

    The relaxed mask z tends to a mask of ones and zeros as the temperature falls to 0, and to a straight slope as it
    rises.

    Args:
        logits: Keep logits (..., K - num_always), one per block that can be cut; a Parameter is learned.
        num_always: How many blocks the smallest width keeps.
        temperature: Of relaxed masks.

    Raises:
        ArgumentError: If the logits are not finite numbers, or the counts do not fit.

    Examples:
        >>> from nestling.distributions import Downhill
        >>> order = Downhill(torch.zeros(3))
        >>> order.keep_probs()
        tensor([1.0000, 0.5000, 0.2500, 0.1250])
        >>> mask = order.rsample((5,))
        >>> tuple(mask.shape), bool((mask.diff() <= 0).all())  # only goes down
        ((5, 4), True)
    """

    logits: Tensor

    def __init__(self, logits: Tensor, *, num_always: int = 1, temperature: float = 0.5) -> None:
        real_tensor("logits", logits)
        super().__init__(chain_length("logits", logits, num_always), num_always)
        register(self, "logits", logits)
        self.temperature = temperature

    @classmethod
    def learned(cls, num_blocks: int, num_always: int) -> Self:
        """An order to be learned, with the initial logits."""
        return cls(nn.Parameter(torch.full((num_blocks - num_always,), START_LOGIT)), num_always=num_always)

    def log_probs(self) -> Tensor:
        """Log-probabilities (..., S) of the widths."""
        return chain_log_probs(self.logits)

    def rsample(
        self, shape: tuple[int, ...] = (), generator: torch.Generator | None = None, *, hard: bool = False
    ) -> Tensor:
        """Draw relaxed masks, differentiable in the logits.

        A hard mask is an exact sample with the gradient of the relaxed mask, which is biased (see docs/orders.md).

        Args:
            shape: How many draws, such as ``(5,)``; one by default.
            generator: Draws the noise; None for torch's own.
            hard: Give straight-through masks of ones and zeros.

        Returns:
            Masks (*shape, ..., K) whose entries only go down.
        """
        log_probs = self.log_probs()
        log_probs = log_probs.expand(*shape, *log_probs.shape)
        steps = relaxed_steps(log_probs, gumbel_noise(log_probs, generator), self.temperature)
        relaxed = masks_from_steps(steps, self.num_always)
        return self.straight_through(relaxed) if hard else relaxed

    def straight_through(self, relaxed: Tensor) -> Tensor:
        """Masks (..., K) of ones and zeros that end where relaxed masks fall most, with the gradients of those."""
        widths = _falls(relaxed[..., self.num_always - 1 :]).argmax(-1) + self.num_always
        return self.masks(widths) + (relaxed - relaxed.detach())

    def log_density(self, masks: Tensor) -> Tensor:
        """Log-density (*shape, ...) of relaxed masks (*shape, ..., K) over their K - num_always free entries.

        -inf where a mask does not strictly fall from 1 to 0 after the blocks that are always kept.
        """
        last_size("masks", real_tensor("masks", masks), self.num_blocks, "block")
        falling = masks[..., self.num_always - 1 :]
        steps = _falls(falling)
        always_one = (masks[..., : self.num_always] == 1).all(-1)
        inside = (steps > 0).all(-1) & always_one
        density = downhill_log_density(
            steps.masked_fill(~inside.unsqueeze(-1), 1.0), self.log_probs(), self.temperature
        )
        return density.masked_fill(~inside, -torch.inf)

    def extra_repr(self) -> str:
        """What ``print`` shows of the order."""
        return f"{super().extra_repr()}, temperature={self.temperature:g}"


def _falls(masks: Tensor) -> Tensor:
    """The difference between each entry of a mask and the next."""
    return masks - F.pad(masks[..., 1:], (0, 1))


def relaxed_steps(log_probs: Tensor, gumbel: Tensor, temperature: float) -> Tensor:
    """c = softmax((log beta + Gumbel) / temperature): the Gumbel logits are **log**-probabilities (FACTS 2.4)."""
    return torch.softmax((log_probs + gumbel) / temperature, dim=-1)


def downhill_log_density(steps: Tensor, log_probs: Tensor, temperature: float) -> Tensor:
    """Log of BN3 eq. 3 with the indices of errata E2 and E3, in the falls ``steps`` c_i = z_i - z_{i+1} (..., S).

    Gamma(S) tau^(S-1) [sum_i beta_i c_i^-tau]^-S prod_i beta_i c_i^-(tau+1); the Jacobian from c to z is 1.
    """
    num_widths = log_probs.shape[-1]
    log_steps = steps.log()
    constant = math.lgamma(num_widths) + (num_widths - 1) * math.log(temperature)
    mixture = torch.logsumexp(log_probs - temperature * log_steps, dim=-1)
    product = (log_probs - (temperature + 1) * log_steps).sum(-1)
    return constant - num_widths * mixture + product
