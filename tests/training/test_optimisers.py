"""The optimiser against torch's own, one kernel an operation, for tensors that lie in memory in any way."""

import pytest
import torch
from torch import nn

import nestling as nl
from nestling.training import Recipe
from nestling.training.optimisers import (
    OPTIMISERS,
    AdamW,
    OptimiserType,
    StateEntry,
    check_optimiser,
    load_optimiser,
    optimiser_tensors,
)
from nestling.training.parameter_groups import make_optimiser

LAYOUTS = {"first": torch.contiguous_format, "last": torch.channels_last}
SHAPE = (8, 4, 3, 3)


def parameter(layout):
    made = torch.Generator().manual_seed(0)
    return torch.nn.Parameter(torch.randn(SHAPE, generator=made).contiguous(memory_format=LAYOUTS[layout]))


def gradient(step, layout):
    made = torch.Generator().manual_seed(step)
    return torch.randn(SHAPE, generator=made).contiguous(memory_format=LAYOUTS[layout])


def after(optimiser, own, steps, layout):
    for step in steps:
        own.grad = gradient(step, layout)
        optimiser.step()
    return own.detach().clone()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("gradients", LAYOUTS)
def test_steps_are_those_of_torch(layout, gradients):
    own, known = parameter(layout), parameter("first")
    expected = after(torch.optim.AdamW([known], 1e-2, foreach=False), known, range(1, 4), "first")
    torch.testing.assert_close(after(AdamW([own], 1e-2, fused=True), own, range(1, 4), gradients), expected)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_steps_go_on_from_a_state_that_was_kept_without_its_layout(layout):
    own, again = parameter(layout), parameter(layout)
    first = AdamW([own], 1e-2, fused=True)
    after(first, own, [1, 2], layout)
    tensors = optimiser_tensors(first).items()
    kept = {name: value.clone(memory_format=torch.contiguous_format) for name, value in tensors}
    again.data.copy_(own.data)
    second = AdamW([again], 1e-2, fused=True)
    load_optimiser(second, kept)
    torch.testing.assert_close(after(second, again, [3], layout), after(first, own, [3], layout), rtol=0, atol=0)


def test_a_parameter_may_change_its_layout_on_the_way():
    own, known = parameter("first"), parameter("first")
    optimiser = AdamW([own], 1e-2, fused=True)
    after(optimiser, own, [1], "first")
    own.data = own.data.contiguous(memory_format=torch.channels_last)
    expected = after(torch.optim.AdamW([known], 1e-2, foreach=False), known, [1, 2, 3], "first")
    torch.testing.assert_close(after(optimiser, own, [2, 3], "first"), expected)


def test_gradients_with_channels_last_are_not_copied():
    own = parameter("last")
    optimiser = AdamW([own], 1e-2, fused=True)
    after(optimiser, own, [1], "last")
    own.grad = gradient(2, "last")
    with torch.profiler.profile() as profile:
        optimiser.step()
    assert not any(row.key == "aten::clone" for row in profile.key_averages())


def convolutions(*norm):
    return nn.Sequential(nn.Conv2d(1, 4, 3), *norm, nn.ReLU(), nn.Flatten(), nn.Linear(16, 2))


@pytest.mark.parametrize("weights", [None, "gaussian", "ivon"])
@pytest.mark.parametrize(
    ("module", "lr"),
    [
        (convolutions(), 0.003),
        (convolutions(nn.BatchNorm2d(4)), 0.01),
        (convolutions(nn.GroupNorm(2, 4)), 0.01),
        (nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 2)), 0.01),
    ],
    ids=["convolutions", "batch norm", "group norm", "dense"],
)
def test_only_convolutions_without_norms_keep_the_lower_rate_in_a_short_run(module, lr, weights):
    nested = nl.nest(module, torch.zeros(2, 1, 4, 4), weights=weights, num_blocks=2, num_always=1)
    assert make_optimiser(nested, Recipe(), 10).param_groups[0]["lr"] == lr


class Counting(torch.optim.Optimizer):
    """An optimiser with numbers of its own: a plain count and a float of each parameter, and one of each group."""

    def __init__(self, groups):
        super().__init__(groups, {"lr": 0.1, "weight_decay": 0.0, "rate": 1.0})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            group["rate"] *= 0.9
            for own in group["params"]:
                if own.grad is not None:
                    state = self.state[own]
                    state["count"] = state.get("count", 0) + 1
                    state["sum"] = state.get("sum", 0.0) + float(own.grad.sum())
                    own.add_(own.grad.sign(), alpha=-group["lr"] * group["rate"] / (1 + abs(state["sum"])))


COUNTING = OptimiserType(
    Counting,
    lambda groups, momentum: Counting(groups),
    {"count": StateEntry(torch.int64, plain=True, least=1), "sum": StateEntry(torch.float64, plain=True)},
    group_state=("rate",),
)


def test_plain_numbers_and_those_of_groups_are_kept_to_the_last_bit(monkeypatch):
    monkeypatch.setitem(OPTIMISERS, "counting", COUNTING)
    own, again = parameter("first"), parameter("first")
    first, second = Counting([own]), Counting([again])
    after(first, own, [1, 2, 3], "first")
    again.data.copy_(own.data)
    tensors = {name: value.clone() for name, value in optimiser_tensors(first).items()}
    check_optimiser(second, tensors)
    load_optimiser(second, tensors)
    assert second.state[again] == first.state[own]
    assert [type(value) for value in second.state[again].values()] == [int, float]
    assert second.param_groups[0]["rate"] == first.param_groups[0]["rate"]
    torch.testing.assert_close(after(second, again, [4], "first"), after(first, own, [4], "first"), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("0.count", torch.tensor(0)),
        ("0.count", torch.tensor(1.0)),
        ("0.sum", torch.tensor(0.5)),
        ("0.sum", torch.tensor(torch.nan, dtype=torch.float64)),
        ("0.other", torch.tensor(1)),
        ("1.count", torch.tensor(1)),
        ("group0.other", torch.tensor(1.0)),
        ("group1.rate", torch.tensor(1.0)),
    ],
)
def test_a_state_that_is_not_the_optimisers_is_refused(name, value, monkeypatch):
    monkeypatch.setitem(OPTIMISERS, "counting", COUNTING)
    own = parameter("first")
    optimiser = Counting([own])
    after(optimiser, own, [1], "first")
    with pytest.raises(ValueError, match="of the optimiser"):
        check_optimiser(optimiser, optimiser_tensors(optimiser) | {name: value})


def test_a_state_without_the_numbers_of_its_groups_is_refused(monkeypatch):
    monkeypatch.setitem(OPTIMISERS, "counting", COUNTING)
    with pytest.raises(ValueError, match="of the optimiser"):
        check_optimiser(Counting([parameter("first")]), {})
