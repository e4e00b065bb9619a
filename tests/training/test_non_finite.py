"""Training that leaves the finite numbers, and the place that is named for it."""

import pytest
import torch
from small_networks import QUICK, examples, nested_mlp, normal
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import nestling as nl
from nestling.errors import DivergenceError
from nestling.prediction import Gaussian
from nestling.training import train

STRANGE = 19
"""The example that something is wrong with; in batches of 8 it is met in step 3."""


def diverged(nested, change=None, recipe=QUICK, data=None, **options):
    """The error of a run over batches in order, one of whose examples is changed."""
    x, y = (data or examples()).tensors
    x, y = x.clone(), y.clone()
    if change is not None:
        change(x, y)
    loaders = DataLoader(TensorDataset(x, y), 8), DataLoader(data or examples(), 8)
    with pytest.raises(DivergenceError) as caught:
        train(nested, loaders, recipe, quiet=True, **options)
    assert "\n" not in str(caught.value)
    assert caught.value.advice in str(caught.value)
    return caught.value


def spoiled(value):
    def change(x, y):
        x[STRANGE, 2] = value

    return change


@pytest.mark.parametrize("weights", ["gaussian", None])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_inputs(weights, value):
    error = diverged(nested_mlp(weights=weights), spoiled(value))
    assert (error.step, error.place) == (3, "the inputs of the batch")


def test_targets():
    def change(x, y):
        y[STRANGE] = float("nan")

    data = TensorDataset(normal(24, 4), normal(24, 3))
    error = diverged(nested_mlp(), change, data=data, likelihood="gaussian")
    assert (error.step, error.place) == (3, "the targets of the batch")


@pytest.mark.parametrize(
    ("weights", "name"),
    [(None, "layers.3.weight"), ("gaussian", "layers.3.posterior.mean"), ("gaussian", "layers.5.bias")],
)
def test_weights(weights, name):
    nested = nested_mlp(weights=weights)
    with torch.no_grad():
        nested.module.get_parameter(name).view(-1)[0] = float("nan")
    error = diverged(nested)
    assert error.step == 1
    assert error.place == f"the weights {name}"


class Exp(nn.Module):
    """Overflows for inputs of large size."""

    def forward(self, x):
        return x.abs().exp()


class Root(nn.Module):
    """Finite everywhere, with a slope that is not finite at zero."""

    def forward(self, x):
        return x.abs().sqrt()


def deep(middle, bias=True, **options):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 6, bias=bias), middle, nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 3))
    return nl.nest(module, normal(4, 4), num_blocks=3, num_always=1, **options)


@pytest.mark.parametrize("weights", ["gaussian", None])
def test_activations_of_a_layer_that_overflows(weights):
    error = diverged(deep(Exp(), weights=weights), spoiled(1e4))
    assert (error.step, error.place) == (3, "the output of layer 1")


@pytest.mark.parametrize("weights", [None, "gaussian"])
@pytest.mark.parametrize("layer", [2, 4])
def test_a_weight_so_large_that_its_layer_overflows(weights, layer):
    nested = deep(nn.ReLU(), weights=weights)
    with torch.no_grad():
        part = nested.module[layer]
        (part.weight if weights is None else part.posterior.mean).fill_(3e38)
    error = diverged(nested, lambda x, _: x.add_(10))
    assert (error.step, error.place) == (1, f"the output of layer {layer}")


def test_a_layer_that_overflows_in_a_network_that_runs_as_a_graph():
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
            self.grow, self.output = nn.Linear(4, 5), nn.Linear(5, 3)

        def forward(self, x):
            return self.output(self.grow(self.layer(x.unsqueeze(1)))[:, 0])

    nested = nl.nest(Attention(), normal(4, 4), weights=None, kinds=("head", "neuron"), num_blocks=2, num_always=1)
    with torch.no_grad():
        nested.module.grow.weight.fill_(3e38)
    assert "grow" in diverged(nested).place


def test_a_gradient_that_is_not_finite():
    def change(x, y):
        x[STRANGE] = 0.0

    error = diverged(deep(Root(), bias=False, weights=None), change)
    assert (error.step, error.place) == (3, "the gradient of 0.weight")


def test_a_loss_that_is_not_finite():
    """Output and target are finite, their squared distance is not."""

    def change(x, y):
        y[STRANGE] = 1e30

    data = TensorDataset(normal(24, 4), normal(24, 3))
    error = diverged(nested_mlp(), change, data=data, likelihood=Gaussian(center=0.0, scale=1.0))
    assert (error.step, error.place) == (3, "the loss")
    assert "targets" in error.advice


def test_a_learning_rate_that_is_far_too_large():
    recipe = QUICK.but(lr=1e18, optimiser="sgd", schedule="constant", clip=1e18, epochs=20)
    error = diverged(nested_mlp(weights=None), recipe=recipe)
    assert error.step > 1
    assert "lr" in error.advice


def test_no_hook_is_left_behind():
    nested = deep(Exp(), weights=None)
    diverged(nested, spoiled(1e4))
    assert not any(part._forward_hooks for part in nested.module.modules())
