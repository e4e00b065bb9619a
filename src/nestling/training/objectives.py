"""Objectives that run the whole batch at several widths: every width, US-Net's and that of slimmable networks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from nestling.distributions import with_baseline
from nestling.errors import ArgumentError
from nestling.network import Cut, Nested
from nestling.network.cut import full_cut, smallest_cut
from nestling.network.modes import in_mode
from nestling.network.nested import as_call
from nestling.prediction.likelihoods import Categorical, Likelihood
from nestling.training.recipe import ObjectiveName, Recipe
from nestling.training.terms import (
    WEIGHT_KLS,
    Terms,
    gate_divergence,
    nll_of,
    order_divergence,
    weight_divergence,
)
from nestling.training.widths import anchor_cuts, draw_between, draw_fraction, learned_orders


@dataclass(frozen=True)
class Pass:
    """One run of the whole batch: its cut, how much of its loss a teacher gives, and the log-probability of the cut.

    The log-probability is None where no order drew the cut.
    """

    cut: Cut
    distil: float = 0.0
    log_prob: Tensor | None = None


def whole_batch_terms(
    nested: Nested,
    inputs: Any,  # noqa: ANN401
    targets: Tensor,
    recipe: Recipe,
    likelihood: Likelihood,
    scale: float,
    generator: torch.Generator | None,
    teacher: nn.Module | None = None,
) -> Terms:
    """The mean loss of the passes that the recipe's objective plans, each with the divergence of the weights it keeps.

    A pass minimises (1 - distil) NLL of the labels + distil cross-entropy from the teacher's probabilities, which are
    those of ``teacher`` or else of the first pass, softened and without gradients. ``scale`` weighs the divergences.

    US-Net and slimmable networks add the gradients of all widths up. Their mean has the same direction, and keeps the
    loss in nats per example, so that ``lr`` and ``clip`` mean what they do for the bound.
    """
    args, kwargs = as_call(inputs)
    taught = None if teacher is None else _taught(teacher, args, kwargs)
    losses, nlls, weight_terms = [], [], []
    passes = _PLANS[recipe.objective](nested, recipe, generator, has_teacher=teacher is not None)
    for each in passes:
        with nested.shared_at(each.cut):
            output = nested(*args, **kwargs)
            nll = nll_of(likelihood, output, targets)
            weight_terms.append(weight_divergence(nested, each.cut, WEIGHT_KLS[recipe.weight_kl]).to(nll))
        taught = output.detach() if taught is None else taught
        distil = each.distil if isinstance(likelihood, Categorical) else 0.0
        learned = soft_cross_entropy(output, taught, float(recipe.soften)) if distil else 0.0
        losses.append((1 - distil) * nll + distil * learned)
        nlls.append(nll)
    weight_term = torch.stack(weight_terms).mean() + gate_divergence(nested, nlls[0])
    order_loss, order_term = _order_loss(nested, recipe, passes, nlls, scale)
    return Terms(
        loss=torch.stack(losses).mean() + scale * weight_term + order_loss,
        nll=torch.stack(nlls).mean().detach(),
        weight_kl=weight_term.detach(),
        order_kl=order_term.detach(),
        cuts=tuple(each.cut for each in passes),
    )


def check_objective(objective: ObjectiveName, likelihood: Likelihood, teacher: nn.Module | None = None) -> None:
    """Refuse an objective that the likelihood has no meaning for, before anything is trained."""
    if objective == "us_net" and not isinstance(likelihood, Categorical):
        needed = "every_width, elbo or slimmable with this likelihood: us_net learns the probabilities of classes"
        raise ArgumentError("objective", f"'us_net' with the {likelihood.name} likelihood", needed, "Choose one.")
    if teacher is not None and (objective == "elbo" or not isinstance(likelihood, Categorical)):
        given = f"a network with the objective {objective!r} and the {likelihood.name} likelihood"
        needed = "None, or classes and an objective that learns from a teacher"
        raise ArgumentError("teacher", given, needed, "Use the objective 'every_width'.")


def soft_cross_entropy(output: Tensor, teacher: Tensor, soften: float = 1.0) -> Tensor:
    """Cross-entropy in nats from the classes' probabilities of one output to those of another, both (B, C, ...).

    The teacher's logits are divided by ``soften`` first. The gradient for the output's logits is the difference of the
    probabilities over the number of elements; the teacher has none.
    """
    wide = torch.promote_types(output.dtype, torch.float32)
    wanted = (teacher.detach().to(wide) / soften).softmax(1)
    return -(wanted * output.to(wide).log_softmax(1)).sum(1).mean()


def _every_width(nested: Nested, recipe: Recipe, generator: torch.Generator | None, *, has_teacher: bool) -> list[Pass]:
    """Two of the recipe's cuts, and ``draws`` cuts between the narrowest and the full width.

    The first is the full width, which learns the labels and teaches the others; where another network teaches, it is
    the narrowest, which has the most to learn. The second is any of the rest, each as often.
    """
    distil, full = float(recipe.distil), full_cut(nested.groups)
    narrower = [cut for cut in anchor_cuts(nested.groups, recipe.cuts) if cut != full]
    if not narrower:
        return [Pass(full, distil if has_teacher else 0.0)]
    first, *others = [*narrower, full] if has_teacher else [full, *narrower]
    second = others[int(torch.randint(len(others), (), generator=generator))]
    drawn = [
        draw_between(nested, narrower[0], explore=recipe.explore, coupled=recipe.coupled, generator=generator)
        for _ in range(recipe.draws)
    ]
    passes = [Pass(first, distil if has_teacher else 0.0), Pass(second, distil)]
    return passes + [Pass(cut, distil, chance) for cut, chance in drawn]


def _us_net(nested: Nested, recipe: Recipe, generator: torch.Generator | None, *, has_teacher: bool) -> list[Pass]:
    """US-Net's step (Yu and Huang 2019, algorithm 1): the sandwich rule with in-place distillation.

    The whole batch runs at full width, which learns the labels, at the smallest width, and at ``draws`` widths of one
    random fraction each; these learn what the full network says.
    """
    random = [draw_fraction(nested, generator) for _ in range(recipe.draws)]
    taught = [Pass(cut, 1.0) for cut in (smallest_cut(nested.groups), *random)]
    return [Pass(full_cut(nested.groups), float(recipe.distil) if has_teacher else 0.0), *taught]


def _slimmable(nested: Nested, recipe: Recipe, generator: torch.Generator | None, *, has_teacher: bool) -> list[Pass]:
    """A slimmable network's step (Yu et al. 2018, algorithm 1): the whole batch and its labels at each fixed width."""
    distil = float(recipe.distil) if has_teacher else 0.0
    return [Pass(cut, distil) for cut in anchor_cuts(nested.groups, recipe.cuts)]


