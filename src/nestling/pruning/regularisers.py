"""The dropout family as regularisers: noise while a network is trained, which stays as large as before."""

import math
from copy import deepcopy
from typing import Any, Literal, get_args

from torch import nn

from nestling.arguments import inner_probability
from nestling.distributions import hierarchical_kl, log_uniform_kl
from nestling.distributions.gates import BernoulliGate, ConcreteGate, Gate, GaussianDropoutGate, GaussianGate
from nestling.distributions.weights import MultiplicativeGaussian
from nestling.errors import ArgumentError
from nestling.pruning.gated import Gates, gated, without_widths
from nestling.pruning.methods import plain_recipe
from nestling.pruning.sites import layer_sites
from nestling.running import Nested
from nestling.running.layers import make_variational, variational_layers
from nestling.training import Recipe

Regulariser = Literal["none", "bernoulli", "gaussian", "gaussian_local", "concrete", "variational", "vbd"]


def regularised(
    module: nn.Module,
    example: Any,  # noqa: ANN401
    name: Regulariser,
    *,
    drop_prob: float = 0.5,
    input_drop_prob: float = 0.2,
) -> Nested:
    """A copy of a network with a kind of dropout on the inputs of its layers, or on their weights, ready to train.

    ``none``; ``bernoulli`` and ``gaussian`` noise on activations, at ``input_drop_prob`` before the first layer and
    ``drop_prob`` before the others; ``gaussian_local``, the same noise on the weights; ``concrete``, a learned rate
    per layer; ``variational`` and ``vbd``, the noise of ``gaussian`` with a learned scale and log alpha per unit:
    these two differ only in the divergence.
    """
    if name not in get_args(Regulariser):
        raise ArgumentError("name", repr(name), f"one of {', '.join(get_args(Regulariser))}", "Check its spelling.")
    inner_probability("drop_prob", drop_prob)
    inner_probability("input_drop_prob", input_drop_prob)
    if name == "none":
        return without_widths(deepcopy(module), example)
    if name == "gaussian_local":
        return _with_weight_noise(module, example, drop_prob, input_drop_prob)
    sites = layer_sites(module)
    rates = [drop_prob if number else input_drop_prob for number in range(len(sites))]
    gates = [_gate(name, site.size, rate) for site, rate in zip(sites, rates, strict=True)]
    threshold = math.inf if name in ("variational", "vbd") else None  # on log alpha: no unit is dropped for its noise
    return gated(module, example, Gates(sites, gates, threshold))


def regulariser_recipe(name: Regulariser, recipe: Recipe) -> Recipe:
    """A recipe for the whole network, without a divergence for regularisers that learn nothing."""
    whole = plain_recipe(recipe)
    return whole if name in ("concrete", "variational", "vbd") else whole.but(kappa=0.0)


def _gate(name: str, size: int, rate: float) -> Gate:
    if name == "concrete":
        return ConcreteGate(size)
    if name in ("bernoulli", "gaussian"):
        return BernoulliGate(size, rate) if name == "bernoulli" else GaussianDropoutGate(size, rate)
    divergence = hierarchical_kl if name == "vbd" else log_uniform_kl
    return GaussianGate(size, divergence=divergence, log_sigma2=_log_alpha(rate))


def _with_weight_noise(module: nn.Module, example: Any, drop_prob: float, input_drop_prob: float) -> Nested:  # noqa: ANN401
    copy = nn.ModuleList([deepcopy(module)])
    make_variational(copy, (), "local")
    for number, layer in enumerate(variational_layers(copy).values()):
        mean = layer.posterior.mean
        log_alpha = mean.new_tensor(_log_alpha(drop_prob if number else input_drop_prob))
        layer.posterior = MultiplicativeGaussian(mean, log_alpha)
    return without_widths(copy[0], example)


def _log_alpha(rate: float) -> float:
    """log alpha of the Gaussian noise that has the same variance as dropout at a rate."""
    return math.log(rate) - math.log1p(-rate)
