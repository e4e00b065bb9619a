"""Bias and variance of the gradient estimators of an order, against exact enumeration, for K = 8, 32 and 128 blocks."""

import json
from collections.abc import Callable

import torch
from torch import Tensor, nn

from nestling.distributions import Downhill, expected_loss, with_baseline

DRAWS = 4000
EVALUATIONS = 2


def main() -> None:
    for num_blocks in (8, 32, 128):
        rows = {name: row(gradient, num_blocks) for name, gradient in ESTIMATORS.items()}
        print(json.dumps({"question": "gradient of the keep logits", "blocks": num_blocks, "draws": DRAWS, **rows}))


def row(gradient: Callable[[Downhill, "Loss"], Tensor], num_blocks: int) -> dict[str, float]:
    """Relative bias and the noise of one step, both as norms over the exact gradient's, and the bias's own error."""
    torch.manual_seed(0)
    order = Downhill(nn.Parameter(torch.full((num_blocks - 1,), 3.0, dtype=torch.float64)), temperature=0.5)
    loss = Loss(num_blocks)
    exact = exact_gradient(order, loss)
    drawn = torch.stack([gradient(order, loss) for _ in range(DRAWS)])
    noise = drawn.var(0).sum().sqrt() / exact.norm()
    return {
        "bias": round(float((drawn.mean(0) - exact).norm() / exact.norm()), 4),
        "bias_error": round(float(noise / DRAWS**0.5), 4),
        "noise": round(float(noise), 3),
    }


class Loss:
    """Squared error of a regression on ordered features of falling importance, plus a price on the width."""

    def __init__(self, num_blocks: int) -> None:
        places = torch.arange(num_blocks, dtype=torch.float64)
        self.weights = torch.exp(-4 * places / num_blocks)
        self.weights /= self.weights.sum()
        self.price = 0.05 / num_blocks

    def __call__(self, masks: Tensor) -> Tensor:
        return (1 - masks @ self.weights).square() + self.price * masks.sum(-1)


def exact_gradient(order: Downhill, loss: Loss) -> Tensor:
    return gradient_of(order, expected_loss(order, loss, estimator="enumerate"))


def gradient_of(order: Downhill, value: Tensor) -> Tensor:
    (gradient,) = torch.autograd.grad(value, [order.logits])
    return gradient


def leave_one_out(order: Downhill, loss: Loss) -> Tensor:
    return gradient_of(order, expected_loss(order, loss, estimator="leave_one_out", num_samples=EVALUATIONS))


def straight_through(order: Downhill, loss: Loss) -> Tensor:
    return gradient_of(order, expected_loss(order, loss, estimator="straight_through", num_samples=EVALUATIONS))


def relaxed(order: Downhill, loss: Loss) -> Tensor:
    return gradient_of(order, expected_loss(order, loss, estimator="relaxed", num_samples=EVALUATIONS))


class RunningBaseline:
    """The score function with a running mean of earlier losses as its baseline."""

    def __init__(self) -> None:
        self.mean = torch.zeros((), dtype=torch.float64)

    def __call__(self, order: Downhill, loss: Loss) -> Tensor:
        widths = order.sample((EVALUATIONS,))
        losses = loss(order.masks(widths))
        gradient = gradient_of(order, with_baseline(order.log_prob(widths), losses, self.mean))
        self.mean = torch.lerp(self.mean, losses.mean(), 0.05)
        return gradient


ESTIMATORS: dict[str, Callable[[Downhill, Loss], Tensor]] = {
    "leave_one_out": leave_one_out,
    "running_baseline": RunningBaseline(),
    "straight_through": straight_through,
    "relaxed": relaxed,
}


if __name__ == "__main__":
    main()
