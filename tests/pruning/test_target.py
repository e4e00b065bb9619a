"""Pruning to a target: the budget holds, what goes is what has least signal for its cost, and the file is smaller."""

from importlib import import_module

import pytest
import torch
from pruning_networks import convolutions, examples, seeded, small_mlp
from torch import nn
from torch.utils.data import TensorDataset

import nestling as nl
from nestling.budgets import Limit
from nestling.delivery import write_small
from nestling.errors import ArgumentError, BudgetError, RangeError
from nestling.pruning import PRUNED_FILE
from nestling.pruning.delivered import Delivered
from nestling.pruning.target import Target, signal_for_cost, target_of
from nestling.training import Recipe

QUICK = Recipe(epochs=6, batch_size=40, lr=1e-2, order_lr=5e-2, lr_warm_up=0.0, kl_warm_up=0.0, samples=2)
EXAMPLE = torch.zeros(2, 6)


def mlp(first, second):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, first), nn.ReLU(), nn.Linear(first, second), nn.ReLU(), nn.Linear(second, 3))


def pruned_under(under, method="vbd", **options):
    data = examples()
    words = {"recipe": QUICK, "quiet": True} | options
    return nl.prune(small_mlp(16), EXAMPLE, (data, data), method, under=under, **words)


@pytest.mark.parametrize("method", ["vbd", "sparse_vd", "beta_bernoulli", "log_normal"])
@pytest.mark.parametrize(
    ("under", "name", "most"),
    [("macs=0.5x", "macs", 0.5), (["params=90"], "params", 90), ({"macs": "0.25x", "params": 150}, "macs", 0.25)],
)
def test_a_target_holds_where_the_noise_would_keep_everything(method, under, name, most):
    pruned = pruned_under(
        under, method, structure="units", threshold=0.01 if "bern" in method or "log" in method else 8
    )
    before, after = getattr(pruned.before, name), getattr(pruned.after, name)
    limit = most * before if most < 1 else most
    assert after <= limit
    assert after > 0.6 * limit  # no more goes than has to
    assert pruned.num_beyond > 0
    assert pruned.after.macs == sum(own.weight.numel() for own in pruned.network if isinstance(own, nn.Linear))
    assert pruned.log[-1]["epoch"] == 2  # the rest was trained for a third of the epochs
    assert f"{pruned.num_beyond} more units dropped" in str(pruned)
    assert pruned.to_dict()["target"] == pruned.target


def test_a_target_that_holds_already_changes_nothing():
    alone, under = (pruned_under(budget, threshold=0.0) for budget in ((), "macs=1x"))
    assert under.num_beyond == 0
    for one, two in zip(alone.network.parameters(), under.network.parameters(), strict=True):
        assert torch.equal(one, two)


def test_weights_to_a_share_of_the_file():
    torch.manual_seed(0)
    module, data = (
        nn.Sequential(nn.Linear(6, 300), nn.ReLU(), nn.Linear(300, 40), nn.ReLU(), nn.Linear(40, 3)),
        examples(),
    )
    pruned = nl.prune(
        module, EXAMPLE, (data, data), "sparse_vd", recipe=QUICK, under="bytes=0.3x", threshold=5, quiet=True
    )
    assert pruned.after.bytes <= 0.3 * pruned.before.bytes
    assert pruned.num_beyond > 0
    assert all(flags.any() for flags in pruned.kept.values())
    for path, flags in pruned.kept.items():
        weight = pruned.uncertain.get_submodule(path).posterior.mean
        assert (weight[~flags] == 0).all()


def test_a_latency_is_that_of_the_program_beside_the_whole_network(monkeypatch):
    """One hundredth of a millisecond per parameter, and one for each call."""

    def latencies(modules, call):
        return [1 + sum(own.numel() for own in module.parameters()) / 100 for module in modules]

    monkeypatch.setattr(import_module("nestling.pruning.delivered"), "latencies_ms", latencies)
    pruned = pruned_under("latency_ms=0.75x", threshold=8)
    assert 0.6 * pruned.before.latency_ms < pruned.after.latency_ms <= 0.75 * pruned.before.latency_ms
    with pytest.raises(BudgetError, match=r"latency_ms=0\.\d+; the smallest takes latency_ms=1\.\d+"):
        pruned_under("latency_ms=0.5", threshold=8)


def test_single_features_and_channels_fit_too():
    module, x = convolutions()
    inputs = torch.randn(60, *x.shape[1:], generator=seeded(3))
    data = TensorDataset(inputs, (inputs.mean((1, 2, 3)) > 0).long())
    recipe = QUICK.but(epochs=1)
    for under in ("params=0.4x", "macs=0.15x"):
        options = {"inputs": True, "recipe": recipe, "quiet": True, "threshold": 8, "under": under}
        pruned = nl.prune(module.float(), x.float(), (data, data), "vbd", **options)
        name, _, share = under.partition("=")
        assert getattr(pruned.after, name) <= float(share[:-1]) * getattr(pruned.before, name)


def test_units_that_cost_more_go_first():
    """Ten units of one layer cost a hundred times those of the other, whose signal is a tenth as large."""
    kept = {"dear": torch.ones(10, dtype=torch.bool), "cheap": torch.ones(10, dtype=torch.bool)}

    class Sized(nn.Module):
        def __init__(self, size):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(size))

        def forward(self, x):
            return x * self.weight.sum()

    def build(flags):
        return Sized(100 * int(flags["dear"].sum()) + int(flags["cheap"].sum()))

    whole = Delivered(build(kept), torch.zeros(2, 3))
    target = Target({"params": Limit(0.5, is_share=True)}, whole)
    signals = {"dear": torch.full((10,), 1.0), "cheap": torch.full((10,), 0.1)}
    weighed = signal_for_cost(target, signals, kept, build)
    torch.testing.assert_close(weighed["cheap"] / weighed["dear"], torch.full((10,), 10.0))


