"""Searches over small networks, against every cut there is."""

import itertools
import json
import os
import random
import signal
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import nestling as nl
from effort import PATIENCE
from nestling.errors import ArgumentError, NestlingError, RangeError, RunError
from nestling.prediction.likelihoods import likelihood_named
from nestling.reading.cut import Cut, full_cut
from nestling.reading.group import Groups
from nestling.search import Curve, search, strategies
from nestling.search import costs as costs_module
from nestling.search.costs import Costs, Sizes
from nestling.search.options import Searching
from nestling.search.quality import Judge, Quality
from nestling.search.search import PROGRESS_FILE
from nestling.search.strategies import Space
from nestling.storage import read_json, write_json

sys.path.insert(0, str(Path(__file__).parent.parent / "training"))
from child_processes import started, together

PROGRESS_MODULE = "nestling.search.search"


def make(kind="mlp"):
    """A network whose blocks matter more the earlier they are, as training would have it."""
    torch.manual_seed(0)
    if kind == "norms":
        module = nn.Sequential(
            *(nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 4, 3), nn.BatchNorm2d(4), nn.ReLU()),
            *(nn.Flatten(), nn.Linear(4 * 16, 4)),
        )
        return nl.nest(module, torch.randn(2, 1, 8, 8), num_blocks=4, num_always=1).eval()
    module = nl.models.build("mlp", hidden=[6, 5, 4], in_features=64, num_classes=4)
    nested = nl.nest(module, torch.randn(2, 1, 8, 8), num_blocks=4, num_always=1).eval()
    for tensor in nested.module.parameters():
        if tensor.ndim == 2:
            tensor.data *= torch.linspace(2, 0.3, tensor.shape[0])[:, None]
    return nested


def data(seed=0, sizes=(40, 40, 20)):
    noise = torch.Generator().manual_seed(seed)
    x = torch.randn(sum(sizes), 1, 8, 8, generator=noise)
    with torch.no_grad():
        y = make().module(x).argmax(1)
    return list(zip(x.split(sizes), y.split(sizes), strict=True))


def every_cut(nested):
    widths = [range(group.num_always, group.num_blocks + 1) for group in nested.groups.free]
    names = [group.name for group in nested.groups.free]
    return [Cut(tuple(zip(names, chosen, strict=True))) for chosen in itertools.product(*widths)]


@pytest.mark.parametrize("kind", ["mlp", "norms"])
@pytest.mark.parametrize("reuse", [True, False])
def test_quality_is_that_of_the_network_taken_out(kind, reuse):
    """Batch norms by the batch, as in train mode; everything else as in eval mode."""
    nested, batches = make(kind), data()
    before = {name: tensor.clone() for name, tensor in nested.state_dict().items()}
    judge = Judge(nested, batches, likelihood_named("categorical"), reuse=reuse)
    cuts = random.Random(0).sample(every_cut(nested), 6)
    for cut, found in zip(cuts, judge(cuts), strict=True):
        small = nested.extracted(cut)
        for part in small.modules():
            part.training = isinstance(part, nn.BatchNorm2d)
        with torch.no_grad():
            outputs = torch.cat([small(x) for x, _ in batches]).double()
        y = torch.cat([target for _, target in batches])
        assert found.score == pytest.approx(float((outputs.argmax(1) == y).double().mean()))
        assert found.log_likelihood == pytest.approx(-float(nn.functional.cross_entropy(outputs, y)), abs=1e-5)
    assert all(torch.equal(tensor, before[name]) for name, tensor in nested.state_dict().items())
    assert not nested.training


@pytest.mark.parametrize("kind", ["mlp", "norms"])
@pytest.mark.parametrize("name", ["params", "macs", "bytes"])
def test_fast_costs_are_the_exact_ones(kind, name):
    nested = make(kind)
    costs = Costs(nested, name)
    for cut in random.Random(1).sample(every_cut(nested), 5):
        assert costs(cut) == getattr(nl.cost(nested, cut), name)
    assert Sizes(nested)._is_right  # the fast way was taken


@pytest.fixture(scope="module")
def paths():
    """FN3's 72 paths: 8 in each of 9 bottlenecks."""
    module = nl.models.build("resnext_cifar", width=0.1)
    options = {"kinds": ("path", "layer"), "num_blocks": 8, "num_always": 1, "weights": None}
    return nl.nest(module, torch.zeros(2, 3, 8, 8), **options)


