"""The likelihoods by name, and the one that a network was trained with."""

from collections.abc import Callable, Mapping
from typing import Any

from nestling.errors import ArgumentError
from nestling.prediction.class_likelihoods import Bernoulli, Categorical
from nestling.prediction.gaussian_likelihoods import Gaussian, HeteroscedasticGaussian
from nestling.prediction.likelihood import Likelihood
from nestling.running import Nested


def likelihood_named(name: str | Likelihood) -> Likelihood:
    """The likelihood of that name; a Likelihood, such as ``Gaussian(std=0.1)``, is returned unchanged."""
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
    """The likelihood that ``to_dict`` described."""
    options = dict(saved)
    name = options.pop("name", None)
    if name not in LIKELIHOODS:
        raise ArgumentError("likelihood", repr(name)[:40], f"one of {', '.join(LIKELIHOODS)}", "Pass it by hand.")
    return LIKELIHOODS[name](**options)


LIKELIHOODS: dict[str, Callable[..., Likelihood]] = {
    kind.name: kind for kind in (Categorical, Bernoulli, Gaussian, HeteroscedasticGaussian)
}
"""The likelihoods by name; one of yours that is put here is found when a network that has it is loaded."""
