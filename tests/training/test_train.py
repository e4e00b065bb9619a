"""Runs from beginning to end: what they learn, keep, and give back."""

import json
import math
import shutil
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar
from unittest.mock import ANY

import pytest
import torch
from small_networks import QUICK, examples, images, nested_mlp, nested_norms, normal, outputs_at, same_tensors
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import nestling as nl
from nestling.errors import ArgumentError, NestlingError, RunError
from nestling.prediction import Gaussian
from nestling.reading import make_cut
from nestling.training import Recipe, elbo_terms, events, loop, open_run, train
from nestling.training.loop import Loop


def weights_of(run):
    return {name: tensor.clone() for name, tensor in run.nested.state_dict().items()}


def scored(quality, nll=0.0, error=0.0):
    """What a validation gives, as far as the loop looks at it."""
    return SimpleNamespace(nll=nll, quality=quality, quality_error=error)


def figures(log):
    """The lines of a log without the time they took."""
    return [{key: value for key, value in line.items() if key != "seconds"} for line in log]


@pytest.fixture(scope="module")
def digits():
    """A run on digits, in a folder, beside the network as it was before."""
    torch.manual_seed(0)
    return nl.nest(nl.models.build("mlp", hidden=[32, 16], in_features=64), normal(2, 1, 8, 8), num_blocks=8)


@pytest.fixture(scope="module")
def digits_run(digits, tmp_path_factory):
    recipe = Recipe(epochs=5, batch_size=32, lr=2e-2, samples=2)
    return train(deepcopy(digits), "digits", recipe, out=tmp_path_factory.mktemp("digits") / "run", quiet=True)


def test_digits_are_learned_at_every_width(digits_run):
    loader = nl.data.load("digits").batches("test", 500)
    quarter, half, full = nl.evaluate(digits_run.nested, loader, cut=[0.25, 0.5, 1.0], samples=0)
    assert full.accuracy > 0.9
    assert half.accuracy > 0.6  # chance is 0.1; how much better depends on the recipe of the day
    assert quarter.accuracy > 0.3


def test_the_log_has_a_line_for_each_epoch(digits_run):
    steps = len(nl.data.load("digits").batches("train", 32, drop_last=True))
    assert [(line["epoch"], line["step"]) for line in digits_run.log] == [(n, n * steps) for n in range(1, 6)]
    first, last = digits_run.log[0], digits_run.log[-1]
    assert last["nll"] < first["nll"]
    assert last["lr"] == pytest.approx(0, abs=1e-9)
    for line in digits_run.log:
        expected = sum(own["nll"] for own in line["validation"].values()) / 4
        assert line["validation_nll"] == pytest.approx(expected)
        assert line["validation"].keys() == {"0.125", "0.25", "0.5", "1.0"}
        accuracy = sum(own["accuracy"] for own in line["validation"].values()) / 4
        assert line["validation_quality"] == pytest.approx(accuracy)
    scores = [line["validation_quality"] for line in digits_run.log]
    count = len(nl.data.load("digits").validation.inputs)
    for number, line in enumerate(digits_run.log):
        accuracies = [own["accuracy"] for own in line["validation"].values()]
        error = sum(math.sqrt(own * (1 - own) / count) for own in accuracies) / 4
        assert line["kept"] == (line["validation_quality"] + error >= max(scores[: number + 1]))


