"""Four ways to estimate an expected loss over an order's widths so that its gradient reaches the order's parameters."""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from nestling.arguments import count
from nestling.distributions.orders.downhill import Downhill
from nestling.distributions.orders.order import Order
from nestling.errors import ArgumentError, RangeError, ShapeError

Estimator = Literal["leave_one_out", "enumerate", "straight_through", "relaxed"]
Loss = Callable[[Tensor], Tensor]


def expected_loss(
    order: Order,
    loss: Loss,
    *,
    estimator: Estimator = "leave_one_out",
    num_samples: int = 2,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Estimate E[loss(mask)] over one order, so that gradients reach the order's parameters.

    ``leave_one_out`` and ``enumerate`` have unbiased gradients; those of ``enumerate`` have no variance but take one
    evaluation per width. ``straight_through`` and ``relaxed`` need a Downhill order and are biased. docs/orders.md says
    what each costs and when to use it.

    Args:
        order: A distribution over K blocks.
        loss: Maps masks (n, K) to losses (n,).
        estimator: One of the four.
        num_samples: How many widths are drawn, at least 2 for ``leave_one_out``; ``enumerate`` draws none.
        generator: Draws them; None for torch's own.

    Returns:
        The estimate, a scalar with gradients.

    Raises:
        ArgumentError: If there is no such estimator, it does not go with the order, or the loss has another shape.

    Examples:
        >>> from nestling.distributions import Uniform, expected_loss
        >>> mean_width = expected_loss(Uniform(4), lambda masks: masks.sum(-1), estimator="enumerate")
        >>> round(mean_width.item(), 4)
        2.5
    """
    if estimator == "enumerate":
        return order.log_probs().exp() @ _losses(loss, order.masks(order.widths()))
    count("num_samples", num_samples, "how many widths to draw, two or more for leave_one_out")
    if estimator == "leave_one_out":
        widths = order.sample((num_samples,), generator)
        return leave_one_out(order.log_prob(widths), _losses(loss, order.masks(widths)))
    if estimator not in ("straight_through", "relaxed"):
        needed = "'leave_one_out', 'enumerate', 'straight_through' or 'relaxed'"
        raise ArgumentError("estimator", repr(estimator), needed, "See docs/orders.md for what each one does.")
    if not isinstance(order, Downhill):
        needed = "a Downhill order for a relaxed estimator"
        raise ArgumentError(
            "order", type(order).__name__, needed, "Use leave_one_out or enumerate for any other order."
        )
    masks = order.rsample((num_samples,), generator, hard=estimator == "straight_through")
    return _losses(loss, masks).mean()


def leave_one_out(log_probs: Tensor, losses: Tensor) -> Tensor:
    """Mean of losses whose gradient adds the score function of the draws.

    The baseline of each draw is the mean loss of the other draws, so the gradient is unbiased and needs no tuning.

    Args:
        log_probs: Log-probabilities (n,) of the draws. If several orders are drawn together, the sums of theirs.
        losses: One loss (n,) per draw, at least two.

    Returns:
        The mean loss, with the gradient of its expectation.

    Raises:
        RangeError: If there is a single draw.
        ShapeError: If there is not one loss per draw.

    Examples:
        >>> from nestling.distributions import Downhill, leave_one_out
        >>> order = Downhill(torch.nn.Parameter(torch.zeros(3)))
        >>> widths = order.sample((4,))
        >>> loss = leave_one_out(order.log_prob(widths), widths.float())
        >>> loss.backward()
        >>> tuple(order.logits.grad.shape)
        (3,)
    """
    num_samples = losses.shape[0] if losses.ndim else 1
    if num_samples < 2:
        raise RangeError(
            "losses", f"{num_samples} draw", "at least 2 draws", "Or use with_baseline and a running mean."
        )
    means_of_others = (losses.sum(0) - losses) / (num_samples - 1)
    return with_baseline(log_probs, losses, means_of_others)


def with_baseline(log_probs: Tensor, losses: Tensor, baseline: Tensor) -> Tensor:
    """Mean of losses whose gradient adds the score function against a baseline.

    With a running mean of earlier losses as the baseline, one draw per step is enough.

    Args:
        log_probs: Log-probabilities (n,) of the draws.
        losses: One loss (n,) per draw.
        baseline: Any value that does not depend on the draw, broadcastable to the losses.

    Returns:
        The mean loss, with the gradient of its expectation.

    Raises:
        ShapeError: If the shapes do not fit each other.

    Examples:
        >>> from nestling.distributions import with_baseline
        >>> log_probs = torch.zeros(1, requires_grad=True)
        >>> with_baseline(log_probs, torch.tensor([3.0]), torch.tensor(2.0)).backward()
        >>> log_probs.grad  # the loss less the baseline
        tensor([1.])
    """
    advantage = (losses - baseline).detach()
    if not log_probs.shape == losses.shape == advantage.shape:
        given = f"shape {tuple(losses.shape)} for log_probs of shape {tuple(log_probs.shape)}"
        needed = "one loss per log-probability, and a baseline broadcastable to the losses"
        raise ShapeError("losses", given, needed, "Squeeze axes of size 1, and average over the data, not the draws.")
    score = advantage * log_probs
    return (losses + (score - score.detach())).mean()


def _losses(loss: Loss, masks: Tensor) -> Tensor:
    losses = loss(masks)
    if losses.shape != masks.shape[:-1]:
        given = f"losses of shape {tuple(losses.shape)} for masks of shape {tuple(masks.shape)}"
        needed = "a function that gives one loss per mask"
        raise ShapeError("loss", given, needed, "Average over the data, not over the masks.")
    return losses
