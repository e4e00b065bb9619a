"""The dropout family as regularisers: noise while a network is trained, after which it is as large as before."""

import math
from copy import deepcopy
from typing import Any, Literal, get_args

from torch import Tensor, nn

from nestling.arguments import inner_probability
from nestling.distributions.gates import BernoulliGate, ConcreteGate, Gate, GaussianDropoutGate
from nestling.distributions.weights import MultiplicativeGaussian
from nestling.errors import ArgumentError
from nestling.network import Nested
from nestling.network.layers import VariationalLayer, make_variational
from nestling.pruning.gated import Gates, gated, without_widths
from nestling.pruning.sites import Site, layer_sites
from nestling.training.recipe import Recipe

Regulariser = Literal["none", "bernoulli", "gaussian", "gaussian_local", "concrete", "variational", "vbd"]
START_LOG_ALPHA = -3.0
"""log alpha that learned noise starts from."""


def regularised(
    module: nn.Module,
    example: Any,  # noqa: ANN401
    name: Regulariser,
    *,
    drop_prob: float = 0.5,
    input_drop_prob: float = 0.2,
) -> Nested:
    """A copy of a network with a kind of dropout on what its layers read, or on their weights; train it as any other.

    ``none``; ``bernoulli`` and ``gaussian`` noise on activations, at ``input_drop_prob`` before the first layer and
    ``drop_prob`` before the others; ``gaussian_local``, the same noise on the weights; ``concrete``, a learned rate
    for each layer; ``variational`` and ``vbd``, a learned log alpha for each layer's weights, which differ in the
    divergence alone (``regulariser_recipe``).
    """
    if name not in get_args(Regulariser):
        raise ArgumentError("name", repr(name), f"one of {', '.join(get_args(Regulariser))}", "Check its spelling.")
    inner_probability("drop_prob", drop_prob)
    inner_probability("input_drop_prob", input_drop_prob)
    if name == "none":
        return without_widths(deepcopy(module), example)
    if name in ("bernoulli", "gaussian", "concrete"):
        sites = layer_sites(module)
        return gated(module, example, Gates(sites, _gates(name, sites, drop_prob, input_drop_prob), None))
    return _with_weight_noise(module, example, name, drop_prob, input_drop_prob)


def regulariser_recipe(name: Regulariser, recipe: Recipe) -> Recipe:
    """A recipe with the divergence that goes with a regulariser, and none where nothing is learned."""
    learned = name in ("concrete", "variational", "vbd")
    whole = recipe.but(draws=1, explore=0.0, coupled=0.0, sandwich=0.0, cuts=(1.0,))
    kappa = recipe.kappa if learned else 0.0
    return whole.but(kappa=kappa, weight_kl="hierarchical" if name == "vbd" else "log_uniform")


def _gates(name: str, sites: list[Site], drop_prob: float, input_drop_prob: float) -> list[Gate]:
    if name == "concrete":
        return [ConcreteGate(site.size) for site in sites]
    kind = BernoulliGate if name == "bernoulli" else GaussianDropoutGate
    return [kind(site.size, drop_prob if number else input_drop_prob) for number, site in enumerate(sites)]


def _with_weight_noise(
    module: nn.Module,
    example: Any,  # noqa: ANN401
    name: str,
    drop_prob: float,
    input_drop_prob: float,
) -> Nested:
    copy = nn.ModuleList([deepcopy(module)])
    make_variational(copy, (), "local")
    layers = [part for part in copy.modules() if isinstance(part, VariationalLayer)]
    for number, layer in enumerate(layers):
        mean = layer.posterior.mean
        rate = drop_prob if number else input_drop_prob
        log_alpha = mean.new_tensor(math.log(rate / (1 - rate)) if name == "gaussian_local" else START_LOG_ALPHA)
        scale: Tensor = log_alpha if name == "gaussian_local" else nn.Parameter(log_alpha)
        layer.posterior = MultiplicativeGaussian(mean, scale.requires_grad_(name != "gaussian_local"))
    return without_widths(copy[0], example)
