"""``prune`` from end to end on small networks: what it gives, what it refuses, and how it goes on."""

from copy import deepcopy

import pytest
import torch
from pruning_networks import convolutions, examples, seeded, small_mlp
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import nestling as nl
from nestling.errors import ArgumentError, DtypeError, NestlingError, RangeError
from nestling.pruning import prune
from nestling.pruning.gated import gates_in
from nestling.pruning.methods import METHODS, checked_threshold, method_named
from nestling.running.agreement import difference
from nestling.training import Recipe

QUICK = Recipe(epochs=2, batch_size=40, lr=1e-2, order_lr=5e-2, lr_warm_up=0.0, kl_warm_up=0.0, samples=2)
EXAMPLE = torch.zeros(2, 6)


def quick(method="sparse_vd", **options):
    data = examples()
    return prune(small_mlp(), EXAMPLE, (data, data), method, **{"recipe": QUICK, "quiet": True} | options)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_gives_a_plain_network(method):
    network = small_mlp()
    before = deepcopy(network.state_dict())
    data = examples()
    structure = METHODS[method].structures[0]
    pruned = prune(network, EXAMPLE, (data, data), method, recipe=QUICK, inputs=structure == "units", quiet=True)
    assert all(torch.equal(before[name], tensor) for name, tensor in network.state_dict().items())
    assert pruned.structure == structure
    if structure == "units":
        assert difference(pruned.trained, pruned.network, (torch.randn(5, 6),), {}) < 1e-5
    assert not pruned.network.training
    assert pruned.to_dict()["compression"] == pruned.compression
    assert "params" in str(pruned)
    assert pruned.log[-1]["figures"]


def test_sparsity_is_reported_and_grows_with_kappa():
    loose, tight = (quick(recipe=QUICK.but(epochs=10, kappa=kappa)) for kappa in (0.01, 1.0))
    assert tight.compression > loose.compression
    layers = {own.name: own for own in tight.layers}
    assert layers["0"].total == 48
    assert layers["0"].kept == int(tight.kept["0"].sum())
    assert layers["0"].sparsity == 1 - layers["0"].kept / 48
    total, kept = (sum(getattr(own, name) for own in tight.layers) for name in ("total", "kept"))
    assert tight.compression == total / kept
    assert tight.log[-1]["figures"]["compression"] == pytest.approx(tight.compression)
    left = sum(int((p != 0).sum()) for p in tight.network.parameters() if p.ndim > 1)
    assert left <= kept


def test_the_uncertain_network_draws_the_weights_that_are_left():
    pruned = quick()
    x = torch.randn(4, 6)
    certain = nl.predict(pruned.uncertain, x, samples=0).probs
    torch.testing.assert_close(certain, torch.softmax(pruned.network(x), -1), rtol=1e-4, atol=1e-5)
    assert float(nl.predict(pruned.uncertain, x, samples=5).epistemic.max()) > 0


def test_units_are_those_that_the_gates_keep():
    pruned = quick("beta_bernoulli", recipe=QUICK.but(epochs=12, kappa=0.1), threshold=0.2)
    for name, gate in gates_in(pruned.trained).by_name.items():
        assert pruned.kept[name].tolist() == (gate.mean() > 0.2).tolist()
    assert pruned.network[0].out_features == int(pruned.kept["0"].sum())
    assert pruned.after.params == sum(p.numel() for p in pruned.network.parameters())
    assert pruned.left == {"4": "returned to the caller"}


def test_finishing_trains_what_is_left_of_the_weights_and_nothing_else():
    whole, finished = (quick(recipe=QUICK.but(epochs=10), finish=finish) for finish in (False, QUICK.but(epochs=4)))
    assert all(torch.equal(whole.kept[path], finished.kept[path]) for path in whole.kept)
    for path, kept in finished.kept.items():
        before, after = (own.uncertain.get_submodule(path).posterior.mean for own in (whole, finished))
        assert (after[~kept] == 0).all()
        assert (after != before)[kept].all()
    assert len(finished.log) == len(whole.log) + 4
    x = torch.randn(4, 6)
    certain = nl.predict(finished.uncertain, x, samples=0).probs
    torch.testing.assert_close(certain, torch.softmax(finished.network(x), -1), rtol=1e-4, atol=1e-5)


