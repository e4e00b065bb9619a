"""A network with gates where units are read, and the smaller one taken out of it, against masks put in by hand."""

from copy import deepcopy

import pytest
import torch
from pruning_networks import NETWORKS, based, convolutions, mlp, normal, residual, seeded
from torch import nn

from nestling.distributions.gates import GaussianGate
from nestling.errors import NestlingError
from nestling.prediction import predict
from nestling.pruning.cutting import KeptInputs, cut_out, joined, with_folded
from nestling.pruning.gated import Gates, gated, gates_in
from nestling.running.agreement import difference


def random_gates(sites, seed=0, share=0.5):
    """Gaussian gates with random means, of which about a share is kept, and never none."""
    gates = []
    for number, site in enumerate(sites):
        gate = GaussianGate(site.size).double()
        with torch.no_grad():
            gate.posterior.mean.copy_(0.5 + torch.rand(site.size, generator=seeded(seed + number), dtype=torch.float64))
            gone = torch.rand(site.size, generator=seeded(seed + 50 + number)) > share
            gone[number % site.size] = False
            gate.posterior.log_sigma2.copy_(torch.where(gone, 9.0, -9.0))
        gates.append(gate)
    return gates


def taken(base, sites, gates):
    kept = {site.name: gate.keep() for site, gate in zip(sites, gates, strict=True)}
    means = {site.name: gate.posterior.mean.detach() for site, gate in zip(sites, gates, strict=True)}
    return cut_out(deepcopy(base), sites, kept, means)


@pytest.mark.parametrize("inputs", [False, True])
@pytest.mark.parametrize("name", NETWORKS)
def test_extracted_network_is_the_gated_one(name, inputs):
    module, x = NETWORKS[name]()
    base, sites = based(module, x, inputs=inputs)
    for seed in range(2):
        gates = random_gates(sites, seed)
        whole = gated(module, x, Gates(sites, gates, None)).eval()
        small = taken(base, sites, gates).network
        assert difference(whole, small, (normal(*x.shape, seed=9),), {}) < 1e-9
        before, after = (sum(p.numel() for p in own.parameters()) for own in (module, small))
        assert after < before


class _Known(GaussianGate):
    """A gate whose draws are known: the square of its mean."""

    def sample(self, features, generator=None):
        return self.posterior.mean.square().expand_as(features)


@pytest.mark.parametrize("name", NETWORKS)
def test_the_extracted_network_keeps_the_noise_of_its_gates(name):
    module, x = NETWORKS[name]()
    base, sites = based(module, x, inputs=True)
    gates = random_gates(sites)
    for gate in gates:
        gate.__class__ = _Known
    held = Gates(sites, gates, None)
    whole = gated(module, x, held)
    cut = taken(base, sites, gates)
    noisy = with_folded(held, cut, x)
    inputs = normal(*x.shape, seed=9)
    assert difference(noisy.eval(), cut.network, (inputs,), {}) == 0
    with whole.drawing(), noisy.drawing():
        assert difference(whole.eval(), noisy, (inputs,), {}) < 1e-9
        assert difference(noisy, cut.network, (inputs,), {}) > 1e-3


def test_samples_of_a_gated_network_differ_and_their_mean_is_the_plain_answer():
    module, x = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 3)).double(), normal(4, 6)
    _, sites = based(module, x)
    whole = gated(module, x, Gates(sites, [GaussianGate(6, log_sigma2=-1.0).double()], None))
    with torch.no_grad(), whole.eval().drawing():
        answers = torch.stack([whole(x) for _ in range(4000)])
    error = answers.mean(0) - module(x)
    assert (error.abs() < 5 * answers.std(0) / 4000**0.5 + 1e-9).all()
    assert (answers.std(0) > 1e-3).all()
    assert (predict(whole, x, samples=6, keep_samples=True).samples.std(0) > 1e-4).all()


