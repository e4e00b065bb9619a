"""The terms of every objective: likelihood of a batch, divergences of weights and orders, and their record."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from nestling.distributions import (
    bn3_refitted_regulariser,
    bn3_regulariser,
    hierarchical_kl,
    log_uniform_kl,
    molchanov_kl,
)
from nestling.distributions.gates import gates_of
from nestling.errors import ArgumentError
from nestling.prediction import Likelihood
from nestling.reading import Cut
from nestling.running import Nested, pair_of, picked
from nestling.torch_parts import pytree
from nestling.training.recipe import Recipe, WeightKL

Divergence = Callable[[Tensor], Tensor]
WEIGHT_KLS: dict[WeightKL, Divergence] = {
    "log_uniform": log_uniform_kl,
    "molchanov": molchanov_kl,
    "hierarchical": hierarchical_kl,
    "bn3": bn3_regulariser,
    "bn3_refitted": bn3_refitted_regulariser,
}


@dataclass(frozen=True)
class Step:
    """What the objective of a step depends on: a network, a batch and a recipe; ``scale`` weighs the divergences."""

    nested: Nested
    inputs: Any
    targets: Tensor
    recipe: Recipe
    likelihood: Likelihood
    scale: float
    generator: torch.Generator | None = None
    teacher: nn.Module | None = None

    @property
    def weight_kl(self) -> Divergence:
        """The divergence of the weights."""
        return WEIGHT_KLS[self.recipe.weight_kl]


@dataclass(frozen=True)
class Terms:
    """The loss of a training step, and what it is made of.

    Attributes:
        loss: What is minimised, a scalar with gradients.
        nll: The mean negative log-likelihood over the widths, in nats per labelled element.
        weight_kl: The divergence of the weights from their prior, in nats.
        order_kl: The divergence of the orders from theirs, in nats.
        cuts: The cuts that were computed in this step.

    Examples:
        >>> from nestling.training import elbo_terms
        >>> terms = elbo_terms(nl.nest(module, example).train(), (images, labels), dataset_size=1294)
        >>> terms.loss.requires_grad, terms.weight_kl.item() > 0
        (True, True)
    """

    loss: Tensor
    nll: Tensor
    weight_kl: Tensor
    order_kl: Tensor
    cuts: tuple[Cut, ...]


def nll_of(likelihood: Likelihood, output: Any, targets: Tensor) -> Tensor:  # noqa: ANN401
    """The negative log-likelihood of checked targets, in single precision or better."""
    output = picked(output)
    likelihood.check(output, targets)
    return likelihood.nll(output.to(torch.promote_types(output.dtype, torch.float32)), targets)


def weight_divergence(
    nested: Nested, cut: Cut, divergence: Divergence, keep_probs: dict[str, Tensor] | None = None
) -> Tensor:
    """The KL of the weights that a cut keeps, in nats; with keep probabilities, weighted by those of their groups."""
    if keep_probs is None:
        return nested.weight_total(cut, divergence)
    terms = nested.weight_divergences(cut, divergence)
    if not terms:
        return torch.zeros(())
    shares = torch.cat([nested.weight_shares(path, keep_probs).reshape(-1) for path in terms])
    return torch.cat([term.reshape(-1) for term in terms.values()]) @ shares


def gate_divergence(nested: Nested, like: Tensor) -> Tensor:
    """The KL of all gates together, in nats."""
    return sum((gate.kl().to(like) for gate in gates_of(nested).values()), torch.zeros_like(like))


def order_divergence(nested: Nested, prior_keep: float) -> Tensor:
    """The divergence of the orders from chains that keep each next block with probability ``prior_keep``."""
    return torch.stack([order.divergence(prior_keep) for order in nested.orders.values()]).sum()


def checked_pair(batch: Any) -> tuple[Any, Tensor]:  # noqa: ANN401
    """The inputs and targets of a batch; raises unless there are equally many of both."""
    inputs, targets = pair_of(batch)
    tensors = [leaf for leaf in pytree.tree_leaves((inputs, targets)) if isinstance(leaf, Tensor)]
    sizes = {leaf.shape[0] if leaf.ndim else 0 for leaf in tensors}
    if len(tensors) < 2 or len(sizes) != 1 or not sizes.pop():
        given = f"tensors of shapes {', '.join(str(tuple(leaf.shape)) for leaf in tensors)}"
        raise ArgumentError("batch", given, "as many inputs as targets", "Check your loader.")
    return inputs, targets