def test_the_folder_holds_the_run(digits_run):
    names = {path.name for path in digits_run.folder.iterdir()}
    assert names >= {"recipe.json", "groups.json", "log.jsonl", "model.safetensors", "calibration.json"}
    assert not [name for name in names if name.endswith(".part")]
    lines = (digits_run.folder / "log.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [line | {"crc32": ANY} for line in digits_run.log]
    saved = json.loads((digits_run.folder / "recipe.json").read_text())
    assert Recipe.from_dict(saved["recipe"]) == digits_run.recipe
    assert saved["data"]["name"] == "digits"
    assert saved["made_by"]["torch"] == torch.__version__


def test_a_run_read_back_is_the_run(digits_run):
    again = open_run(digits_run.folder)
    assert (again.recipe, again.likelihood, again.data) == (digits_run.recipe, "categorical", digits_run.data)
    assert list(again.log) == list(digits_run.log)
    assert list(again.calibrations) == list(digits_run.calibrations)
    assert same_tensors(weights_of(again), weights_of(digits_run))
    assert not again.nested.training
    assert not digits_run.nested.training
    calibration = again.calibration(0.5)
    assert calibration.cut.as_dict() == {"layers.1": 4, "layers.3": 4}
    assert again.calibration(0.625) is None


def test_the_same_command_gives_the_finished_run_without_training(digits, digits_run, monkeypatch):
    monkeypatch.setattr(Loop, "_step", lambda *_: pytest.fail("it trained"))
    monkeypatch.setattr(Loop, "validate", lambda *_: pytest.fail("it validated"))
    nested = deepcopy(digits)
    again = train(nested, "digits", digits_run.recipe, out=digits_run.folder, quiet=True)
    assert again.nested is nested
    assert same_tensors(weights_of(again), weights_of(digits_run))
    assert list(again.log) == list(digits_run.log)
    assert list(again.calibrations) == list(digits_run.calibrations)


def test_another_command_is_refused_by_the_difference(digits, digits_run):
    recipe, folder = digits_run.recipe, digits_run.folder
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(RunError, match=r"recipe.*lr.* 0\.02, yours 0\.5"):
        train(deepcopy(digits), "digits", recipe.but(lr=0.5), out=folder)
    with pytest.raises(RunError, match=r"data.*(fingerprint|loaded_with)"):
        train(deepcopy(digits), nl.data.load("digits", validation=0.3), recipe, out=folder)
    with pytest.raises(RunError, match=r"likelihood"):
        train(deepcopy(digits), "digits", recipe, out=folder, likelihood="bernoulli")
    with pytest.raises(RunError, match=r"its network"):
        train(nested_mlp(), "digits", recipe, out=folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_the_difference_is_in_the_message(tmp_path):
    data = (examples(), examples(seed=3))
    train(nested_mlp(), data, QUICK, out=tmp_path, quiet=True)
    with pytest.raises(RunError) as caught:
        train(nested_mlp(rescale=True), data, QUICK, out=tmp_path, quiet=True)
    assert "rescale" in str(caught.value)


def test_a_folder_with_a_network_but_no_recipe_is_left_alone(tmp_path):
    nl.save(nested_mlp(), tmp_path)
    with pytest.raises(RunError, match="no recipe"):
        train(nested_mlp(), (examples(), examples()), QUICK, out=tmp_path, quiet=True)


def quick(nested=None, recipe=QUICK, **options):
    return train(nested or nested_mlp(), (examples(), examples(seed=3)), recipe, quiet=True, **options)


@pytest.mark.parametrize(
    "kind",
    ["ours", "theirs"],
)
def test_torchs_random_state_is_left_alone(digits, kind):
    network = nested_mlp()  # the first of a process seeds torch
    torch.manual_seed(11)
    before = torch.get_rng_state()
    if kind == "ours":
        train(deepcopy(digits), "digits", QUICK.but(epochs=1, batch_size=500), quiet=True)
    else:
        quick(network)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_seed_decides_everything():
    torch.manual_seed(11)
    first = quick()
    torch.manual_seed(12)
    second, other = quick(), quick(recipe=QUICK.but(seed=1))
    assert same_tensors(weights_of(first), weights_of(second))
    assert figures(first.log) == figures(second.log)
    assert first.calibrations == second.calibrations
    assert not same_tensors(weights_of(first), weights_of(other))


def test_a_folder_changes_nothing_in_what_is_computed(tmp_path):
    with_folder, without = quick(out=tmp_path / "a" / "b"), quick()
    assert same_tensors(weights_of(with_folder), weights_of(without))
    assert figures(with_folder.log) == figures(without.log)
    assert with_folder.calibrations == without.calibrations
    assert (with_folder.folder, without.folder) == (tmp_path / "a" / "b", None)


@pytest.mark.parametrize("in_folder", [True, False])
@pytest.mark.parametrize(("error", "kept"), [(0.0, [1, 2]), (0.15, [1, 2, 4])])
def test_the_last_weights_that_validated_best_within_the_error_are_given_back(
    monkeypatch, tmp_path, in_folder, error, kept
):
    qualities, seen = iter([0.3, 0.9, 0.5, 0.8]), []
    real = Loop.validate

    def validate(self):
        scores, quality = real(self), next(qualities)
        seen.append({name: tensor.clone() for name, tensor in self.nested.state_dict().items()})
        return {cut: scored(quality, own.nll, error) for cut, own in scores.items()}

    monkeypatch.setattr(Loop, "validate", validate)
    run = quick(recipe=QUICK.but(epochs=4), out=tmp_path if in_folder else None)
    assert [line["epoch"] for line in run.log if line["kept"]] == kept
    assert same_tensors(weights_of(run), seen[kept[-1] - 1])
    assert not same_tensors(seen[1], seen[3])


def test_patience_stops_a_run_that_gets_no_better(monkeypatch):
    qualities = iter([0.3, 0.9, 0.5, 0.8, 0.85, 1.0])
    monkeypatch.setattr(Loop, "validate", lambda _: {1.0: scored(next(qualities), error=0.15)})
    run = quick(recipe=QUICK.but(epochs=6, patience=2))
    assert [line["validation_quality"] for line in run.log] == [0.3, 0.9, 0.5, 0.8]


def test_patience_has_no_say_where_the_last_weights_are_kept(monkeypatch):
    qualities = iter([0.9, 0.5, 0.4, 0.3])
    monkeypatch.setattr(Loop, "validate", lambda _: {1.0: scored(next(qualities))})
    assert len(quick(recipe=QUICK.but(epochs=4, patience=1, keep="last")).log) == 4


def test_sgd_with_steps_is_what_torch_does(monkeypatch):
    """Every learning rate that the optimiser sees, and that of the orders beside it."""
    seen = []
    real = torch.optim.SGD.step
    monkeypatch.setattr(
        torch.optim.SGD, "step", lambda self, *a: seen.append([g["lr"] for g in self.param_groups]) or real(self, *a)
    )
    recipe = QUICK.but(optimiser="sgd", lr=0.2, order_lr=0.4, schedule="step", milestones=(0.5,), lr_factor=0.1)
    run = quick(recipe=recipe)
    assert len(seen) == 6
    assert [{round(rate, 9) for rate in rates} for rates in seen] == [{0.2, 0.4}] * 3 + [{0.02, 0.04}] * 3
    assert run.log[-1]["nll"] < run.log[0]["nll"]


OPTIONS = {
    "weight_kl": "hierarchical",
    "prior_keep": 0.7,
    "order_weight": 0.3,
    "draws": 3,
    "explore": 0.11,
    "coupled": 0.12,
}


@pytest.mark.parametrize(
    "options",
    [
        OPTIONS | {"objective": "elbo", "sandwich": 0.13},
        OPTIONS | {"objective": "elbo", "estimator": "straight_through"},
        OPTIONS | {"objective": "every_width", "distil": 0.2},
    ],
    ids=["elbo", "straight_through", "every_width"],
)
def test_every_step_is_the_objective_that_the_recipe_says(monkeypatch, options):
    """The loss of the loop beside that of a loop of one's own, from the same network, batch, widths and noise."""
    real, found, expected = loop.step_terms, [], []
    kappas = [0.0, 0.3, 0.6, 0.9, 0.9, 0.9]

    def watched(step):
        own, noise = torch.Generator(), torch.get_rng_state()
        own.set_state(step.generator.get_state())
        changes = options | {"kappa": kappas[len(found)], "cuts": QUICK.cuts}
        terms = elbo_terms(
            deepcopy(step.nested), (step.inputs, step.targets), dataset_size=24, generator=own, **changes
        )
        torch.set_rng_state(noise)
        expected.append((float(terms.loss.detach()), float(terms.order_kl), terms.cuts))
        assert step.teacher is None
        terms = real(step)
        found.append((float(terms.loss.detach()), float(terms.order_kl), terms.cuts))
        return terms

    monkeypatch.setattr(loop, "step_terms", watched)
    quick(recipe=QUICK.but(kappa=0.9, kl_warm_up=0.5, **options))
    assert len(found) == len(kappas)
    for given, wanted in zip(found, expected, strict=True):
        assert given[:2] == pytest.approx(wanted[:2], rel=1e-6)
        assert given[2] == wanted[2]


def test_decay_is_for_weights_without_a_posterior(monkeypatch):
    for weights, decayed in (("gaussian", set()), (None, {"layers.1.weight", "layers.3.weight", "layers.5.weight"})):
        nested = nested_mlp(weights=weights)
        made = loop.make_optimiser(nested, QUICK.but(weight_decay=0.1), 100)
        names = {id(parameter): name for name, parameter in nested.module.named_parameters()}
        groups = [group for group in made.param_groups if group["weight_decay"]]
        assert {names[id(parameter)] for group in groups for parameter in group["params"]} == decayed
        assert sum(len(group["params"]) for group in made.param_groups) == len(list(nested.parameters()))


@pytest.mark.parametrize(
    "changes", [{"objective": "elbo", "explore": 0.0, "coupled": 0.0, "sandwich": 0.0}, {"cuts": (1.0,)}], ids=str
)
def test_one_step_is_a_step_of_sgd_along_the_objective(changes):
    """A network that is whole in every pass: its first step by hand."""
    nested = nested_mlp(weights=None, order="full")
    by_hand = deepcopy(nested.module)
    data = examples(8)
    recipe = QUICK.but(epochs=1, optimiser="sgd", momentum=0.0, lr=0.1, schedule="constant", clip=1e9)
    run = train(nested, (data, examples(seed=3)), recipe.but(**changes), quiet=True)
    nn.functional.cross_entropy(by_hand(data.tensors[0]), data.tensors[1]).backward()
    for own, expected in zip(run.nested.module.parameters(), by_hand.parameters(), strict=True):
        torch.testing.assert_close(own, expected - 0.1 * expected.grad)


def test_gradients_are_clipped():
    nested = nested_mlp(weights=None, order="full")
    before = [parameter.detach().clone() for parameter in nested.parameters()]
    recipe = QUICK.but(epochs=1, optimiser="sgd", momentum=0.0, lr=1.0, schedule="constant", clip=1e-3)
    run = train(nested, (examples(8), examples(seed=3)), recipe, quiet=True)
    moved = torch.cat([(a - b).flatten() for a, b in zip(run.nested.parameters(), before, strict=True)])
    assert float(moved.detach().norm()) == pytest.approx(1e-3, rel=1e-3)


def test_loaders_are_used_as_they_are():
    seen = []

    class Watched(TensorDataset):
        def __getitem__(self, index):
            seen.append(int(index))
            return super().__getitem__(index)

    data = Watched(*examples(10).tensors)
    loaders = DataLoader(data, batch_size=4), DataLoader(examples(seed=3), batch_size=5, shuffle=True)
    run = train(nested_mlp(), loaders, QUICK, quiet=True)
    assert seen == [*range(10)] * 2
    assert run.log[-1]["step"] == 6
    assert run.likelihood == "categorical"


def test_data_sets_are_shuffled_and_batched_by_the_recipe():
    orders = []

    class Watched(TensorDataset):
        def __getitem__(self, index):
            orders.append(int(index))
            return super().__getitem__(index)

    run = train(nested_mlp(), (Watched(*examples(20).tensors), examples(seed=3)), QUICK, quiet=True)
    assert run.log[-1]["step"] == 4
    first, second = orders[:16], orders[16:]
    assert len(set(first)) == len(set(second)) == 16
    assert first != sorted(first)
    assert first != second


def test_fewer_examples_than_a_batch():
    run = train(nested_mlp(), (examples(10), examples(seed=3)), QUICK.but(batch_size=16), quiet=True)
    assert run.log[-1]["step"] == 2


def test_fewer_examples_than_a_batch_in_a_data_set_of_ours():
    recipe = QUICK.but(epochs=1, batch_size=10**6, cuts=(1.0,))
    module = nl.models.build("mlp", hidden=[8], in_features=64)
    run = train(nl.nest(module, normal(2, 64), num_blocks=2, num_always=1), "digits", recipe, quiet=True)
    assert run.log[-1]["step"] == 1


@pytest.mark.parametrize("number", [1, 3, 8])
def test_few_examples_to_validate_on(number):
    run = train(nested_mlp(), (examples(), examples(number)), QUICK, quiet=True)
    assert {own.num_examples for own in run.calibrations} == {number}


@pytest.mark.parametrize("data", [3, None, (examples(),), (examples(), [1, 2]), (1, 2, 3), [normal(3), normal(3)]])
def test_what_is_no_data(data):
    with pytest.raises(ArgumentError) as caught:
        train(nested_mlp(), data, QUICK)
    assert caught.value.name == "data"


def test_an_unknown_data_set():
    with pytest.raises(NestlingError, match="digit"):
        train(nested_mlp(), "digit", QUICK)


def line(number, seed):
    x = normal(number, 4, seed=seed)
    noise = 0.1 * (1 + x[:, 1:2].abs()) * normal(number, 1, seed=seed + 1)
    return TensorDataset(x, x[:, :1] - 0.5 * x[:, 1:2] + noise)


@pytest.mark.parametrize(
    ("likelihood", "outputs"), [("gaussian", 1), (Gaussian(std=0.3), 1), ("heteroscedastic_gaussian", 2)]
)
def test_regression(likelihood, outputs):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, outputs))
    nested = nl.nest(module, normal(2, 4), num_blocks=4, num_always=1)
    recipe = QUICK.but(epochs=8, lr=3e-2, batch_size=32, cuts=(1.0,))
    run = train(nested, (line(192, 5), line(100, 7)), recipe, likelihood=likelihood, quiet=True)
    assert run.log[-1]["validation"]["1.0"]["rmse"] < 0.4  # that of the mean is 1.1
    assert run.likelihood == ("gaussian" if outputs == 1 else likelihood)
    assert {own.likelihood for own in run.calibrations} == {run.likelihood}


