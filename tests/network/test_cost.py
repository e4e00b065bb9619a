"""Costs of a cut, against numbers worked out by hand."""

import pytest
import torch
from torch import nn

import nestling as nl


@pytest.fixture
def nested():
    net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 16, 5))
    return nl.nest(net, torch.randn(7, 3, 4, 4), num_blocks=8, num_always=1)


@pytest.mark.parametrize("channels", [1, 3, 8])
def test_parameters_multiply_adds_and_bytes(nested, channels):
    cost = nl.cost(nested, {"0": channels})
    params = (3 * 9 * channels + channels) + 2 * channels + (channels * 16 * 5 + 5)
    assert cost.params == params
    assert cost.macs == 16 * 27 * channels + channels * 16 * 5
    assert cost.bytes == 4 * (params + 2 * channels) + 8
    assert cost.latency_ms is None


def test_latency_is_measured_and_threads_are_restored(nested):
    before = torch.get_num_threads()
    cost = nl.cost(nested, 0.5, latency=True, batch_size=4, threads=1)
    assert cost.latency_ms is not None
    assert cost.latency_ms > 0
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("wrong", [{"batch_size": 0}, {"threads": 0}, {"batch_size": 1.5}])
def test_bad_options(nested, wrong):
    with pytest.raises(nl.ArgumentError, match=next(iter(wrong))):
        nl.cost(nested, 0.5, latency=True, **wrong)
