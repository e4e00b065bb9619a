"""The evidence lower bound: a batch in parts, each at separately drawn widths, as BN3 and FN3 train."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from nestling.distributions.orders import RelaxedOrder, leave_one_out
from nestling.errors import ArgumentError
from nestling.reading import Cut, full_cut
from nestling.running import as_call
from nestling.torch_parts import pytree
from nestling.training.terms import Step, Terms, gate_divergence, nll_of, order_divergence, weight_divergence
from nestling.training.widths import draw_cut, learned_orders

LEAST_MASK = 1e-3
"""Blocks whose relaxed mask is below this are not computed; docs/orders.md bounds the error."""


def bound_terms(step: Step) -> Terms:
    """Estimate the bound on one batch, which is split into ``draws`` parts with separately drawn widths and weights.

    The KL of the weights, times ``scale``, is that of the drawn cut (BN3's Phi2 in expectation, erratum E11), so that a
    narrow step pays only for the weights that it uses. Gradients reach the orders by ``estimator``; a part of the batch
    whose widths were not drawn from the orders (``explore``, ``sandwich``: see ``draw_cut``) gives them no gradient.
    """
    nested, recipe, order_weight = step.nested, step.recipe, step.recipe.order_weight
    learned = learned_orders(nested)
    num_parts = max(1, min(recipe.draws, len(step.targets) // 2))
    of_part = _hard_part if recipe.estimator == "leave_one_out" or not learned else _relaxed_part
    pairs = _parts((step.inputs, step.targets), num_parts)
    parts = [of_part(replace(step, inputs=inputs, targets=targets)) for inputs, targets in pairs]
    nll, weight_term, log_prob = (torch.stack(column) for column in list(zip(*parts, strict=True))[:3])
    weight_term = weight_term + gate_divergence(nested, nll[0])
    order_term = order_divergence(nested, recipe.prior_keep) if learned else torch.zeros_like(nll[0])
    losses = nll + step.scale * weight_term
    expected = losses.mean()
    if learned and recipe.estimator == "leave_one_out" and num_parts > 1:
        losses_of_orders = losses if order_weight is None else nll
        expected = expected + leave_one_out(log_prob, losses_of_orders) - losses_of_orders.mean()
    return Terms(
        loss=expected + (step.scale if order_weight is None else order_weight) * order_term,
        nll=nll.mean().detach(),
        weight_kl=weight_term.mean().detach(),
        order_kl=order_term.detach(),
        cuts=tuple(part[3] for part in parts),
    )


_PartTerms = tuple[Tensor, Tensor, Tensor, Cut]


def _hard_part(step: Step) -> _PartTerms:
    """A part of the batch at a drawn cut; only that cut is computed."""
    nested, recipe = step.nested, step.recipe
    shares = {"explore": recipe.explore, "coupled": recipe.coupled, "sandwich": recipe.sandwich}
    cut, log_prob = draw_cut(nested, **shares, generator=step.generator)
    args, kwargs = as_call(step.inputs)
    with nested.shared_at(cut):
        nll = nll_of(step.likelihood, nested(*args, **kwargs), step.targets)
        cut_log_prob = torch.zeros_like(nll) if log_prob is None else log_prob.to(nll)
        return nll, weight_divergence(nested, cut, step.weight_kl).to(nll), cut_log_prob, cut


def _relaxed_part(step: Step) -> _PartTerms:
    """A part of the batch under differentiable masks, without the tail of blocks below ``LEAST_MASK``."""
    nested, recipe = step.nested, step.recipe
    masks, widths = {}, []
    for name, order in nested.orders.items():
        if not isinstance(order, RelaxedOrder):
            given = f"an order of type {type(order).__name__} in {name}"
            raise ArgumentError("estimator", given, "orders with relaxed masks, such as Downhill", "Use leave_one_out.")
        relaxed = order.rsample((), step.generator)
        masks[name] = order.straight_through(relaxed) if recipe.estimator == "straight_through" else relaxed
        widths.append((name, int(((relaxed >= LEAST_MASK) | (masks[name] >= LEAST_MASK)).sum())))
    args, kwargs = as_call(step.inputs)
    computed_cut, cut = Cut(tuple(widths)), full_cut(nested.groups)
    with nested.at(computed_cut):
        nll = nll_of(step.likelihood, nested.run_masked(masks, *args, **kwargs), step.targets)
    kept = {name: order.keep_probs() for name, order in nested.orders.items()}
    kept = kept if recipe.order_weight is None else {name: probs.detach() for name, probs in kept.items()}
    return nll, weight_divergence(nested, cut, step.weight_kl, kept).to(nll), torch.zeros_like(nll), computed_cut


def _parts(pair: tuple[Any, Tensor], number: int) -> list[tuple[Any, Tensor]]:
    """A batch in nearly equal parts; leaves that are not tensors go with each part."""
    leaves, layout = pytree.tree_flatten(pair)
    columns = [leaf.tensor_split(number) if isinstance(leaf, Tensor) else [leaf] * number for leaf in leaves]
    return [pytree.tree_unflatten(list(row), layout) for row in zip(*columns, strict=True)]