def test_norms_have_the_statistics_of_each_cut():
    data = (images(), images(seed=3))
    run = train(nested_norms(), data, QUICK.but(cuts=(0.1, 0.5, 1.0)), quiet=True)
    cuts = [make_cut(run.nested.groups, cut) for cut in (0.1, 0.5, 1.0)]
    assert list(run.nested.statistics) == cuts
    x = images(seed=3).tensors[0]
    with_statistics = outputs_at(run.nested, x, cuts)
    batches = list(DataLoader(images(), 8))  # all of it, in whatever order: as many to a batch
    for cut, given in zip(cuts, with_statistics, strict=True):
        widths = [known.shape for name, known in run.nested.statistics[cut].items() if name.endswith("mean")]
        units = [group.units(cut[group.name]) for group in run.nested.groups.free]
        assert [tuple(shape) for shape in widths] == [(number,) for number in units]
        again = deepcopy(run.nested)
        nl.recalibrate(again, batches, cut)
        torch.testing.assert_close(outputs_at(again, x, [cut])[0], given, rtol=0.5, atol=0.5)
        again.statistics.clear()
        assert not torch.allclose(outputs_at(again, x, [cut])[0], given)


def test_statistics_of_norms_are_those_of_the_best_weights(monkeypatch):
    qualities = iter([0.9, 0.8])
    real = Loop.validate
    seen = []

    def validate(self):
        scores, quality = real(self), next(qualities)
        seen.append(deepcopy(self.nested.statistics))
        return {cut: scored(quality) for cut in scores}

    monkeypatch.setattr(Loop, "validate", validate)
    run = train(nested_norms(), (images(), images(seed=3)), QUICK, quiet=True)
    for cut, known in run.nested.statistics.items():
        assert same_tensors(known, seen[0][cut])
        assert not same_tensors(known, seen[1][cut])


