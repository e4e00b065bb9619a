"""The evidence lower bound of a nested network, in nats per labelled element: one pure function of it and a batch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, get_args

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from nestling.arguments import count, finite_number, inner_probability, positive_number, probability
from nestling.distributions import (
    BernoulliChain,
    Downhill,
    bn3_refitted_regulariser,
    bn3_regulariser,
    hierarchical_kl,
    kl,
    leave_one_out,
    log_uniform_kl,
    molchanov_kl,
)
from nestling.distributions.gates import gates_of
from nestling.errors import ArgumentError, DtypeError, RangeError
from nestling.network import Cut, Nested
from nestling.network.cut import full_cut
from nestling.network.nest import as_call
from nestling.prediction.likelihoods import Likelihood, likelihood_named
from nestling.training.recipe import EstimatorName, WeightKL
from nestling.training.widths import Draw, draw_cut

WEIGHT_KLS: dict[WeightKL, Callable[[Tensor], Tensor]] = {
    "log_uniform": log_uniform_kl,
    "molchanov": molchanov_kl,
    "hierarchical": hierarchical_kl,
    "bn3": bn3_regulariser,
    "bn3_refitted": bn3_refitted_regulariser,
}

LEAST_MASK = 1e-3
"""Blocks whose relaxed mask is below this are not computed: see docs/orders.md for what that changes at most."""


@dataclass(frozen=True)
class Terms:
    """The ``loss`` to minimise, and what it is made of: mean ``nll``, divergences in nats, and the cuts drawn."""

    loss: Tensor
    nll: Tensor
    weight_kl: Tensor
    order_kl: Tensor
    cuts: tuple[Cut, ...]


def elbo(nested: Nested, batch: Sequence[Any], *, dataset_size: int, **options: Any) -> Tensor:  # noqa: ANN401
    """The negative bound, to be minimised: mean NLL + kappa (weight KL + order KL) / dataset_size.

    ``batch`` is (inputs, targets), ``dataset_size`` the number of training examples. The options are those of
    ``elbo_terms``, which gives the parts one by one.
    """
    return elbo_terms(nested, batch, dataset_size=dataset_size, **options).loss


def elbo_terms(
    nested: Nested,
    batch: Sequence[Any],
    *,
    dataset_size: int,
    kappa: float = 1.0,
    likelihood: str | Likelihood = "categorical",
    weight_kl: WeightKL = "log_uniform",
    prior_keep: float = 0.95,
    order_weight: float | None = None,
    estimator: EstimatorName = "leave_one_out",
    draws: int = 2,
    explore: float = 0.0,
    coupled: float = 0.0,
    sandwich: float = 0.0,
    generator: torch.Generator | None = None,
) -> Terms:
    """Estimate the bound on one batch, which is split into ``draws`` parts, each with widths and weights of its own.

    The KL of the weights is that of the drawn cut (BN3's Phi2 in expectation, erratum E11), so that a narrow step pays
    only for what it computes. Gradients reach the orders by ``estimator``; a part of the batch whose widths no order
    gave (``explore``, ``sandwich``: see ``draw_cut``) has none for them. With an ``order_weight`` the orders minimise
    NLL + order_weight * KL(order, prior) instead of the bound, in which the divergence of the weights pulls them too.

    ``generator`` draws the widths; the noise of the weights is always torch's own. Processes that average their
    gradients must draw the same widths: give each a generator with the same seed.
    """
    if not isinstance(nested, Nested):
        raise DtypeError("nested", f"a {type(nested).__name__}", "what nest gives", "Call nl.nest(module, example).")
    count("dataset_size", dataset_size, "how many examples the training set has")
    _check(kappa, weight_kl, prior_keep, order_weight, estimator, draws, (explore, coupled, sandwich))
    inputs, targets = pair_of(batch)
    model = likelihood_named(likelihood) if isinstance(likelihood, str) else likelihood
    scale = kappa / (dataset_size * model.elements(targets))
    divergence = WEIGHT_KLS[weight_kl]
    learned = [order for order in nested.orders.values() if any(p.requires_grad for p in order.parameters())]
    num_parts = max(1, min(draws, len(targets) // 2))
    parts = []
    for x, y in _parts((inputs, targets), num_parts):
        if estimator == "leave_one_out" or not learned:
            draw = draw_cut(nested, explore=explore, coupled=coupled, sandwich=sandwich, generator=generator)
            parts.append(_hard_part(nested, x, y, model, divergence, draw))
        else:
            held, hard = order_weight is not None, estimator == "straight_through"
            parts.append(_relaxed_part(nested, x, y, model, divergence, generator, hard=hard, held=held))
    nll, weight_term, log_prob = (torch.stack(column) for column in list(zip(*parts, strict=True))[:3])
    weight_term = weight_term + sum(gate.kl().to(nll) for gate in gates_of(nested).values())
    order_term = _order_kl(nested, prior_keep) if learned else torch.zeros_like(nll[0])
    losses = nll + scale * weight_term
    scored = learned and estimator == "leave_one_out" and num_parts > 1
    expected = losses.mean()
    if scored:
        seen = losses if order_weight is None else nll
        expected = expected + leave_one_out(log_prob, seen) - seen.mean()
    return Terms(
        loss=expected + (scale if order_weight is None else order_weight) * order_term,
        nll=nll.mean().detach(),
        weight_kl=weight_term.mean().detach(),
        order_kl=order_term.detach(),
        cuts=tuple(part[3] for part in parts),
    )


_Result = tuple[Tensor, Tensor, Tensor, Cut]


def _hard_part(
    nested: Nested,
    inputs: Any,  # noqa: ANN401
    targets: Tensor,
    model: Likelihood,
    divergence: Callable[[Tensor], Tensor],
    draw: Draw,
) -> _Result:
    """A part of the batch at a drawn cut, which alone is computed."""
    cut, log_prob = draw
    args, kwargs = as_call(inputs)
    with nested.shared_at(cut):
        nll = nll_of(model, nested(*args, **kwargs), targets)
        return nll, weight_divergence(nested, cut, divergence).to(nll), log_prob.to(nll), cut


def _relaxed_part(
    nested: Nested,
    inputs: Any,  # noqa: ANN401
    targets: Tensor,
    model: Likelihood,
    divergence: Callable[[Tensor], Tensor],
    generator: torch.Generator | None,
    *,
    hard: bool,
    held: bool,
) -> _Result:
    """A part of the batch under masks that gradients flow through, without the tail where they are below the least."""
    masks, widths = {}, []
    for name, order in nested.orders.items():
        if not isinstance(order, Downhill):
            given = f"an order of type {type(order).__name__} in {name}"
            raise ArgumentError("estimator", given, "Downhill orders for relaxed masks", "Use leave_one_out.")
        relaxed = order.rsample((), generator)
        masks[name] = order.straight_through(relaxed) if hard else relaxed
        widths.append((name, int(((relaxed >= LEAST_MASK) | (masks[name] >= LEAST_MASK)).sum())))
    args, kwargs = as_call(inputs)
    computed, cut = Cut(tuple(widths)), full_cut(nested.groups)
    with nested.at(computed):
        nll = nll_of(model, nested.run_masked(masks, *args, **kwargs), targets)
    kept = {name: order.keep_probs() for name, order in nested.orders.items()}
    kept = {name: own.detach() for name, own in kept.items()} if held else kept
    return nll, weight_divergence(nested, cut, divergence, kept).to(nll), torch.zeros_like(nll), computed


def nll_of(model: Likelihood, output: Tensor, targets: Tensor) -> Tensor:
    """The negative log-likelihood of targets that fit the output, in no less than single precision."""
    model.check(output, targets)
    return model.nll(output.to(torch.promote_types(output.dtype, torch.float32)), targets)


def weight_divergence(
    nested: Nested,
    cut: Cut,
    divergence: Callable[[Tensor], Tensor],
    keep_probs: dict[str, Tensor] | None = None,
) -> Tensor:
    """The KL of the weights that a cut keeps, in nats; with keep probabilities, each weighed by those of its groups."""
    if keep_probs is None:
        return nested.weight_total(cut, divergence)
    log_alphas = nested.log_alphas(cut)
    if not log_alphas:
        return torch.zeros(())
    terms = divergence(torch.cat([own.reshape(-1) for own in log_alphas.values()]))
    return terms @ torch.cat([nested.weight_shares(path, keep_probs).reshape(-1) for path in log_alphas])


def _order_kl(nested: Nested, prior_keep: float) -> Tensor:
    """Phi1 of BN3: the divergence of the orders from chains that keep each next block with the same probability."""
    terms = [
        kl(order, _prior(order.num_blocks, order.num_always, prior_keep, order.log_probs().device))
        for order in nested.orders.values()
    ]
    return torch.stack(terms).sum()


@cache
def _prior(num_blocks: int, num_always: int, keep: float, device: torch.device) -> BernoulliChain:
    return BernoulliChain(torch.full((num_blocks - num_always,), keep, device=device), num_always=num_always)


def pair_of(batch: Sequence[Any]) -> tuple[Any, Tensor]:
    """The inputs and targets of a batch; refuses what is not a pair of as many of one as of the other."""
    if not (isinstance(batch, tuple | list) and len(batch) == 2 and isinstance(batch[1], Tensor)):
        needed = "a pair (inputs, targets), the targets a tensor"
        raise ArgumentError("batch", f"a {type(batch).__name__}", needed, "Let your loader give such pairs.")
    inputs, targets = batch
    tensors = [leaf for leaf in pytree.tree_leaves((inputs, targets)) if isinstance(leaf, Tensor)]
    sizes = {leaf.shape[0] if leaf.ndim else 0 for leaf in tensors}
    if len(tensors) < 2 or len(sizes) != 1 or not sizes.pop():
        given = f"tensors of shapes {', '.join(str(tuple(leaf.shape)) for leaf in tensors)}"
        raise ArgumentError("batch", given, "as many of one as of the other", "Check your loader.")
    return inputs, targets


def _parts(pair: tuple[Any, Tensor], number: int) -> list[tuple[Any, Tensor]]:
    """A batch in nearly equal parts; what is not a tensor goes with each of them."""
    leaves, layout = pytree.tree_flatten(pair)
    columns = [leaf.tensor_split(number) if isinstance(leaf, Tensor) else [leaf] * number for leaf in leaves]
    return [pytree.tree_unflatten(list(row), layout) for row in zip(*columns, strict=True)]


def _check(
    kappa: float,
    weight_kl: str,
    prior_keep: float,
    order_weight: float | None,
    estimator: str,
    draws: int,
    shares: tuple[float, float, float],
) -> None:
    """Refuse options that mean nothing."""
    if finite_number("kappa", kappa) < 0:
        raise RangeError("kappa", kappa, "at least 0", "1 is the evidence lower bound.")
    for name, value, known in (("weight_kl", weight_kl, WEIGHT_KLS), ("estimator", estimator, get_args(EstimatorName))):
        if value not in known:
            raise ArgumentError(name, repr(value), f"one of {', '.join(known)}", "Check its spelling.")
    inner_probability("prior_keep", prior_keep)
    if order_weight is not None:
        positive_number("order_weight", order_weight)
    count("draws", draws, "into how many parts a batch is split")
    for name, share in zip(("explore", "coupled", "sandwich"), shares, strict=True):
        probability(name, share)