def check_costs(nested):
    chance = random.Random(2)
    cut = Cut(tuple((g.name, chance.randint(g.num_always, g.num_blocks)) for g in nested.groups.free))
    found, sizes = nl.cost(nested, cut), Sizes(nested)
    assert (sizes.params(cut), sizes.macs(cut), sizes.bytes(cut)) == (found.params, found.macs, found.bytes)
    return sizes


@pytest.mark.parametrize("name", ["resnet14", "mobilenet_v2", "vgg11"])
def test_fast_costs_of_the_papers_networks(name):
    module = nl.models.build(name, width=0.25)
    assert check_costs(nl.nest(module, torch.zeros(2, 3, 32, 32), num_blocks=4, num_always=1))._is_right


def test_costs_of_paths_and_layers(paths):
    check_costs(paths)


def test_a_latency_is_right_at_both_ends(monkeypatch):
    nested = make()
    times = {
        cut: 1.0 + sum(width * (number + 1) for number, (_, width) in enumerate(cut.widths))
        for cut in every_cut(nested)
    }
    monkeypatch.setattr(costs_module, "_milliseconds", lambda _, cut: times[cut])
    costs = Costs(nested, "latency")
    for cut in every_cut(nested):
        assert costs(cut) == pytest.approx(times[cut])


def best_by_cost(nested, batches, name="macs"):
    """The truth: for each cost the best quality that any cut within it has."""
    judge, costs = Judge(nested, batches, likelihood_named("categorical")), Costs(nested, name)
    cuts = every_cut(nested)
    return sorted(zip(map(costs, cuts), judge(cuts), strict=True))


@pytest.mark.parametrize(("strategy", "gap"), [("dynamic", 0.05), ("beam", 0.05), ("greedy", 0.12)])
def test_a_search_comes_close_to_trying_everything(strategy, gap):
    nested, batches = make(), data()
    curve = search(nested, batches, "macs", strategy=strategy, num_points=100)
    truth = best_by_cost(nested, batches)
    assert curve.num_evaluations < len(truth) * (0.9 if strategy != "dynamic" else 1.0)
    for row in curve.rows:
        best = max(quality.score for cost, quality in truth if cost <= row.cost)
        assert row.score <= best + 1e-9
        found = max(other.score for other in curve.rows if other.cost <= row.cost)
        assert found >= best - gap


def test_the_beam_asks_no_more_than_it_may():
    """And it never removes a block of a later slab while one of an earlier is left."""
    nested = make()
    space = Space(nested.groups, Costs(nested, "params"))
    asked = []

    def score(cuts):
        assert len({space.removed(cut) for cut in cuts}) == 1
        asked.extend(cuts)
        return [Quality(-float(space.removed(cut)), float(hash(cut) % 1000)) for cut in cuts]

    strategies.beam(space, score, Searching(num_kept=2, num_candidates=2, window=0.25))
    assert len(asked) <= 2 * 2 * space.num_blocks + 1
    for cut in asked:
        widths = cut.as_dict().values()
        assert max(widths) - min(widths) <= 1  # a slab is one block of four here


def test_paths_as_in_the_paper(paths, capsys):
    """72 paths in 9 groups, three trajectories, ten candidates: the count beside the paper's 1,672."""
    groups = Groups([group for group in paths.groups if group.kind == "path"])
    assert [group.num_blocks for group in groups.free] == [8] * 9
    space = Space(groups, lambda cut: float(sum(cut.as_dict().values())))
    asked = []

    def score(cuts):
        asked.extend(cuts)
        return [Quality(random.Random(str(cut)).random(), 0.0) for cut in cuts]

    strategies.beam(space, score, Searching())
    assert len(asked) <= 3 * 10 * 63 + 1
    assert len(set(asked)) == len(asked)
    with capsys.disabled():
        print(f"\n{len(asked)} evaluations for 72 paths with three trajectories and ten candidates")


@pytest.mark.parametrize("strategy", ["dynamic", "beam", "greedy", "uniform", "random"])
def test_every_strategy_gives_a_curve(strategy):
    nested, batches = make("norms"), data()
    curve = search(nested, batches, "params", strategy=strategy, num_points=5)
    assert [row.cost for row in curve.rows] == sorted(row.cost for row in curve.rows)
    assert len(curve.rows) <= 6
    assert curve.rows[-1].cut == full_cut(nested.groups)
    for row in curve.rows:
        assert row.cut in nested.statistics  # recalibrated
        assert row.score == nl.evaluate(nested, batches, cut=row.cut, samples=0).accuracy
        assert row.params == sum(p.numel() for p in nl.extract(nested, row.cut).parameters())
    assert len(curve.tried) == curve.num_evaluations
    again = search(make("norms"), data(), "params", strategy=strategy, num_points=5)
    assert again == curve