class Pairs(Dataset):
    """Examples whose input is a dictionary or a pair."""

    def __init__(self, kind, seed=2):
        self.kind, (self.x, self.y) = kind, examples(seed=seed).tensors

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        x = self.x[index]
        return ({"a": x, "b": x} if self.kind == "dict" else (x, x)), self.y[index]


class TwoInputs(nn.Module):
    def __init__(self, norm):
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 3)
        self.norm = nn.BatchNorm1d(6) if norm else nn.Identity()

    def forward(self, a, b):
        return self.last(torch.relu(self.norm(self.first(a + b))))


@pytest.mark.parametrize("norm", [False, True], ids=["plain", "norm"])
@pytest.mark.parametrize("kind", ["dict", "tuple"])
def test_inputs_of_several_tensors(kind, norm):
    example = {"a": normal(4, 4), "b": normal(4, 4)} if kind == "dict" else (normal(4, 4), normal(4, 4))
    nested = nl.nest(TwoInputs(norm), example, num_blocks=3, num_always=1)
    run = train(nested, (Pairs(kind), Pairs(kind, seed=3)), QUICK, quiet=True)
    assert len(run.log) == 2


@pytest.mark.parametrize("estimator", ["relaxed", "straight_through"])
def test_masked_estimators_train(estimator):
    nested = nested_mlp()
    before = [order.logits.detach().clone() for order in nested.orders.values()]
    run = quick(nested, QUICK.but(estimator=estimator, epochs=3, temperature=(1.0, 0.25)))
    assert all(not torch.equal(o.logits, b) for o, b in zip(run.nested.orders.values(), before, strict=True))
    assert run.log[-1]["nll"] < run.log[0]["nll"]
    assert {round(order.temperature, 3) for order in nested.orders.values()} == {round(0.25 ** (8 / 9), 3)}


