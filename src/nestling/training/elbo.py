"""The objective of a training step, in nats per labelled element: one pure function of the network and a batch."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from nestling.arguments import count
from nestling.prediction import Likelihood, likelihood_for
from nestling.running import Nested, check_nested
from nestling.training.bound import bound_terms
from nestling.training.objectives import check_objective, whole_batch_terms
from nestling.training.recipe import Recipe
from nestling.training.schedules import largest_kappa
from nestling.training.terms import Step, Terms, checked_pair


def elbo(
    nested: Nested,
    batch: Sequence[Any] | Mapping[str, Any],
    *,
    dataset_size: int,
    **options: Any,  # noqa: ANN401
) -> Tensor:
    """The loss to minimise in a loop of your own: mean NLL over widths + kappa * KL of the weights / dataset_size.

    Args:
        nested: What ``nest`` gives, in train mode.
        batch: A pair (inputs, targets), or a dictionary whose targets are its ``labels``.
        dataset_size: Number of training examples.
        options: Those of ``elbo_terms``, which returns the parts one by one.

    Returns:
        The loss, a scalar tensor with gradients.

    Raises:
        ArgumentError: If an option is none of a recipe's, or the batch does not fit the likelihood.

    Examples:
        >>> new = nl.nest(module, example, num_blocks=8).train()
        >>> loss = nl.elbo(new, (images, labels), dataset_size=len(data.train))
        >>> loss.backward()
        >>> loss.ndim, bool(loss.isfinite())
        (0, True)
    """
    return elbo_terms(nested, batch, dataset_size=dataset_size, **options).loss


def elbo_terms(
    nested: Nested,
    batch: Sequence[Any] | Mapping[str, Any],
    *,
    dataset_size: int,
    likelihood: str | Likelihood | None = None,
    teacher: nn.Module | None = None,
    generator: torch.Generator | None = None,
    recipe: Recipe | None = None,
    **changes: Any,  # noqa: ANN401
) -> Terms:
    """The loss of a step by a recipe, with its parts.

    Args:
        nested: What ``nest`` gives, in train mode.
        batch: A pair (inputs, targets), or a dictionary whose targets are its ``labels``.
        dataset_size: Number of training examples.
        likelihood: What an output means: "categorical", "bernoulli", "gaussian" or "heteroscedastic_gaussian", or a
            ``Likelihood``. By default ``nested.likelihood``, and "categorical" where that is None. For targets in their
            own units set ``nested.likelihood = nl.prediction.Gaussian().fitted(targets)`` before the loop.
        teacher: A trained network whose predictions all widths learn from; by default the full width teaches.
        generator: Draws the widths; the noise of the weights is always torch's own. Processes that average their
            gradients must draw the same widths: give each a generator with the same seed.
        recipe: Where the options come from, by default ``Recipe()``; learning rates and epochs do not matter here.
        changes: Entries of the recipe to change, such as ``kappa=0.1`` or ``objective="elbo"``.

    Returns:
        The loss, the NLL and the divergences, and the cuts that were computed.

    Raises:
        ArgumentError: If an option is none of a recipe's, or does not go with the likelihood.

    Examples:
        >>> from nestling.training import elbo_terms
        >>> new = nl.nest(module, example, num_blocks=8).train()
        >>> terms = elbo_terms(new, (images, labels), dataset_size=len(data.train), kappa=0.1)
        >>> terms.nll.ndim, len(terms.cuts) > 1
        (0, True)
    """
    check_nested(nested)
    count("dataset_size", dataset_size, "how many examples the training set has")
    recipe = Recipe.from_dict((recipe or Recipe()).to_dict() | changes) if changes else recipe or Recipe()
    recipe = recipe.settled(has_teacher=teacher is not None)
    model = likelihood_for(nested, likelihood)
    check_objective(recipe.objective, model, teacher)
    inputs, targets = checked_pair(batch)
    scale = largest_kappa(recipe, nested, dataset_size) / (dataset_size * model.elements(targets))
    return step_terms(Step(nested, inputs, targets, recipe, model, scale, generator, teacher))


def step_terms(step: Step) -> Terms:
    """The terms of a recipe's objective, where ``scale`` weighs the divergence of the weights."""
    return bound_terms(step) if step.recipe.objective == "elbo" else whole_batch_terms(step)
