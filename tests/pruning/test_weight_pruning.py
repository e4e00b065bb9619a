"""Pruned weights: the threshold, the zeros, and units that can go because no weight is left of them."""

from copy import deepcopy

import numpy as np
import pytest
import torch
from pruning_networks import NETWORKS, based, normal, seeded
from torch import nn

from nestling.distributions.weights import AdditiveGaussian
from nestling.errors import ArgumentError, NestlingError
from nestling.pruning.cutting import cut_out
from nestling.pruning.weights import check_weights_left, kept_weights, live_units, with_noise, without_weights
from nestling.reading.cut import full_cut
from nestling.running.agreement import difference
from nestling.running.layers import VariationalLayer, drawing


def noisy(name="mlp", seed=0):
    """A network whose weights have log alphas on both sides of the threshold."""
    module, x = NETWORKS[name]()
    nested = with_noise(module, x)
    with torch.no_grad():
        for number, layer in enumerate(p for p in nested.module.modules() if isinstance(p, VariationalLayer)):
            posterior = layer.posterior
            assert isinstance(posterior, AdditiveGaussian)
            posterior.log_sigma2.copy_(3 * normal(*posterior.mean.shape, seed=seed + number))
    return nested, x


def test_noise_starts_small_and_leaves_the_mean_alone():
    module, x = NETWORKS["convolutions"]()
    nested = with_noise(module, x).eval()
    assert difference(nested, module, (x,), {}) == 0
    scales = [p.posterior.log_sigma2 for p in nested.module.modules() if isinstance(p, VariationalLayer)]
    assert len(scales) == 4
    assert all(bool((scale == -10).all()) for scale in scales)


def test_threshold_is_on_log_alpha():
    nested, _ = noisy()
    kept = kept_weights(nested, 1.5)
    for path, flags in kept.items():
        posterior = nested.module.get_submodule(path).posterior
        mean, log_sigma2 = posterior.mean.detach().numpy(), posterior.log_sigma2.detach().numpy()
        np.testing.assert_array_equal(flags.numpy(), np.exp(log_sigma2) / mean**2 < np.exp(1.5))


def test_dropped_weights_are_zero_and_silent():
    nested, x = noisy()
    kept = kept_weights(nested, 3.0)
    sparse = without_weights(nested, kept)
    plain = sparse.extracted(full_cut(sparse.groups))
    for path, flags in kept.items():
        mean = nested.module.get_submodule(path).posterior.mean
        torch.testing.assert_close(plain.get_submodule(path).weight, mean * flags, rtol=0, atol=0)
    nothing = {path: torch.zeros_like(flags) for path, flags in kept.items()}
    with torch.no_grad(), drawing(without_weights(nested, nothing).eval().module) as silent:
        torch.testing.assert_close(silent(x), silent(x), rtol=0, atol=1e-15)


@pytest.mark.parametrize("share", [0.05, 0.2, 0.5])
@pytest.mark.parametrize("name", NETWORKS)
def test_dead_units_go_and_nothing_changes(name, share):
    module, x = NETWORKS[name]()
    for seed in range(2):
        sparse = deepcopy(module)
        with torch.no_grad():
            for number, layer in enumerate(p for p in sparse.modules() if isinstance(p, nn.Linear | nn.Conv1d)):
                layer.weight.mul_(torch.rand(layer.weight.shape, generator=seeded(seed + number)) < share)
            for layer in (p for p in sparse.modules() if isinstance(p, nn.Conv2d | nn.ConvTranspose1d)):
                alive = torch.rand(layer.weight.shape[:2], generator=seeded(seed)) < share
                layer.weight.mul_(alive.view(*alive.shape, *[1] * (layer.weight.ndim - 2)))
        base, sites = based(sparse, x)
        kept = live_units(base, sites)
        small = cut_out(base, sites, kept, {site.name: torch.ones(site.size) for site in sites}).network
        assert difference(sparse, small, (normal(*x.shape, seed=3),), {}) < 1e-9


def test_live_units_by_hand():
    """Of four units one is unread, one is a constant, and one feeds a unit that is unread; the last one stays."""
    first, second, last = nn.Linear(2, 4), nn.Linear(4, 2), nn.Linear(2, 1)
    with torch.no_grad():
        first.weight.copy_(torch.tensor([[1.0, 2.0], [0.0, 0.0], [3.0, 1.0], [1.0, 1.0]]))
        first.bias.copy_(torch.tensor([0.1, 0.7, 0.2, -0.3]))
        second.weight.copy_(torch.tensor([[0.0, 2.0, 0.0, 1.5], [0.0, 0.0, 4.0, 0.0]]))
        second.bias.copy_(torch.tensor([0.5, 0.25]))
        last.weight.copy_(torch.tensor([[1.0, 0.0]]))
    module = nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), last).double().eval()
    base, sites = based(module, normal(5, 2))
    kept = live_units(base, sites)
    assert kept["0"].tolist() == [False, False, False, True]
    assert kept["2"].tolist() == [True, False]
    assert base.module[2].bias[0].item() == pytest.approx(0.5 + 2.0 * 0.7)
    small = cut_out(base, sites, kept, {site.name: torch.ones(site.size) for site in sites}).network
    assert [tuple(p.shape) for p in small.parameters()] == [(1, 2), (1,), (1, 1), (1,), (1, 1), (1,)]
    assert difference(module, small, (normal(9, 2, seed=1),), {}) < 1e-12


def test_an_empty_layer_is_refused():
    kept = {"first": torch.ones(2, 2, dtype=torch.bool), "second": torch.zeros(2, 2, dtype=torch.bool)}
    with pytest.raises(NestlingError, match=r"everything was pruned away in second \(gone: first: 0.00%, second: 100"):
        check_weights_left(kept)


def test_a_network_without_weights_to_prune_is_refused():
    with pytest.raises(ArgumentError, match=r"a network of .*ReLU.*linear or convolution"):
        with_noise(nn.Sequential(nn.ReLU(), nn.BatchNorm1d(3)), torch.zeros(2, 3))