def test_divergences_keep_their_precision_beside_bfloat16():
    run = quick(recipe=QUICK.but(precision="bfloat16", epochs=1, batch_size=24))
    value = torch.tensor(run.log[0]["weight_kl"], dtype=torch.float64)
    assert float(value.bfloat16()) != float(value)


class Writer:
    """Stands for TensorBoard's."""

    written: ClassVar[list] = []

    def __init__(self, folder):
        self.folder = folder

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def add_scalar(self, name, value, step):
        self.written.append((self.folder, name, value, step))


def test_tensorboard_gets_the_log(tmp_path, monkeypatch):
    monkeypatch.setattr(events, "import_module", lambda _: SimpleNamespace(SummaryWriter=Writer))
    run = quick(recipe=QUICK.but(tensorboard=True), out=tmp_path)
    assert {Path(folder).parent for folder, *_ in Writer.written} == {tmp_path}
    found = {(name, step): value for _, name, value, step in Writer.written}
    for line in run.log:
        assert found["loss", line["step"]] == line["loss"]
        assert found["validation/1.0/nll", line["step"]] == line["validation"]["1.0"]["nll"]


def test_tensorboard_that_is_not_there_is_missed_before_anything_is_done(tmp_path, monkeypatch):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(events, "import_module", missing)
    monkeypatch.setattr(Loop, "_step", lambda *_: pytest.fail("it trained"))
    with pytest.raises(ArgumentError, match="pip install"):
        quick(recipe=QUICK.but(tensorboard=True), out=tmp_path)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    place = tmp_path_factory.mktemp("finished") / "run"
    quick(out=place)
    return place