def test_finishing_trains_the_units_that_are_left(tmp_path):
    options = {"recipe": QUICK.but(epochs=12, kappa=0.1), "threshold": 0.2}
    whole = quick("beta_bernoulli", **options)
    finished, again = (quick("beta_bernoulli", **options, finish=True, out=tmp_path) for _ in range(2))
    assert len(finished.log) == len(whole.log) + 2
    x = torch.randn(4, 6)
    for one, two, three in zip(*(own.network.parameters() for own in (whole, finished, again)), strict=True):
        assert one.shape == two.shape
        assert not torch.equal(one, two)
        assert torch.equal(two, three)
    for own in (finished, again):
        certain = nl.predict(own.uncertain, x, samples=0).probs
        torch.testing.assert_close(certain, torch.softmax(own.network(x), -1), rtol=1e-4, atol=1e-5)
        assert float(nl.predict(own.uncertain, x, samples=5).epistemic.max()) > 0
    other = quick("beta_bernoulli", **options | {"threshold": 0.15}, finish=True, out=tmp_path)
    assert other.after.params >= finished.after.params
    assert {path.name for path in tmp_path.iterdir()} == {"prune", "finish-0.2", "finish-0.15"}
    with pytest.raises(ArgumentError, match="see dependent"):
        quick("dependent_beta_bernoulli", finish=True)


@pytest.mark.parametrize("method", ["sparse_vd", "beta_bernoulli"])
def test_tuning_trains_the_plain_network_that_is_left(method, tmp_path):
    """And gives back no weight that is gone; the network with noise stays as it was."""
    threshold = {"sparse_vd": 0.0, "beta_bernoulli": 0.2}[method]
    options = {"recipe": QUICK.but(epochs=12, kappa=0.1), "threshold": threshold}
    whole = quick(method, **options)
    tuned, again = (quick(method, **options, tune=QUICK.but(epochs=3), out=tmp_path) for _ in range(2))
    assert len(tuned.log) == len(whole.log) + 3
    assert (tmp_path / f"tune-{threshold:g}").is_dir()
    for one, two, three in zip(*(own.network.parameters() for own in (whole, tuned, again)), strict=True):
        assert torch.equal(two, three)
        assert two.grad_fn is None
        assert not two._backward_hooks
        if two.ndim > 1:
            assert torch.equal(one == 0, two == 0)
            assert (one != two)[one != 0].float().mean() > 0.5  # of some units no example makes use
    assert not tuned.network.training
    assert tuned.compression == whole.compression
    for one, two in zip(whole.uncertain.parameters(), tuned.uncertain.parameters(), strict=True):
        assert torch.equal(one, two)
    with pytest.raises(ArgumentError, match="see dependent"):
        quick("dependent_beta_bernoulli", tune=True)


def test_a_stopped_run_goes_on(tmp_path):
    whole = quick("vbd", out=tmp_path / "a", pretrain=QUICK)
    again = quick("vbd", out=tmp_path / "a", pretrain=QUICK)
    assert {path.name for path in (tmp_path / "a").iterdir()} == {"pretrain", "prune"}
    for one, other in zip(whole.network.parameters(), again.network.parameters(), strict=True):
        assert torch.equal(one, other)
    with pytest.raises(nl.RunError, match="holds another run"):
        quick("log_normal", out=tmp_path / "a", pretrain=QUICK)


def test_one_loader_serves_for_both():
    assert prune(small_mlp(), EXAMPLE, DataLoader(examples(), 40), recipe=QUICK, quiet=True).layers


def test_everything_pruned_away():
    with pytest.raises(NestlingError, match=r"everything was pruned away"):
        quick(recipe=QUICK.but(epochs=25, kappa=1000.0))


@pytest.mark.parametrize(
    ("method", "threshold"), [("sparse_vd", 50.0), ("vbd", -21.0), ("beta_bernoulli", 1.0), ("log_normal", 0.0)]
)
def test_a_threshold_out_of_range(method, threshold):
    with pytest.raises(RangeError, match="threshold: got"):
        quick(method, threshold=threshold)
    assert checked_threshold(METHODS[method], None) == METHODS[method].threshold


