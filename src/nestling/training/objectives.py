"""Objectives that run a batch at several widths in one step: every width, US-Net's and that of slimmable networks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from nestling.distributions.orders import with_baseline
from nestling.errors import ArgumentError
from nestling.prediction import Categorical, Likelihood
from nestling.reading import Cut, full_cut, smallest_cut
from nestling.running import Nested, Output, as_call, in_mode, picked
from nestling.torch_parts import pytree
from nestling.training.recipe import ObjectiveName, Recipe
from nestling.training.terms import Step, Terms, gate_divergence, nll_of, order_divergence, weight_divergence
from nestling.training.widths import anchor_cuts, draw_anchors, draw_between, draw_fraction, learned_orders

SMALLEST_BATCH = 4
"""Examples from which on narrower widths run half of a batch: a batch norm needs two."""


@dataclass(frozen=True)
class Pass:
    """A cut that a step runs, how much of its loss a teacher gives, its log-probability, and which examples it runs.

    The log-probability is None where no order drew the cut. ``half`` is 0 or 1 for the first or the second half of the
    batch, None for all of it.
    """

    cut: Cut
    distil: float = 0.0
    log_prob: Tensor | None = None
    half: int | None = None

    def part_of(self, batch: Any) -> Any:  # noqa: ANN401
        """The examples that it runs, of tensors with a row for each."""
        return pytree.tree_map_only(Tensor, self._rows, batch)

    def _rows(self, tensor: Tensor) -> Tensor:
        if self.half is None or len(tensor) < SMALLEST_BATCH:
            return tensor
        middle = len(tensor) // 2
        return tensor[middle:] if self.half else tensor[:middle]


def whole_batch_terms(step: Step) -> Terms:
    """The mean loss of the passes that the recipe's objective plans, each with the divergence of the weights it keeps.

    A pass minimises (1 - distil) NLL of the labels + distil cross-entropy from the teacher's probabilities, which are
    those of ``teacher`` or else of the first pass, softened and without gradients. ``scale`` weighs the divergences.

    US-Net and slimmable networks add the gradients of all widths up. Their mean has the same direction, and keeps the
    loss in nats per example, so that ``lr`` and ``clip`` mean what they do for the bound.
    """
    nested, recipe = step.nested, step.recipe
    taught = None if step.teacher is None else _taught(step.teacher, step.inputs, nested.output)
    losses, nlls, weight_terms = [], [], []
    passes = _PLANS[recipe.objective](nested, recipe, step.generator, has_teacher=step.teacher is not None)
    for each in passes:
        args, kwargs = as_call(each.part_of(step.inputs))
        with nested.shared_at(each.cut):
            output = nested(*args, **kwargs)
            nll = nll_of(step.likelihood, output, each.part_of(step.targets))
            weight_terms.append(weight_divergence(nested, each.cut, step.weight_kl).to(nll))
        taught = output.detach() if taught is None else taught
        distil = each.distil if isinstance(step.likelihood, Categorical) else 0.0
        learned = soft_cross_entropy(output, each.part_of(taught), float(recipe.soften)) if distil else 0.0
        losses.append((1 - distil) * nll + distil * learned)
        nlls.append(nll)
    weight_term = torch.stack(weight_terms).mean() + gate_divergence(nested, nlls[0])
    order_loss, order_term = _order_loss(step, passes, nlls)
    return Terms(
        loss=torch.stack(losses).mean() + step.scale * weight_term + order_loss,
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
    """The whole batch at the full width, which learns the labels and teaches, and halves of it at narrower ones.

    The halves run by turns at ``anchors`` of the recipe's narrower cuts, and the next half at ``draws`` cuts that are
    drawn between the narrowest of these and the full width. Where another network teaches, the whole batch runs at
    the narrowest cut, at any other of the recipe's, and at ``draws`` drawn ones.
    """
    distil, full = float(recipe.distil), full_cut(nested.groups)
    narrower = [cut for cut in anchor_cuts(nested.groups, recipe.cuts) if cut != full]
    if not narrower:
        return [Pass(full, distil if has_teacher else 0.0)]
    drawn = [
        draw_between(nested, narrower[0], explore=recipe.explore, coupled=recipe.coupled, generator=generator)
        for _ in range(recipe.draws)
    ]
    if has_teacher:
        others = [*narrower[1:], full]
        other = others[int(torch.randint(len(others), (), generator=generator))]
        return [Pass(narrower[0], distil), Pass(other, distil), *(Pass(cut, distil, chance) for cut, chance in drawn)]
    anchors = draw_anchors(narrower, int(recipe.anchors), generator)
    passes = [Pass(full), *(Pass(cut, distil, half=number % 2) for number, cut in enumerate(anchors))]
    return passes + [Pass(cut, distil, chance, half=len(anchors) % 2) for cut, chance in drawn]


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


_PLANS: dict[str, Callable[..., list[Pass]]] = {"every_width": _every_width, "us_net": _us_net, "slimmable": _slimmable}


def _order_loss(step: Step, passes: Sequence[Pass], nlls: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """What the orders minimise where they drew a cut, NLL + order_weight * divergence, and the divergence.

    Of the NLL there is only the gradient. The baseline of its score function is the mean NLL of the cuts that no order
    drew, which are computed anyway.
    """
    nested, recipe = step.nested, step.recipe
    zero = torch.zeros_like(nlls[0]).detach()
    if not learned_orders(nested) or recipe.objective != "every_width":
        return zero, zero
    order_term = order_divergence(nested, recipe.prior_keep)
    chances = [each.log_prob for each in passes if each.log_prob is not None]
    if not chances:
        return zero, order_term
    losses = list(zip(passes, torch.stack(list(nlls)).detach(), strict=True))
    drawn = torch.stack([nll for each, nll in losses if each.log_prob is not None])
    fixed = torch.stack([nll for each, nll in losses if each.log_prob is None]).mean()
    seen = with_baseline(torch.stack(chances).to(drawn), drawn, fixed) - drawn.mean()
    return seen + (step.scale if recipe.order_weight is None else recipe.order_weight) * order_term, order_term


@torch.no_grad()
def _taught(teacher: nn.Module, inputs: Any, choice: Output | None) -> Tensor:  # noqa: ANN401
    """What a teacher says of a batch, in eval mode."""
    args, kwargs = as_call(inputs)
    with in_mode(teacher, training=False):
        output: Tensor = picked(teacher(*args, **kwargs), choice)
    return output
