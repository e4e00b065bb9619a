"""What every order shares: keep probabilities, samples and divergences follow from the log-probabilities of widths."""

from abc import ABC, abstractmethod
from functools import cache

import torch
from torch import Tensor

from nestling.arguments import block_counts
from nestling.distributions.divergences import categorical_kl
from nestling.distributions.learned import Learned
from nestling.distributions.noise import gumbel_noise
from nestling.distributions.orders.chain import chain_log_probs
from nestling.distributions.temperature import Tempered
from nestling.errors import RangeError, ShapeError
from nestling.tensor_arguments import whole_tensor


class Order(Learned, ABC):
    """A distribution over the width of ``num_blocks`` blocks, of which the first ``num_always`` are never cut.

    An order *is* its ``log_probs()``; a subclass gives that one method. Legend for shapes: ``K`` is ``num_blocks``, ``S
    = K - num_always + 1`` the number of possible widths, ``...`` the batch of orders (empty for a single one).

    Attributes:
        num_blocks: The number of blocks.
        num_always: How many of them the smallest width keeps.

    Examples:
        >>> from nestling.distributions import Uniform
        >>> order = Uniform(4, num_always=2)
        >>> order.widths().tolist(), round(order.expected_width().item(), 4)
        ([2, 3, 4], 3.0)
        >>> order.masks(torch.tensor(3)).tolist()
        [1.0, 1.0, 1.0, 0.0]
    """

    num_blocks: int
    num_always: int

    def __init__(self, num_blocks: int, num_always: int) -> None:
        super().__init__()
        block_counts(num_blocks, num_always)
        self.num_blocks = num_blocks
        self.num_always = num_always

    @abstractmethod
    def log_probs(self) -> Tensor:
        """Log-probabilities (..., S) of the widths ``num_always``, ..., ``num_blocks``."""

    @property
    def num_widths(self) -> int:
        """The number ``S`` of possible widths."""
        return self.num_blocks - self.num_always + 1

    def widths(self) -> Tensor:
        """The possible widths (S,), smallest first, on the device of the order."""
        return torch.arange(self.num_always, self.num_blocks + 1, device=self.log_probs().device)

    def keep_probs(self) -> Tensor:
        """Probability (..., K) that each block is kept, which is that the width includes it."""
        return masks_from_steps(self.log_probs().exp(), self.num_always)

    def expected_width(self) -> Tensor:
        """Expected number (...) of blocks kept."""
        return self.keep_probs().sum(-1)

    def entropy(self) -> Tensor:
        """Entropy (...) of the width, in nats."""
        log_probs = self.log_probs()
        return -(log_probs.exp() * log_probs.masked_fill(log_probs == -torch.inf, 0)).sum(-1)

    def sample(self, shape: tuple[int, ...] = (), generator: torch.Generator | None = None) -> Tensor:
        """Draw widths.

        Args:
            shape: How many draws, such as ``(100,)``; one by default.
            generator: Draws them; None for torch's own.

        Returns:
            Whole numbers (*shape, ...) from ``num_always`` to ``num_blocks``.
        """
        log_probs = self.log_probs().detach()
        log_probs = log_probs.expand(*shape, *log_probs.shape)
        return (log_probs + gumbel_noise(log_probs, generator)).argmax(-1) + self.num_always

    def log_prob(self, width: Tensor) -> Tensor:
        """Log-probability of widths, with gradients for the order's parameters.

        Args:
            width: Whole numbers (*shape, ...), such as those of ``sample``.

        Returns:
            Log-probabilities in the same shape.

        Raises:
            RangeError: If a width is not possible.
            ShapeError: If the shape does not end in the batch of orders.
        """
        whole_tensor("width", width)
        if bool(((width < self.num_always) | (width > self.num_blocks)).any()):
            needed = f"between {self.num_always} and {self.num_blocks}"
            raise RangeError("width", f"values from {width.min()} to {width.max()}", needed, "Count blocks, not units.")
        log_probs = self.log_probs()
        batch = log_probs.shape[:-1]
        if width.shape[width.ndim - len(batch) :] != batch:
            needed = f"a shape that ends in the batch of orders {tuple(batch)}"
            raise ShapeError("width", f"shape {tuple(width.shape)}", needed, "Give each order of the batch a width.")
        index = (width - self.num_always).unsqueeze(-1)
        return log_probs.expand(*index.shape[:-1], -1).gather(-1, index).squeeze(-1)

    def masks(self, width: Tensor) -> Tensor:
        """Ordered masks: ones up to each width and zeros after it, in the dtype of the order.

        Args:
            width: Whole numbers, in any shape.

        Returns:
            Masks (*width.shape, K).
        """
        blocks = torch.arange(self.num_blocks, device=width.device)
        return (blocks < width.unsqueeze(-1)).to(self.log_probs().dtype)

    def divergence(self, prior_keep: float) -> Tensor:
        """KL in nats from the chain that keeps each next block with the same probability (BN3's Phi1).

        Args:
            prior_keep: That probability, strictly between 0 and 1.

        Returns:
            The divergences (...), one per order of a batch.
        """
        log_probs = self.log_probs()
        return categorical_kl(log_probs, _chain(self.num_widths, prior_keep, log_probs.dtype, log_probs.device))

    def extra_repr(self) -> str:
        """What ``print`` shows of the order."""
        return f"num_blocks={self.num_blocks}, num_always={self.num_always}"


