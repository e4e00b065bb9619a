"""The objectives of US-Net and of slimmable networks, on the same network in the same loop, to compare with."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from nestling.errors import ArgumentError
from nestling.network import Cut, Nested
from nestling.network.cut import full_cut, make_cut
from nestling.network.nest import as_call
from nestling.prediction.likelihoods import Categorical, Likelihood
from nestling.training.elbo import WEIGHT_KLS, Terms, nll_of, pair_of, weight_divergence
from nestling.training.recipe import ObjectiveName, Recipe
from nestling.training.widths import draw_fraction, smallest_cut


def baseline_terms(
    nested: Nested,
    batch: Sequence[Any],
    recipe: Recipe,
    *,
    dataset_size: int,
    kappa: float,
    likelihood: Likelihood,
    generator: torch.Generator | None = None,
) -> Terms:
    """The recipe's objective on one batch, where it is not the bound; ``generator`` draws the widths.

    ``kappa`` weighs the divergence of weights that have a posterior. Orders neither draw nor learn anything.
    """
    inputs, targets = pair_of(batch)
    if recipe.objective == "us_net":
        cuts, losses, nlls = _us_net(nested, inputs, targets, likelihood, recipe.draws, generator)
    else:
        cuts, losses, nlls = _slimmable(nested, inputs, targets, likelihood, recipe.cuts)
    scale = kappa / (dataset_size * likelihood.elements(targets))
    return _mean_terms(nested, cuts, losses, nlls, WEIGHT_KLS[recipe.weight_kl], scale)


def check_objective(objective: ObjectiveName, likelihood: Likelihood) -> None:
    """Refuse an objective that the likelihood has no meaning for, before anything is trained."""
    if objective == "us_net" and not isinstance(likelihood, Categorical):
        needed = "elbo or slimmable with this likelihood: us_net learns the probabilities of classes"
        raise ArgumentError("objective", f"'us_net' with the {likelihood.name} likelihood", needed, "Choose one.")


def soft_cross_entropy(output: Tensor, teacher: Tensor) -> Tensor:
    """Cross-entropy in nats from the classes' probabilities of one output to those of another, both (B, C, ...).

    Its gradient for the output's logits is the difference of the probabilities over the number of elements; the
    teacher has none.
    """
    wide = torch.promote_types(output.dtype, torch.float32)
    wanted = teacher.detach().to(wide).softmax(1)
    return -(wanted * output.to(wide).log_softmax(1)).sum(1).mean()


_Found = tuple[list[Cut], list[Tensor], list[Tensor]]
"""Cuts, with the loss and the labels' negative log-likelihood at each."""


def _us_net(
    nested: Nested,
    inputs: Any,  # noqa: ANN401
    targets: Tensor,
    likelihood: Likelihood,
    draws: int,
    generator: torch.Generator | None,
) -> _Found:
    """US-Net's step (Yu and Huang 2019, algorithm 1): the sandwich rule with in-place distillation.

    The whole batch runs at full width, which learns the labels, at the smallest width, and at ``draws`` widths of one
    random fraction each; these learn what the full network says.
    """
    random = [draw_fraction(nested, generator) for _ in range(draws)]
    cuts = [full_cut(nested.groups), smallest_cut(nested.groups), *random]
    outputs = [_output(nested, inputs, cut) for cut in cuts]
    nlls = [nll_of(likelihood, output, targets) for output in outputs]
    return cuts, [nlls[0], *(soft_cross_entropy(output, outputs[0]) for output in outputs[1:])], nlls


def _slimmable(
    nested: Nested,
    inputs: Any,  # noqa: ANN401
    targets: Tensor,
    likelihood: Likelihood,
    fractions: Sequence[float],
) -> _Found:
    """A slimmable network's step (Yu et al. 2018, algorithm 1): the whole batch and its labels at each fixed width."""
    cuts = list(dict.fromkeys(make_cut(nested.groups, fraction) for fraction in fractions))
    nlls = [nll_of(likelihood, _output(nested, inputs, cut), targets) for cut in cuts]
    return cuts, nlls, nlls


def _output(nested: Nested, inputs: Any, cut: Cut) -> Tensor:  # noqa: ANN401
    args, kwargs = as_call(inputs)
    with nested.at(cut):
        output: Tensor = nested(*args, **kwargs)
    return output


def _mean_terms(
    nested: Nested,
    cuts: Sequence[Cut],
    losses: Sequence[Tensor],
    nlls: Sequence[Tensor],
    divergence: Callable[[Tensor], Tensor],
    scale: float,
) -> Terms:
    """The mean over the cuts, each with the divergence of the weights it keeps.

    The papers add the gradients of all widths up. Their mean has the same direction, and keeps the loss in nats per
    example, so that ``lr`` and ``clip`` mean what they do for the bound.
    """
    weight_terms = torch.stack([weight_divergence(nested, cut, divergence).to(losses[0]) for cut in cuts])
    return Terms(
        loss=(torch.stack(list(losses)) + scale * weight_terms).mean(),
        nll=torch.stack(list(nlls)).mean().detach(),
        weight_kl=weight_terms.mean().detach(),
        order_kl=torch.zeros_like(losses[0]).detach(),
        cuts=tuple(cuts),
    )