def test_a_cost_of_ones_own():
    nested = make()
    first = nested.groups.free[0].name
    curve = search(nested, data(), lambda _, cut: cut[first] ** 2, strategy="uniform")
    assert curve.under(cost=4)[first] <= 2
    assert curve.cost == "own"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0, "many", None, True])
def test_a_cost_that_is_none(value):
    with pytest.raises(ArgumentError, match="cost: got") as caught:
        search(make(), data(), lambda *_: value)
    assert "\n" not in str(caught.value)


WRONG = {
    "no batch": {"loader": []},
    "an iterator": {"loader": iter(())},
    "no pairs": {"loader": [torch.zeros(3, 1, 8, 8)]},
    "another cost": {"cost": "watts"},
    "another strategy": {"strategy": "luck"},
    "no points": {"num_points": 0},
    "no candidates": {"num_candidates": 0},
    "a window of nothing": {"window": 0.0},
    "labels that there are not": {"loader": [(torch.zeros(3, 1, 8, 8), torch.tensor([0, 1, 9]))]},
}


@pytest.mark.parametrize("options", WRONG.values(), ids=WRONG.keys())
def test_wrong_arguments(options):
    with pytest.raises(NestlingError) as caught:
        search(make(), **{"loader": data()} | options)
    assert "\n" not in str(caught.value)


def test_a_network_with_nothing_to_cut():
    nested = nl.nest(nn.Sequential(nn.Flatten(), nn.Linear(64, 4)), torch.zeros(2, 1, 8, 8))
    with pytest.raises(RangeError, match="without a group to cut"):
        search(nested, data())


def run_search(place, dies_after=None):
    """A search that keeps what it scored; it may kill its own process after some writes."""
    module = sys.modules[PROGRESS_MODULE]  # not the function of that name
    if dies_after is not None:
        real, calls = module.write_json, []

        def write(*args):
            calls.append(args)
            if len(calls) == dies_after:
                os.kill(os.getpid(), signal.SIGKILL)
            real(*args)

        module.write_json = write
    curve = search(make(), data(), "macs", strategy="beam", out=place)
    curve.save(place / "curve.json")


@pytest.mark.parametrize("number", [1, 6])
def test_a_search_that_is_killed_goes_on_to_the_same_curve(tmp_path, number):
    (tmp_path / "run").mkdir()
    process = started(run_search, tmp_path / "run", number)
    process.join(PATIENCE)
    assert process.exitcode == -signal.SIGKILL
    known = json.loads((tmp_path / "run" / PROGRESS_FILE).read_text())["scored"] if number > 1 else []
    scored = []
    real = Judge.__call__
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Judge, "__call__", lambda own, cuts: scored.extend(cuts) or real(own, cuts))
        run_search(tmp_path / "run")
    (tmp_path / "whole").mkdir()
    run_search(tmp_path / "whole")
    found, expected = (Curve.read(tmp_path / name / "curve.json") for name in ("run", "whole"))
    assert found == expected
    assert len(scored) + len(known) == expected.num_evaluations


@pytest.mark.parametrize(
    "rows", [None, 1.5, "xyz", [None], [[1, 2]], [[[1], 0.5, 0.1]], [[[1, 99], 0.5, 0.1]], [[["1", 1], "\x1b", []]]]
)
def test_scores_that_are_none_are_refused_in_one_line(tmp_path, rows):
    search(make(), data(), strategy="uniform", out=tmp_path)
    saved = read_json(tmp_path / PROGRESS_FILE)
    write_json(tmp_path / PROGRESS_FILE, saved | {"scored": rows})
    with pytest.raises(RunError, match="has no scores") as caught:
        search(make(), data(), strategy="uniform", out=tmp_path)
    assert str(caught.value).isprintable()


def test_what_another_network_scored_is_not_used(tmp_path):
    search(make(), data(), strategy="uniform", out=tmp_path)
    other = make()
    for tensor in other.module.parameters():
        tensor.data.neg_()
    found = search(other, data(), strategy="uniform", out=tmp_path)
    assert found == search(other, data(), strategy="uniform")


def shared():
    from nestling.processes import connected

    with connected() as processes:
        return search(make("norms"), data(), "macs", strategy="dynamic", spread=processes.count > 1).to_dict()


def test_a_search_shared_by_processes():
    first, second = together(shared)
    assert first == second
    alone = shared()
    assert [row["cut"] for row in first["rows"]] == [row["cut"] for row in alone["rows"]]
    for found, expected in zip(first["rows"], alone["rows"], strict=True):
        assert found["score"] == pytest.approx(expected["score"])