def test_what_can_not_be_pruned():
    data = examples()
    with pytest.raises(ArgumentError, match="method: got 'magic'"):
        quick("magic")
    with pytest.raises(ArgumentError, match="structure: got 'weights', but it must be 'units' for beta_bernoulli"):
        quick("beta_bernoulli", structure="weights")
    with pytest.raises(ArgumentError, match="only: got '4', but it must be something that can be pruned"):
        quick("vbd", only=["4"])
    with pytest.raises(ArgumentError, match="without units to prune"):
        prune(nn.Sequential(nn.Linear(6, 3)), EXAMPLE, (data, data), "vbd", recipe=QUICK, quiet=True)
    with pytest.raises(DtypeError, match="nested network"):
        prune(nl.nest(small_mlp(), EXAMPLE), EXAMPLE, (data, data), quiet=True)
    with pytest.raises(ArgumentError, match="They choose units"):
        quick(inputs=True)
    with pytest.raises(ArgumentError, match="dependent: got a recipe"):
        quick(dependent=QUICK)


def test_what_is_wrong_is_said_before_anything_is_trained(tmp_path):
    with pytest.raises(ArgumentError, match="only: got 'head'"):
        quick("vbd", only=["head"], pretrain=QUICK, out=tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_methods_and_what_they_prune():
    assert method_named("sparse_vd", None)[1] == "weights"
    assert method_named("vbd", None)[1] == "units"
    assert method_named("vbd", "weights")[1] == "weights"


@pytest.mark.parametrize("method", ["vbd", "dependent_beta_bernoulli"])
def test_channels_with_norms_and_flattened_features(method):
    """The norms' statistics are those that the run ends with, recalibrated with the gates at their means."""
    module, x = convolutions()
    inputs = torch.randn(60, *x.shape[1:], generator=seeded(3))
    data = TensorDataset(inputs, (inputs.mean((1, 2, 3)) > 0).long())
    before = deepcopy(module.state_dict())
    pruned = prune(module.float(), x.float(), (data, data), method, inputs=True, recipe=QUICK.but(epochs=1), quiet=True)
    assert [own.name for own in pruned.layers] == ["0", "3", "8", "8.input"]
    assert difference(pruned.trained, pruned.network, (inputs,), {}) < 1e-5
    assert difference(pruned.trained, pruned.network, (inputs[:1],), {}) < 1e-5
    assert all(torch.equal(before[name], tensor) for name, tensor in module.double().state_dict().items())


def test_a_graph_network_is_pruned_by_its_feed_forward_layers():
    """Attention is code that reads weights past their layers; the neurons between the two linear layers can go."""
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.TransformerEncoderLayer(8, 2, 12, batch_first=True, dropout=0.0), nn.Flatten(), nn.Linear(32, 3)
    )
    inputs = torch.randn(40, 4, 8)
    data = TensorDataset(inputs, torch.randint(3, (40,)))
    pruned = prune(module, inputs[:2], (data, data), "vbd", recipe=QUICK.but(epochs=1), quiet=True)
    assert "0.linear1" in {own.name for own in pruned.layers}
    assert difference(pruned.trained, pruned.network, (inputs,), {}) < 1e-5


def test_what_is_excluded_is_left_alone():
    pruned = quick("vbd", inputs=True, exclude=["2"])
    assert [own.name for own in pruned.layers] == ["0.input", "4.input"]
    assert pruned.left == {"0": "excluded", "2": "excluded", "4": "returned to the caller"}
    weights = quick(exclude=["0"])
    assert [own.name for own in weights.layers] == ["2", "4"]


@pytest.mark.parametrize("method", METHODS)
def test_every_method_trains_in_half_precision(method):
    structure = METHODS[method].structures[0]
    pruned = quick(method, recipe=QUICK.but(precision="bfloat16"), inputs=structure == "units")
    assert all(own.dtype == torch.float32 for own in pruned.network.parameters())
