"""Small nested networks and data for the tests of training; a network is nested once and copied after that."""

from copy import deepcopy
from functools import cache

import torch
from torch import nn
from torch.utils.data import TensorDataset

import nestling as nl
from nestling.training import Recipe

BOUND = {
    "objective": "elbo",
    "kappa": 1.0,
    "order_weight": None,
    "draws": 2,
    "explore": 0.0,
    "coupled": 0.0,
    "sandwich": 0.0,
}
"""The entries of a recipe whose loss is the evidence lower bound."""
QUICK = Recipe(epochs=2, batch_size=8, samples=2, cuts=(0.5, 1.0), lr_warm_up=0.0)


def normal(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def labels(high, *shape, seed=1):
    return torch.randint(high, shape, generator=torch.Generator().manual_seed(seed))


def examples(number=24, features=4, classes=3, seed=2):
    """Examples that can be learned: the class is the largest of the first features."""
    x = normal(number, features, seed=seed)
    return TensorDataset(x, x[:, :classes].argmax(1))


def nested_mlp(**options):
    """A fresh copy of a network of 4 inputs, 6 and 5 hidden neurons in 3 blocks each, and 3 outputs."""
    return deepcopy(_mlp(tuple(sorted(options.items()))))


@cache
def _mlp(options):
    torch.manual_seed(0)
    module = nl.models.build("mlp", hidden=[6, 5], in_features=4, num_classes=3)
    return nl.nest(module, normal(2, 4), **{"num_blocks": 3, "num_always": 1} | dict(options))


def nested_norms(**options):
    """A fresh copy of a convolutional network with batch norms, of 1 x 4 x 4 inputs and 3 outputs."""
    return deepcopy(_norms(tuple(sorted(options.items()))))


@cache
def _norms(options):
    return nl.nest(norms_module(), normal(4, 1, 4, 4), **{"num_blocks": 3, "num_always": 1} | dict(options))


def norms_module(seed=0):
    torch.manual_seed(seed)
    module = nn.Sequential(
        *(nn.Conv2d(1, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU()),
        *(nn.Conv2d(6, 5, 3), nn.BatchNorm2d(5), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(5 * 4, 3)),
    )
    return randomised(module)


def randomised(module):
    """The module with norms whose numbers are not ones and zeros, which would hide mistakes."""
    for part in module.modules():
        if isinstance(part, nn.BatchNorm1d | nn.BatchNorm2d):
            nn.init.uniform_(part.weight, 0.5, 1.5)
            nn.init.uniform_(part.bias, -0.5, 0.5)
            nn.init.uniform_(part.running_mean, -0.5, 0.5)
            nn.init.uniform_(part.running_var, 0.5, 1.5)
    return module


def images(number=24, seed=2):
    x = normal(number, 1, 4, 4, seed=seed)
    return TensorDataset(x, x.flatten(1)[:, :3].argmax(1))


def same_tensors(first, second):
    """Whether two dictionaries hold the same tensors, bit for bit."""
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def outputs_at(nested, x, cuts):
    """What a network gives in eval mode at each cut."""
    results = []
    for cut in cuts:
        with torch.no_grad(), nested.at(cut):
            results.append(nested(**x) if isinstance(x, dict) else nested(x))
    return results