_PLANS: dict[str, Callable[..., list[Pass]]] = {
    "every_width": _every_width,
    "us_net": _us_net,
    "slimmable": _slimmable,
}


def _order_loss(
    nested: Nested, recipe: Recipe, passes: Sequence[Pass], nlls: Sequence[Tensor], scale: float
) -> tuple[Tensor, Tensor]:
    """What the orders minimise where they drew a cut, NLL + order_weight * divergence, and the divergence.

    Of the NLL there is only the gradient. The baseline of its score function is the mean NLL of the cuts that no order
    drew, which are computed anyway.
    """
    zero = torch.zeros_like(nlls[0]).detach()
    if not learned_orders(nested) or recipe.objective != "every_width":
        return zero, zero
    order_term = order_divergence(nested, recipe.prior_keep)
    chances = [each.log_prob for each in passes if each.log_prob is not None]
    if not chances:
        return zero, order_term
    found = list(zip(passes, torch.stack(list(nlls)).detach(), strict=True))
    drawn = torch.stack([nll for each, nll in found if each.log_prob is not None])
    fixed = torch.stack([nll for each, nll in found if each.log_prob is None]).mean()
    seen = with_baseline(torch.stack(chances).to(drawn), drawn, fixed) - drawn.mean()
    return seen + (scale if recipe.order_weight is None else recipe.order_weight) * order_term, order_term


@torch.no_grad()
def _taught(teacher: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """What a teacher says of a batch, in eval mode."""
    with in_mode(teacher, training=False):
        output: Tensor = teacher(*args, **kwargs)
    return output