def test_gated_network_is_the_one_with_masks_written_out():
    module, x = convolutions()
    _, sites = based(module, x, inputs=True)
    gates = {site.name: gate for site, gate in zip(sites, random_gates(sites), strict=True)}
    first, second, hidden, flat = (
        (gates[name].posterior.mean * gates[name].keep()).detach() for name in ("0", "3", "8", "8.input")
    )
    with torch.no_grad():
        h = module[2](module[1](module[0](x))) * first.view(1, -1, 1, 1)
        h = module[6](module[5](module[4](module[3](h)))) * second.view(1, -1, 1, 1)
        h = module[9](module[8](h.flatten(1) * flat)) * hidden
        expected = module[10](h)
        found = gated(module, x, Gates(sites, list(gates.values()), None)).eval()(x)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_a_gate_after_the_norm_is_not_a_gate_before_it():
    """DESIGN's third idea: a channel dropped before its norm still emits ReLU(bias), so it is dropped after it."""
    module, x = convolutions()
    _, sites = based(module, x)
    gates = random_gates(sites)
    with torch.no_grad():
        mask = (gates[0].posterior.mean * gates[0].keep()).view(1, -1, 1, 1)
        early = nn.Sequential(module[0], _Times(mask), *module[1:])(x)
        late = nn.Sequential(*module[:3], _Times(mask), *module[3:])(x)
        found = gated(module, x, Gates(sites[:1], gates[:1], None)).eval()(x)
    torch.testing.assert_close(found, late, rtol=1e-12, atol=1e-12)
    assert (found - early).abs().max() > 1e-3


class _Times(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def forward(self, x):
        return x * self.factor


def test_all_readers_of_a_stream_share_a_draw():
    module, x = residual()
    _, sites = based(module, x)
    stream = next(site for site in sites if len(site.readers) > 1)
    assert {reader.path for reader in stream.readers} == {"first.2", "second.2", "head"}
    seen = []
    whole = gated(
        module, x, Gates(sites, [GaussianGate(site.size, log_sigma2=0.0).double() for site in sites], None)
    ).train()
    held = gates_in(whole)
    with held.watch(lambda name, multipliers: seen.append((name, multipliers))):
        whole.module(x)
        whole.module(x)
    assert [name for name, _ in seen].count(stream.name) == 2
    draws = [multipliers for name, multipliers in seen if name == stream.name]
    assert draws[0].shape == (len(x), stream.size)
    assert not torch.equal(draws[0], draws[1])


def test_draws_are_for_each_example_and_gradients_reach_the_gate():
    module, x = mlp()
    _, sites = based(module, x)
    whole = gated(
        module, x, Gates(sites, [GaussianGate(site.size, log_sigma2=0.0).double() for site in sites], None)
    ).train()
    same = x[:1].expand(4, -1)
    output = whole(same)
    assert (output[0] - output[1]).abs().max() > 1e-6
    output.square().sum().backward()
    assert all(parameter.grad is not None for parameter in gates_in(whole).parameters())


def test_the_module_is_left_as_it_was():
    module, x = convolutions()
    before = deepcopy(module.state_dict())
    base, sites = based(module, x, inputs=True)
    gates = random_gates(sites)
    whole = gated(module, x, Gates(sites, gates, None))
    taken(base, sites, gates)
    assert all(torch.equal(before[name], tensor) for name, tensor in module.state_dict().items())
    assert not any(part._forward_pre_hooks for part in module.modules())
    assert any(part._forward_pre_hooks for part in whole.module.modules())


def test_gates_that_meet_are_joined():
    """Of four channels with four flattened features each: a channel without features goes, and its features with it."""
    module, x = convolutions()
    _, sites = based(module, x, inputs=True)
    kept = {site.name: torch.ones(site.size, dtype=torch.bool) for site in sites}
    kept["8.input"][4:8] = False  # all of channel 1
    kept["3"][3] = False
    found = joined(sites, kept)
    assert found["3"].tolist() == [True, False, True, False]
    assert found["8.input"].tolist() == [True] * 4 + [False] * 4 + [True] * 4 + [False] * 4
    assert kept["3"].tolist() == [True, True, True, False]


def test_units_say_where_they_came_from():
    module, x = mlp()
    base, sites = based(module, x, inputs=True)
    gates = random_gates(sites, 4)
    found = taken(base, sites, gates)
    for site, gate in zip(sites, gates, strict=True):
        assert found.units[site.name].tolist() == gate.keep().nonzero().squeeze(1).tolist()
    first = found.network[1]
    assert isinstance(first[0], KeptInputs)
    mean = gates[-1].posterior.mean.detach()
    columns, rows = found.units["1.input"], found.units["1"]
    torch.testing.assert_close(first[1].weight, (module[1].weight * mean)[rows][:, columns], rtol=1e-12, atol=1e-12)


def test_nothing_left_is_refused():
    module, x = mlp()
    base, sites = based(module, x)
    kept = {site.name: torch.zeros(site.size, dtype=torch.bool) for site in sites}
    ones = {site.name: torch.ones(site.size) for site in sites}
    with pytest.raises(NestlingError, match=r"everything was pruned away in 1, 3.*smaller kappa"):
        cut_out(base, sites, kept, ones)
