"""Whether outputs agree: the largest difference as a part of the largest entry, and what no rounding explains."""

import math

import pytest
import torch
from torch import nn

from nestling.errors import NestlingError
from nestling.running.agreement import check_same, difference, gap, with_noise

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("expected", "found", "wanted"),
    [
        ([1.0, -4.0], [1.5, -4.0], 0.125),
        ([0.0, 0.0], [0.0, 1e-12], 1.0),  # against the smallest scale
        ([1.0, NAN], [1.0, NAN], 0.0),
        ([1.0, NAN], [1.0, 2.0], INF),
        ([1.0, 2.0], [1.0, NAN], INF),
        ([2.0, INF], [1.0, INF], 0.5),
        ([2.0, INF], [2.0, -INF], INF),
        ([2.0, INF], [2.0, 7.0], INF),
        ([1.0, 2.0], [1.0], INF),
        ([], [], 0.0),
        ([1, 2], [1, 2], 0.0),
        ([1, 2], [1, 3], INF),
        ([True, False], [True, True], INF),
    ],
)
def test_gap(expected, found, wanted):
    assert gap(torch.tensor(expected), torch.tensor(found)) == pytest.approx(wanted)


def test_gap_of_containers_is_the_largest_of_their_tensors():
    left = {"a": torch.tensor([1.0]), "b": (torch.tensor([10.0]), "text")}
    right = {"a": torch.tensor([1.5]), "b": (torch.tensor([11.0]), "other text")}
    assert gap(left, right) == 0.5
    with pytest.raises(ValueError, match="zip"):
        gap((torch.ones(1),), (torch.ones(1), torch.ones(1)))


def test_networks_are_compared_in_eval_mode_and_keep_their_own():
    first, second = nn.Sequential(nn.Dropout(0.5)), nn.Sequential(nn.Identity()).eval()
    assert difference(first, second, (torch.ones(100),), {}) == 0
    assert first.training
    assert not second.training


def test_networks_that_agree_on_the_example_alone_are_refused():
    class Clamped(nn.Module):
        def forward(self, x):
            return x.clamp(0, 1)

    call = ((torch.full((8,), 0.5),), {})
    check_same(nn.Identity(), Clamped(), [call], "clamped")
    with pytest.raises(NestlingError, match="the clamped network differs from the one it was taken from by"):
        check_same(nn.Identity(), Clamped(), with_noise(call), "clamped")
