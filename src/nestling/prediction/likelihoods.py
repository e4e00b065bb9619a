"""The likelihoods by name, and the one that a network was trained with."""

from collections.abc import Callable, Mapping
from typing import Any

from nestling.errors import ArgumentError
from nestling.prediction.class_likelihoods import Bernoulli, Categorical
from nestling.prediction.gaussian_likelihoods import Gaussian, HeteroscedasticGaussian
from nestling.prediction.likelihood import Likelihood
from nestling.running import Nested


def likelihood_named(name: str | Likelihood) -> Likelihood:
    """The likelihood of a name.

    Args:
        name: ``"categorical"``, ``"bernoulli"``, ``"gaussian"`` or ``"heteroscedastic_gaussian"``, or the name of one
            of yours. A ``Likelihood``, such as ``Gaussian(std=0.1)``, is returned unchanged.

    Returns:
        A new likelihood with its default options.

    Raises:
        ArgumentError: If there is none of that name.

    Examples:
        >>> nl.prediction.likelihood_named("gaussian").targets
        'numbers'
    """
    if isinstance(name, Likelihood):
        return name
    if name not in LIKELIHOODS:
        needed = f"one of {', '.join(LIKELIHOODS)}, or a Likelihood"
        raise ArgumentError("likelihood", repr(name), needed, "'categorical' is for classes and segmentation.")
    return LIKELIHOODS[name]()


def likelihood_for(network: object, given: str | Likelihood | None = None) -> Likelihood:
    """The given likelihood; by default, and by its name, the one that a network was trained with, else categorical."""
    trained_with = network.likelihood if isinstance(network, Nested) else None
    if isinstance(trained_with, Likelihood) and given in (None, trained_with.name):
        return trained_with
    return likelihood_named("categorical" if given is None else given)


def likelihood_from(saved: Mapping[str, Any]) -> Likelihood:
    """The likelihood that ``Likelihood.to_dict`` described.

    Args:
        saved: Its name and options; learned parameters are not among them.

    Returns:
        A likelihood with these options.

    Raises:
        ArgumentError: If there is none of that name.

    Examples:
        >>> saved = nl.prediction.Gaussian(std=0.5, center=0.0, scale=1.0).to_dict()
        >>> nl.prediction.likelihood_from(saved).std.tolist()
        [0.5]
    """
    options = dict(saved)
    name = options.pop("name", None)
    if name not in LIKELIHOODS:
        raise ArgumentError("likelihood", repr(name)[:40], f"one of {', '.join(LIKELIHOODS)}", "Pass it by hand.")
    return LIKELIHOODS[name](**options)


LIKELIHOODS: dict[str, Callable[..., Likelihood]] = {
    kind.name: kind for kind in (Categorical, Bernoulli, Gaussian, HeteroscedasticGaussian)
}
"""The likelihoods by name; one of yours that is put here is found when a network that has it is loaded."""
