"""How each parameter moves, as its distribution says; and the divergences and tensors that posteriors declare."""

import pytest
import torch
from torch import nn

import nestling as nl
from nestling.distributions import BernoulliChain, Downhill, Uniform, kl, log_uniform_kl
from nestling.distributions.gates import GaussianGate
from nestling.distributions.weights import POSTERIORS, AdditiveGaussian, MultiplicativeGaussian, NaturalGaussian
from nestling.reading.cut import make_cut
from nestling.training import Recipe
from nestling.training.parameter_groups import make_optimiser
from nestling.training.terms import weight_divergence


def network():
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))


def nested(weights):
    torch.manual_seed(0)
    return nl.nest(network(), torch.randn(2, 4), weights=weights, num_blocks=3, num_always=1)


def moves(model):
    """The name of each parameter with the learning rate, decay and natural rate of its group."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    groups = make_optimiser(model, Recipe(lr=0.5, order_lr=0.25, weight_decay=0.125), 10).param_groups
    return {
        names[id(own)]: (group["lr"], group["weight_decay"], "natural_rate" in group)
        for group in groups
        for own in group["params"]
    }


@pytest.mark.parametrize(
    ("weights", "scale", "expected"),
    [("gaussian", "log_alpha", (0.5, 0.0, False)), ("ivon", "log_sigma2", (0.0, 0.0, True))],
)
def test_posteriors_biases_and_orders_move_as_they_say(weights, scale, expected):
    found = moves(nested(weights))
    assert found[f"module.0.posterior.{scale}"] == expected
    assert found["module.0.posterior.mean"] == found["module.0.bias"] == (0.5, 0.0, False)
    assert found["_orders.0.logits"] == (0.25, 0.0, False)
    assert len(found) == 3 * 3 + 2


def test_plain_weights_decay_and_biases_do_not():
    found = moves(nested(None))
    assert found["module.0.weight"] == (0.5, 0.125, False)
    assert found["module.0.bias"] == (0.5, 0.0, False)


def test_a_gate_speaks_for_the_posterior_within_it():
    model = nested(None)
    model.register_module("gate", GaussianGate(3))
    found = moves(model)
    assert found["gate.posterior.mean"] == found["gate.posterior.log_sigma2"] == (0.25, 0.0, False)


def test_noise_of_single_weights_moves_as_orders_do():
    model = nested("gaussian")
    for layer in (model.module[0], model.module[2], model.module[4]):
        layer.posterior = AdditiveGaussian.from_weight(layer.posterior.mean)
    found = moves(model)
    assert found["module.2.posterior.log_sigma2"] == (0.25, 0.0, False)
    assert found["module.2.posterior.mean"] == (0.5, 0.0, False)


@pytest.mark.parametrize("order", [Downhill(torch.randn(7)), Uniform(8), Uniform(8, num_always=3)])
def test_the_divergence_of_an_order_is_that_from_a_chain(order):
    prior = BernoulliChain(torch.full((order.num_blocks - order.num_always,), 0.9), num_always=order.num_always)
    torch.testing.assert_close(order.divergence(0.9), kl(order, prior))


@pytest.mark.parametrize("family", [*POSTERIORS.values(), AdditiveGaussian])
def test_the_divergences_of_single_weights_add_up(family):
    posterior = family.from_weight(nn.Parameter(torch.randn(5, 3, dtype=torch.float64)))
    single = posterior.divergences(log_uniform_kl)
    assert single.shape == (5, 3)
    torch.testing.assert_close(posterior.total(log_uniform_kl), single.sum(), rtol=1e-4, atol=0)


@pytest.mark.parametrize("weights", POSTERIORS)
def test_divergences_weighed_by_ones_are_those_of_the_whole(weights):
    """By IVON's own prior too, whose divergence is no function of log alpha."""
    model = nested(weights)
    cut = make_cut(model.groups, 1.0)
    ones = {group.name: torch.ones(group.num_blocks) for group in model.groups.free}
    whole = weight_divergence(model, cut, log_uniform_kl)
    torch.testing.assert_close(weight_divergence(model, cut, log_uniform_kl, ones), whole, rtol=1e-4, atol=1e-3)


def test_tensors_are_cut_along_the_axes_of_the_weight_that_they_have():
    mean = nn.Parameter(torch.randn(5, 3))
    assert list(NaturalGaussian.from_weight(mean).along(0)) == [("mean", 0), ("log_sigma2", 0)]
    one = MultiplicativeGaussian(mean, nn.Parameter(torch.zeros(())))
    assert [list(one.along(axis)) for axis in (0, 1)] == [[("mean", 0)], [("mean", 1)]]
    columns = MultiplicativeGaussian(mean, nn.Parameter(torch.zeros(3)))
    assert [list(columns.along(axis)) for axis in (0, 1)] == [[("mean", 0)], [("mean", 1), ("log_alpha", 0)]]
    rows = MultiplicativeGaussian(mean, nn.Parameter(torch.zeros(5, 1)))
    assert [list(rows.along(axis)) for axis in (0, 1)] == [[("mean", 0), ("log_alpha", 0)], [("mean", 1)]]
