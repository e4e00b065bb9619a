"""Networks that decide for each input what to compute, against the gated ones that they were taken from."""

import pytest
import torch
from pruning_networks import NETWORKS, based, normal, seeded
from torch import nn
from torch.utils.data import TensorDataset

from nestling.distributions.gates import BetaBernoulli, DependentBetaBernoulli
from nestling.pruning.cutting import cut_out, joined
from nestling.pruning.dependent import drop_unused, run_time_network, with_dependence, with_one_reader
from nestling.pruning.gated import Gates, gated, gates_in
from nestling.pruning.run_time import RunTimeGate, RunTimeReader
from nestling.running.agreement import difference
from nestling.training import Recipe

THRESHOLD = 0.05


def dependent(name, seed=0, inputs=True):
    """A network with trained-looking dependent gates, and its base and sites."""
    module, x = NETWORKS[name]()
    base, sites = based(module, x, inputs=inputs)
    sites, left = with_one_reader(sites)
    whole = gated(module, x, Gates(sites, [BetaBernoulli(site.size, raw_a=1.0) for site in sites], THRESHOLD))
    with torch.no_grad():
        for number, gate in enumerate(gates_in(whole).by_name.values()):
            gate.raw_a.copy_(torch.where(torch.rand(gate.num_units, generator=seeded(seed + number)) < 0.3, -9.0, 1.0))
            gate.raw_a[0] = 2.0
    whole = with_dependence(whole)
    with torch.no_grad():
        for number, gate in enumerate(gates_in(whole).by_name.values()):
            for parameter in (gate.gamma, gate.eta):
                parameter.copy_(torch.randn(gate.num_units, generator=seeded(seed + 9 + number), dtype=torch.float64))
            gate.running_mean.copy_(normal(gate.num_units, seed=number))
            gate.running_var.copy_(0.5 + normal(gate.num_units, seed=number).square())
    return whole.eval(), base, sites, x, left


@pytest.mark.parametrize("name", NETWORKS)
def test_run_time_network_is_the_gated_one(name):
    whole, base, sites, x, _ = dependent(name)
    held = gates_in(whole)
    kept = {site.name: held.by_name[site.name].keep(THRESHOLD) for site in sites}
    taken = cut_out(base, sites, kept, {site.name: torch.ones(site.size) for site in sites})
    joint = joined(sites, kept)
    for site in sites:
        held.alive(site.name).copy_(joint[site.name])
    small = run_time_network(taken, held, THRESHOLD)
    for part in small.modules():
        if isinstance(part, RunTimeReader):
            part.few = 0.6  # so that some examples take either way
    batch = normal(7, *x.shape[1:], seed=3)
    assert difference(whole, small, (batch,), {}) < 1e-9
    for one in batch:
        assert difference(whole, small, (one[None],), {}) < 1e-9


def test_a_stream_with_several_readers_is_left_out():
    _, _, sites, _, left = dependent("residual")
    assert all(len(site.readers) == 1 for site in sites)
    assert list(left.values()) == ["several layers read it, and each would decide by itself"]


def test_a_single_example_is_computed_with_the_kept_features_alone():
    layer = nn.Linear(4, 3).double()
    gate = RunTimeGate(
        torch.tensor([0.9, 0.8, 0.7, 0.6], dtype=torch.float64),
        torch.zeros(4).double(),
        torch.ones(4).double(),
        torch.zeros(4).double(),
        torch.arange(4).unsqueeze(1),
        -1,
        0.2,
    )
    reader = RunTimeReader(gate, layer, few=0.5).eval()
    with torch.no_grad():
        layer.weight[:, 0] = torch.inf  # of a unit that this input drops: whoever multiplied it by zero would get NaN
        found = reader(torch.tensor([[0.1, -1.0, 0.5, 0.2]], dtype=torch.float64))
        expected = layer.weight[:, 2] * 0.5 * 0.7 * 0.5 + layer.bias
    torch.testing.assert_close(found[0], expected, rtol=1e-12, atol=1e-12)


def reader_of_few():
    """A linear layer of 8 features of which the gate keeps one, and what it multiplies that one by."""
    pi = torch.zeros(8)
    pi[3] = 0.5
    gate = RunTimeGate(pi, torch.zeros(8), torch.zeros(8), torch.full((8,), 0.5), torch.arange(8)[:, None], 1, 0.01)
    return RunTimeReader(gate, nn.Linear(8, 4, bias=False), few=0.5).eval(), 0.25


@torch.no_grad()
def test_a_weight_that_is_written_to_or_loaded_is_read_again():
    reader, factor = reader_of_few()
    x = torch.randn(1, 8)
    reader(x)
    reader.layer.weight.mul_(3)
    torch.testing.assert_close(reader(x), factor * x[:, 3:4] @ reader.layer.weight[:, 3:4].T)
    reader.load_state_dict({name: tensor + 1 for name, tensor in reader.state_dict().items() if "layer" in name}, False)
    torch.testing.assert_close(reader(x), factor * x[:, 3:4] @ reader.layer.weight[:, 3:4].T)


def test_gradients_reach_the_weight_of_kept_features():
    reader, factor = reader_of_few()
    x = torch.randn(1, 8)
    reader(x).sum().backward()
    expected = torch.zeros(4, 8)
    expected[:, 3] = factor * x[0, 3]
    torch.testing.assert_close(reader.layer.weight.grad, expected)


def test_units_that_no_example_uses_are_given_up():
    whole, _, sites, _, _ = dependent("mlp", inputs=False)
    held = gates_in(whole)
    inputs = normal(30, 6, seed=1)
    data = TensorDataset(inputs, torch.zeros(30, dtype=torch.int64))
    used = {site.name: torch.zeros(site.size, dtype=torch.bool) for site in sites}
    with torch.no_grad(), held.watch(lambda name, m: used.__setitem__(name, used[name] | (m > 0).any(0))):
        for one in inputs:
            whole(one[None])
    drop_unused(whole, (data, data), Recipe(batch_size=10))
    for site in sites:
        assert held.alive(site.name).tolist() == used[site.name].tolist()
    assert not all(bool(flags.all()) for flags in used.values())


def test_the_second_stage_holds_pi_fixed():
    module, x = NETWORKS["mlp"]()
    _, sites = based(module, x)
    first = gated(module, x, Gates(sites, [BetaBernoulli(site.size) for site in sites], THRESHOLD))
    second = with_dependence(first)
    assert all(isinstance(gate, DependentBetaBernoulli) for gate in gates_in(second).by_name.values())
    learned = {name for name, p in gates_in(second).named_parameters() if p.requires_grad}
    assert {name.rpartition(".")[2] for name in learned} == {"gamma", "eta", "raw_kappa"}
    assert all(p.requires_grad for p in first.parameters())
