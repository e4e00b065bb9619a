"""How much memory ``nest`` takes at most, counted in bytes that torch hands out."""

import pytest
import torch
from torch import nn

import nestling as nl


def most_bytes(function):
    """Bytes handed out and not yet given back, at the most of all times while a function runs."""
    with torch.profiler.profile(profile_memory=True) as profile:
        kept = function()
    events = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    del kept
    return most


@pytest.mark.parametrize("weights", ["gaussian", None])
def test_nesting_takes_at_most_four_times_the_parameters(weights):
    """A copy to own, another in double precision to check the groups on, and some room."""
    net = nn.Sequential(
        *(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU()),
        nn.Linear(512, 10),
    )
    parameters = sum(own.nbytes for own in net.parameters())
    assert parameters < most_bytes(lambda: nl.nest(net, torch.zeros(2, 64), weights=weights)) < 4 * parameters
