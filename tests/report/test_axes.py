"""Axes: values lie between the ends, numbers along the way are round, and nothing fails for odd values."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nestling.report.page.axes import count, linear_axis, log_axis, num_bytes, percents, plain

VALUES = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=8)
COSTS = st.lists(st.floats(1e-4, 1e12), min_size=1, max_size=8)


@given(VALUES)
def test_all_values_lie_on_a_linear_axis(values):
    axis = linear_axis("x", values, plain)
    assert all(-1e-9 <= axis.share(value) <= 1 + 1e-9 for value in values)
    assert axis.ticks
    assert all(-1e-3 <= axis.share(tick) <= 1 + 1e-3 for tick in axis.ticks)


@given(COSTS)
def test_all_costs_lie_on_a_log_axis(costs):
    axis = log_axis("x", costs, plain)
    assert all(0 <= axis.share(cost) <= 1 for cost in costs)
    assert 1 <= len(axis.ticks) <= 20
    assert list(axis.ticks) == sorted(set(axis.ticks))


def test_ticks_are_round():
    assert linear_axis("x", [0, 1], plain, tight=True).ticks == pytest.approx((0, 0.2, 0.4, 0.6, 0.8, 1))
    assert log_axis("x", [90_000, 2_500_000], plain).ticks == pytest.approx((1e5, 2e5, 5e5, 1e6, 2e6))


def test_bounds_hold():
    axis = linear_axis("x", [0.1, 0.99], percents, within=(0.0, 1.0))
    assert (axis.low, axis.high) == (pytest.approx(0.0466), 1.0)


def test_one_value_alone_has_an_axis():
    axis = linear_axis("x", [0.5], plain, within=(0.0, 1.0))
    assert 0 < axis.share(0.5) < 1
    assert math.isfinite(axis.low)


def test_labels():
    assert [percents(0.855), plain(-0.0), num_bytes(475_000), num_bytes(12)] == ["85.5%", "0", "475 kB", "12 B"]


def test_neighbouring_labels_differ():
    """Few digits where they tell neighbours apart, all of them elsewhere; two ends may have one label."""
    axis = linear_axis("x", [329_600, 332_200], count)
    assert [axis.write(tick) for tick in axis.ticks] == [f"{tick:,.0f}" for tick in axis.ticks]
    axis = linear_axis("x", [120_000, 332_200], count)
    assert [axis.write(tick) for tick in axis.ticks] == ["150k", "200k", "250k", "300k"]
    axis = linear_axis("x", [-0.4, 0.4], lambda share: percents(abs(round(share, 4))), tight=True)
    assert [axis.write(tick) for tick in axis.ticks] == ["40%", "20%", "0%", "20%", "40%"]