class RelaxedOrder(Tempered, Order, ABC):
    """An order whose mask can be relaxed at a ``temperature``, so that gradients of a loss reach its parameters."""

    @abstractmethod
    def rsample(
        self, shape: tuple[int, ...] = (), generator: torch.Generator | None = None, *, hard: bool = False
    ) -> Tensor:
        """Draw relaxed masks (*shape, ..., K), differentiable in the parameters; ``hard`` gives ones and zeros."""

    @abstractmethod
    def straight_through(self, relaxed: Tensor) -> Tensor:
        """Masks (..., K) of ones and zeros with the gradients of relaxed masks."""


@cache
def _chain(num_widths: int, keep: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    return chain_log_probs(torch.logit(torch.full((num_widths - 1,), keep, dtype=dtype, device=device)))


def kl(q: Order, p: Order) -> Tensor:
    """KL(q || p) in nats between two orders over the same blocks.

    Args:
        q: The posterior; it may keep more blocks always than the prior.
        p: The prior.

    Returns:
        The divergences (...), one per order of a batch.

    Raises:
        ShapeError: If the numbers of blocks differ.
        RangeError: If the posterior allows a width that the prior does not, which makes the divergence infinite.

    Examples:
        >>> from nestling.distributions import Geometric, Uniform, kl
        >>> kl(Uniform(4), Uniform(4)).item(), kl(Uniform(4), Geometric(4, 0.5)).item() > 0
        (0.0, True)
    """
    if q.num_blocks != p.num_blocks:
        given = f"orders over {q.num_blocks} and {p.num_blocks} blocks"
        raise ShapeError("q, p", given, "orders over the same blocks", "Build the prior with the group's num_blocks.")
    if q.num_always < p.num_always:
        given = f"a posterior that may be cut to {q.num_always} blocks and a prior that always keeps {p.num_always}"
        needed = "a posterior whose every width is possible under the prior"
        raise RangeError("num_always", given, needed, "Otherwise the divergence is infinite: use the same num_always.")
    return categorical_kl(q.log_probs(), p.log_probs()[..., q.num_always - p.num_always :])


def masks_from_steps(steps: Tensor, num_always: int) -> Tensor:
    """Turn the weights (..., S) of the widths into the downhill mask (..., K): entry j is the mass at width j or more.

    The sums run from the tail, so that small entries keep their relative accuracy (BN3 Property 1 with c_0 := 0,
    erratum E1), and are clamped to one, which rounding could exceed.
    """
    tail = steps[..., 1:].flip(-1).cumsum(-1).flip(-1).clamp_max(1)
    always = steps.new_ones((*steps.shape[:-1], num_always))
    return torch.cat([always, tail], dim=-1)
