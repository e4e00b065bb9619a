"""The pruning methods by name: their divergence and gate, the meaning of their threshold, and their training."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from nestling.arguments import finite_number
from nestling.distributions import hierarchical_kl, log_uniform_kl
from nestling.distributions.gates import BetaBernoulli, Gate, GaussianGate, LogNormalGate
from nestling.distributions.weights import LOG_ALPHA_BOUNDS
from nestling.errors import ArgumentError, RangeError
from nestling.pruning.options import PRUNING, Structure
from nestling.training import Recipe, WeightKL


@dataclass(frozen=True)
class Method:
    """``structures`` that the method can prune, the default first; ``bounds`` of a meaningful ``threshold``.

    ``keeps`` says of what the threshold is a limit, for the reader of a message.
    """

    structures: tuple[Structure, ...]
    gate: Callable[[int], Gate]
    threshold: float
    bounds: tuple[float, float]
    weight_kl: WeightKL = "log_uniform"
    keeps: str = "log alpha below"


_BERNOULLI = "a keep probability above"

METHODS: dict[str, Method] = {
    "sparse_vd": Method(
        ("weights", "units"), lambda size: GaussianGate(size, divergence=log_uniform_kl), 3.0, LOG_ALPHA_BOUNDS
    ),
    "vbd": Method(
        ("units", "weights"),
        lambda size: GaussianGate(size, divergence=hierarchical_kl),
        3.0,
        LOG_ALPHA_BOUNDS,
        "hierarchical",
    ),
    "beta_bernoulli": Method(("units",), BetaBernoulli, 1e-2, (0.0, 1.0), keeps=_BERNOULLI),
    "dependent_beta_bernoulli": Method(("units",), BetaBernoulli, 1e-2, (0.0, 1.0), keeps=_BERNOULLI),
    "log_normal": Method(("units",), LogNormalGate, 1.0, (0.0, float("inf")), keeps="signal to noise of at least"),
}

_WHOLE: Mapping[str, Any] = {"draws": 1, "explore": 0.0, "coupled": 0.0, "sandwich": 0.0, "cuts": (1.0,)}
"""Recipe entries that concern widths, which a network that is pruned does not have."""


def method_named(name: str, structure: str | None) -> tuple[Method, Structure]:
    """The method called ``name``, and the structure that it prunes."""
    if name not in METHODS:
        raise ArgumentError("method", repr(name), f"one of {', '.join(METHODS)}", "Check its spelling.")
    method = METHODS[name]
    for possible in method.structures:
        if structure in (None, possible):
            return method, possible
    needed = " or ".join(map(repr, method.structures))
    raise ArgumentError("structure", repr(structure), f"{needed} for {name}", "Leave it out for the method's default.")


def checked_threshold(method: Method, threshold: float | None) -> float:
    """The given threshold, checked against the method's bounds, or the method's default."""
    if threshold is None:
        return method.threshold
    low, high = method.bounds
    if not low < finite_number("threshold", threshold) < high:
        raise RangeError(
            "threshold", threshold, f"between {low:g} and {high:g}", f"The papers take {method.threshold:g}."
        )
    return float(threshold)


def pruning_recipe(method: Method, recipe: Recipe | None) -> Recipe:
    """The caller's recipe, or the default, with the method's divergence and the whole network in every step."""
    chosen = recipe or PRUNING
    kappa = 1.0 if chosen.kappa == "auto" else chosen.kappa
    return chosen.but(**_WHOLE, kappa=kappa, weight_kl=method.weight_kl, keep="last")


def finishing_recipe(pruning: Recipe, finish: Recipe | bool) -> Recipe | None:
    """The recipe that trains the rest after pruning; True: a sixth of the epochs, at a third of the learning rate."""
    if not finish:
        return None
    if isinstance(finish, Recipe):
        return finish.but(**_WHOLE, kappa=pruning.kappa, weight_kl=pruning.weight_kl, keep="last")
    lr = pruning.lr if pruning.lr == "auto" else pruning.lr / 3
    return pruning.but(epochs=max(1, pruning.epochs // 6), lr=lr, kl_warm_up=0.0)


def tuning_recipe(pruning: Recipe, tune: Recipe | bool) -> Recipe | None:
    """The recipe that trains the resulting plain network; True: the recipe of ``finish=True``."""
    last = finishing_recipe(pruning, tune)
    return None if last is None else plain_recipe(last if isinstance(tune, bool) else tune)


def target_recipe(pruning: Recipe) -> Recipe:
    """The recipe that trains what a target leaves, without noise: a third of the epochs at the whole learning rate."""
    return plain_recipe(pruning.but(epochs=max(1, pruning.epochs // 3), kl_warm_up=0.0))


def plain_recipe(recipe: Recipe) -> Recipe:
    """A recipe for a network without posteriors and widths."""
    return recipe.but(**_WHOLE)