def changed(finished, tmp_path, name, change):
    place = tmp_path / "run"
    shutil.copytree(finished, place)
    if isinstance(change, bytes):
        (place / name).write_bytes(change)
    else:
        (place / name).write_text(json.dumps(change(json.loads((place / name).read_text()))))
    return place


FOREIGN = {
    "no recipe": ("recipe.json", lambda saved: {k: v for k, v in saved.items() if k != "recipe"}),
    "no data": ("recipe.json", lambda saved: {k: v for k, v in saved.items() if k != "data"}),
    "recipe is nothing": ("recipe.json", lambda saved: saved | {"recipe": None}),
    "data is nothing": ("recipe.json", lambda saved: saved | {"data": None}),
    "no likelihood": ("recipe.json", lambda saved: saved | {"data": {}}),
}


@pytest.mark.parametrize(("name", "change"), FOREIGN.values(), ids=FOREIGN.keys())
def test_a_run_that_does_not_hang_together(finished, tmp_path, name, change):
    with pytest.raises(RunError):
        open_run(changed(finished, tmp_path, name, change))


REFUSED = {
    "a list": ("recipe.json", lambda _: []),
    "no format": ("recipe.json", lambda saved: {k: v for k, v in saved.items() if k != "format"}),
    "a value that is none": ("recipe.json", lambda saved: saved | {"recipe": saved["recipe"] | {"lr": -1}}),
    "an unknown entry": ("recipe.json", lambda saved: saved | {"recipe": saved["recipe"] | {"depth": 1}}),
    "calibrations are none": ("calibration.json", lambda saved: saved | {"calibrations": 3}),
    "a calibration of nothing": ("calibration.json", lambda saved: saved | {"calibrations": [{}]}),
}


@pytest.mark.parametrize(("name", "change"), REFUSED.values(), ids=REFUSED.keys())
def test_a_run_with_a_file_that_says_something_else(finished, tmp_path, name, change):
    with pytest.raises(NestlingError):
        open_run(changed(finished, tmp_path, name, change))


def test_a_log_that_was_cut_off_is_read_up_to_there(finished, tmp_path):
    place = changed(finished, tmp_path, "log.jsonl", (finished / "log.jsonl").read_bytes()[:-20])
    assert [line["epoch"] for line in open_run(place).log] == [1]


def test_no_run(tmp_path):
    with pytest.raises(RunError, match="is not there"):
        open_run(tmp_path)