def test_a_target_out_of_reach_names_the_smallest_network(tmp_path):
    with pytest.raises(
        BudgetError, match=r"no network fits macs=2; the smallest takes macs=\d+.*inputs=True"
    ) as caught:
        pruned_under("macs=2")
    assert caught.value.smallest["macs"] > 2


@pytest.mark.parametrize(
    ("under", "options", "error", "said"),
    [
        ("macs=half", {}, ArgumentError, "a budget such as macs=0.5x"),
        ("macs", {}, ArgumentError, "a budget such as macs=0.5x"),
        ("flops=3", {}, ArgumentError, "under: got 'flops', but it must be one of params, macs, bytes, latency_ms"),
        ("macs=0.5", {}, RangeError, 'Write "0.5x" for a share'),
        ("macs=0x", {}, RangeError, "macs: got 0.0"),
        ("macs=0.5x", {"method": "dependent_beta_bernoulli"}, ArgumentError, "use beta_bernoulli"),
    ],
)
def test_a_target_that_means_nothing_is_refused_before_training(tmp_path, under, options, error, said):
    with pytest.raises(error, match=said):
        pruned_under(under, out=tmp_path, **options)
    assert not list(tmp_path.iterdir())


def test_the_same_call_goes_on_and_another_target_trains_only_the_rest(tmp_path):
    first, again, other = (
        pruned_under(under, threshold=8, out=tmp_path) for under in ("macs=0.5x", "macs=0.5x", "macs=0.7x")
    )
    for one, two in zip(first.network.parameters(), again.network.parameters(), strict=True):
        assert torch.equal(one, two)
    assert other.after.macs > first.after.macs
    assert {path.name for path in tmp_path.iterdir()} == {"prune", "tune-8-macs=0.5x", "tune-8-macs=0.7x"}


def test_when_nothing_goes_the_record_says_why_and_what_to_change():
    pruned = pruned_under((), recipe=QUICK.but(epochs=1), threshold=15)
    said = str(pruned).splitlines()[-1]
    assert "Little was pruned: 21 of 21 units have log alpha below 15" in said
    assert "under macs=0.5x" in said
    assert "What can't be pruned: 4: returned to the caller" in said
    assert pruned_under("macs=0.5x", threshold=15).advice == ""


@pytest.mark.parametrize("structure", ["weights", "units"])
def test_the_headline_is_of_the_file_that_is_written(tmp_path, structure):
    data = examples()
    options = {"structure": structure, "recipe": QUICK.but(kappa=0.02), "threshold": 0, "quiet": True}
    options["under"] = "params=0.4x" if structure == "units" else ()
    pruned = nl.prune(mlp(400, 100), EXAMPLE, (data, data), "vbd", **options)
    assert pruned.files is not None
    write_small(pruned.files, tmp_path, pruned.to_dict(), PRUNED_FILE)
    size = sum((tmp_path / name).stat().st_size for name in ("network.json", "pruned.safetensors"))
    assert size == pruned.after.bytes
    times = pruned.before.bytes / size
    assert times > 1.5
    title = str(pruned).splitlines()[0]
    assert f"{times:.1f} times smaller as a file ({size:,} of {pruned.before.bytes:,} bytes)" in title
    pruned.save_program(tmp_path / "network.pt2")
    program, x = torch.export.load(tmp_path / "network.pt2").module(), torch.randn(7, 6)
    again = nl.load_pruned(tmp_path / "pruned.safetensors", mlp(400, 100))
    with torch.no_grad():
        for own in (nl.load_small(tmp_path), program, again):
            torch.testing.assert_close(own(x), pruned.network(x), rtol=1e-4, atol=1e-5)
    stored = nl.save_pruned(pruned.network, tmp_path / "alone.safetensors")
    assert stored < size < stored + 4_000  # the graph takes some


def test_a_network_that_torch_can_not_export_is_pruned_all_the_same(tmp_path):
    class Stubborn(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = small_mlp()

        def forward(self, x):
            return self.inner(x) * (1 if float(x.sum()) < 1e9 else 2)

    data = examples()
    with pytest.warns(UserWarning, match="takes its path from the data"):
        pruned = nl.prune(Stubborn(), EXAMPLE, (data, data), "sparse_vd", recipe=QUICK, quiet=True)
    assert pruned.files is None
    assert pruned.after.bytes == sum(own.numel() * own.element_size() for own in pruned.network.parameters())
    with pytest.raises(nl.RunError, match=r"torch can't export.*save_pruned"):
        pruned.save_program(tmp_path / "network.pt2")


def test_a_budget_that_the_last_measurement_exceeds_is_said():
    before, found = nl.Cost(1000, 100, 4000, 2.0), nl.Cost(600, 50, 2000, 1.5)
    limits = {"params": Limit(0.5, is_share=True), "macs": Limit(60), "latency_ms": Limit(1)}
    said = Target(limits, Delivered(small_mlp(), EXAMPLE)).exceeded(before, found)
    assert said == (
        "Measured again, params is 600, above the budget of 500 and latency_ms is 1.5, above the budget of 1: "
        "give a smaller one."
    )
    assert Target({"macs": Limit(60)}, Delivered(small_mlp(), EXAMPLE)).exceeded(before, found) == ""


def test_no_words_are_no_target():
    assert target_of((), small_mlp(), EXAMPLE) is None
