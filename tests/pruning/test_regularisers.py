"""The dropout family: its noise in train mode against the closed forms, and none of it in eval mode."""

from typing import get_args

import pytest
import torch
from pruning_networks import examples, mlp, small_mlp
from torch import nn

from nestling.distributions import hierarchical_kl, log_uniform_kl
from nestling.distributions.gates import gates_of
from nestling.errors import ArgumentError
from nestling.pruning.regularisers import Regulariser, regularised, regulariser_recipe
from nestling.pruning.sites import layer_sites
from nestling.running.agreement import difference
from nestling.training import Recipe, train
from nestling.training.parameter_groups import make_optimiser

NAMES = get_args(Regulariser)


@pytest.mark.parametrize("name", NAMES)
def test_no_noise_in_eval_mode(name):
    module, x = mlp()
    nested = regularised(module, x, name)
    assert difference(nested, module, (x,), {}) < 1e-12


@pytest.mark.parametrize("name", ["bernoulli", "gaussian", "gaussian_local", "variational", "vbd"])
def test_the_variance_of_one_layer(name):
    """All have, or start with, the same mean and variance on a linear layer's output: p / (1 - p) sum (w x)^2."""
    torch.manual_seed(0)
    layer = nn.Linear(5, 2)
    x = torch.randn(5)
    nested = regularised(nn.Sequential(layer), x[None], name, input_drop_prob=0.4).train()
    with torch.no_grad():
        draws = nested(x.expand(40000, 5))
        mean = layer(x)
        variance = 0.4 / 0.6 * (layer.weight * x).square().sum(1)
    torch.testing.assert_close(draws.mean(0), mean, atol=0.02, rtol=0)
    torch.testing.assert_close(draws.var(0), variance, atol=0, rtol=0.05)


@pytest.mark.parametrize("name", NAMES)
def test_every_one_of_them_trains(name):
    data = examples()
    nested = regularised(small_mlp(), torch.zeros(2, 6), name)
    recipe = regulariser_recipe(name, Recipe(epochs=1, batch_size=40, samples=1))
    run = train(nested, (data, data), recipe, quiet=True)
    assert (run.log[-1]["kappa"] > 0) == (name in ("concrete", "variational", "vbd"))


def test_a_name_that_is_none():
    with pytest.raises(ArgumentError, match="name: got 'dropconnect'"):
        regularised(*mlp(), "dropconnect")


@pytest.mark.parametrize("name", ["concrete", "variational", "vbd"])
def test_a_learned_noise_has_the_learning_rate_of_gates(name):
    nested = regularised(small_mlp(), torch.zeros(2, 6), name)
    optimiser = make_optimiser(nested, Recipe(lr=1e-3, order_lr=0.5), 10)
    fast = [own for group in optimiser.param_groups if group["lr"] == 0.5 for own in group["params"]]
    gates = gates_of(nested).values()
    assert {id(own) for own in fast} == {id(own) for gate in gates for own in gate.parameters()}
    assert len(gates) == len(layer_sites(small_mlp()))


@pytest.mark.parametrize("name", ["variational", "vbd"])
def test_no_unit_is_dropped_for_its_noise(name):
    module, x = mlp()
    nested = regularised(module, x, name)
    for gate in gates_of(nested).values():
        gate.posterior.log_sigma2.data.fill_(5.0)  # past the threshold of pruning
    assert difference(nested, module, (x,), {}) < 1e-12


@pytest.mark.parametrize(("name", "divergence"), [("variational", log_uniform_kl), ("vbd", hierarchical_kl)])
def test_the_two_learned_gaussians_differ_in_their_divergence(name, divergence):
    nested = regularised(nn.Sequential(nn.Linear(5, 2)), torch.zeros(2, 5), name, input_drop_prob=0.4)
    (gate,) = gates_of(nested).values()
    torch.testing.assert_close(gate.kl(), 5 * divergence(torch.tensor(0.4 / 0.6).log()))
