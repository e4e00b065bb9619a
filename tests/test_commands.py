"""What the commands do with a run: figures against the library's own functions and against sums by hand."""

import csv
import inspect
import json
import os
import re
import shutil
import signal
from importlib import import_module
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from filelock import FileLock
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import nn
from torch.utils.data import TensorDataset

import nestling as nl
from nestling import commands
from nestling.cascade import Cascading
from nestling.commands import load_weights
from nestling.data import MissingError
from nestling.delivery import load_hub, save_small, write_about
from nestling.errors import ArgumentError, NestlingError, RangeError, RunError
from nestling.network import Nesting
from nestling.pruning import Pruning
from nestling.running import PlainGraph
from nestling.search import Searching
from nestling.storage import read_json, write_json
from nestling.training import Recipe, Stopped, keep_statistics
from nestling.training.run import identity_of

QUICK = Recipe(epochs=2, batch_size=32, samples=2, cuts=(0.5, 1.0))
FEW = Nesting(num_blocks=4, num_always=1)
PLAIN = Nesting(num_blocks=4, num_always=1, order="uniform", weights="plain")


def pictures(number=160, seed=0):
    """Images of 5 x 5 bytes of four classes: which quarter is bright."""
    noise = np.random.default_rng(seed)
    labels = np.arange(number) % 4
    images = noise.integers(0, 120, (number, 5, 5), dtype=np.uint8)
    for image, label in zip(images, labels, strict=True):
        image[(label // 2) * 3 :, :][:2, (label % 2) * 3 :][:, :2] += 120
    return images, labels


@pytest.fixture(autouse=True)
def quick_latency(monkeypatch):
    monkeypatch.setattr(import_module("nestling.running.cost"), "MEASURED_SECONDS", 0.0)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with data, and runs on it: of classes, with batch norms, of numbers, and of masks."""
    folder = tmp_path_factory.mktemp("commands")
    images, labels = pictures()
    np.savez(folder / "classes.npz", x=images, y=labels)
    np.savez(folder / "strange.npz", x=255 - images, y=labels)
    x = np.random.default_rng(1).normal(size=(120, 3)).astype(np.float32)
    np.savez(folder / "numbers.npz", x=x, y=np.stack([x[:, 0] - x[:, 1], x[:, 2]], 1))
    masks = (pictures(140)[0][:, :4, :4] > 100).astype(np.uint8).repeat(2, 1).repeat(2, 2)
    np.savez(folder / "masks.npz", images=(60 * masks + 90), masks=masks)
    commands.train(str(folder / "classes.npz"), "mlp", folder / "classes", FEW, QUICK)
    commands.train(str(folder / "classes.npz"), "mlp", folder / "held", FEW, QUICK, hold_out=(1,))
    return folder


@pytest.fixture
def run(place, tmp_path):
    """A copy of the run of classes, to be changed at will."""
    return shutil.copytree(place / "classes", tmp_path / "run")


def cells(table):
    """The rows of a table by the names of its columns, without the intervals of scores."""
    lines = re.sub(r" ±[\d.]+", "", table.split("\n\n")[0]).splitlines()
    header, *rows = [re.split(r"\s{2,}", line.strip()) for line in (lines[0], *lines[2:])]
    return [dict(zip(header, row, strict=True)) for row in rows]


def test_train_leaves_a_run_that_says_everything(place):
    saved = json.loads((place / "classes" / "recipe.json").read_text())
    assert Recipe.from_dict(saved["recipe"]) == QUICK
    assert saved["data"]["loaded_with"]["source"] == str(place / "classes.npz")
    assert saved["data"]["classes"] == ["0", "1", "2", "3"]
    opened = nl.open_run(place / "classes")
    assert [line["epoch"] for line in opened.log] == [1, 2]
    assert [group.num_blocks for group in opened.nested.groups.free] == [4, 4]
    assert len(opened.calibrations) == 2


def test_train_says_what_comes_next_and_prints_the_groups(place, tmp_path, capsys):
    text = commands.train(str(place / "classes.npz"), "mlp", tmp_path / "new", PLAIN, QUICK.but(epochs=1))
    assert f"nestling evaluate {tmp_path / 'new'}" in text
    printed = capsys.readouterr()
    assert "layers.1" in printed.out
    assert "epoch 1/1" in printed.err


def test_texts_are_refused_by_name(tmp_path):
    """They have whole numbers as inputs, and a network of their own; Python trains on them."""
    (tmp_path / "rhyme.txt").write_text("one and two and three\n" * 200)
    with pytest.raises(ArgumentError, match=r"docs/generation\.md") as caught:
        commands.train(str(tmp_path / "rhyme.txt"), "mlp", tmp_path / "run", FEW, QUICK)
    assert caught.value.name == "data"
    assert not (tmp_path / "run").exists()


def test_cascade_writes_what_it_prints(run):
    """The table against the cascade that is read back and scored again."""
    options = Cascading(goal="macs=0.8x", samples=2)
    text = commands.cascade(run, (0.25, 1.0), options)
    opened = nl.open_run(run)
    fitted = nl.Cascade.load(run, opened.nested)
    test = nl.data.load(**opened.data["loaded_with"]).batches("test", 500)
    scores = fitted.evaluate(test)
    assert [row["cut"] for row in cells(text)] == [stage.name for stage in scores.stages]
    for row, stage in zip(cells(text), scores.stages, strict=True):
        assert row["answered"] == f"{stage.answered:.1%}"
        assert row["threshold"] == ("-" if stage.threshold is None else f"{stage.threshold:.4f}")
        assert float(row["ms"]) > 0
    assert f"accuracy {100 * scores.scores.accuracy:.2f} %" in text
    assert f"{scores.macs_share:.1%} of the widest cut's" in text
    assert (run / "cascade.png").read_bytes().startswith(b"\x89PNG")
    assert opened.calibration(0.25) is not None


def test_cascade_of_a_run_of_numbers_or_of_a_cut_that_is_none(run, place):
    with pytest.raises(RangeError, match="fraction"):
        commands.cascade(run, (0.5, 1.5))
    with pytest.raises(ArgumentError, match="goal"):
        commands.cascade(run / "nothing", (0.5, 1.0), Cascading(goal="speed=3"))
    assert not (run / "cascade.json").exists()
    commands.train(str(place / "numbers.npz"), "mlp", run / "numbers", PLAIN, QUICK.but(epochs=1))
    with pytest.raises(ArgumentError, match="classes"):
        commands.cascade(run / "numbers", (0.5, 1.0))


def test_train_says_how_small_the_network_can_be(place, tmp_path, capsys):
    """An mlp of 25-300-100-4 of which one block of four is always kept: 75 and 25 neurons."""
    options = {"model_options": ["hidden=[300,100]"]}
    commands.train(str(place / "classes.npz"), "mlp", tmp_path / "new", PLAIN, QUICK.but(epochs=1), **options)
    least, whole = 25 * 75 + 75 * 25 + 25 * 4, 25 * 300 + 300 * 100 + 100 * 4
    fewest, all_of_them = least + 75 + 25 + 4, whole + 300 + 100 + 4
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("smallest cut")]
    assert f"{least / 1e3:.3g}k multiply-adds ({least / whole:.1%} of the whole)" in line
    assert f"{fewest / 1e3:.3g}k parameters ({fewest / all_of_them:.1%})" in line
    assert "Little" not in line


def test_train_says_where_little_can_be_cut(place, tmp_path, capsys):
    nesting = Nesting(num_blocks=4, num_always=4, order="uniform", weights="plain")
    commands.train(str(place / "classes.npz"), "mlp", tmp_path / "new", nesting, QUICK.but(epochs=1))
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("smallest cut")]
    assert "(100.0% of the whole)" in line
    assert "Little can be cut" in line


def test_a_complete_run_given_again_stays_as_it_is(place, run):
    before = {file.name: file.read_bytes() for file in run.iterdir()}
    commands.train(str(place / "classes.npz"), "mlp", run, FEW, QUICK)
    assert {file.name: file.read_bytes() for file in run.iterdir()} == before


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"recipe": QUICK.but(epochs=1)}, "recipe.epochs is 2, yours 1"),
        ({"nesting": PLAIN}, "network.nest"),
        ({"model": "lenet_300_100"}, 'network.model.name is "mlp", yours "lenet_300_100"'),
        ({"hold_out": (1,)}, "data."),
    ],
)
def test_another_run_in_the_same_folder_is_refused(place, run, changes, named):
    given = {"model": "mlp", "nesting": FEW, "recipe": QUICK} | changes
    before = (run / "model.safetensors").read_bytes()
    with pytest.raises(RunError, match="holds another run") as caught:
        commands.train(str(place / "classes.npz"), out=run, **given)
    assert named in str(caught.value)
    assert (run / "model.safetensors").read_bytes() == before


def test_the_seed_decides_the_weights(place, tmp_path):
    one = QUICK.but(epochs=1)
    found = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        torch.manual_seed(hash(name) % 100)
        commands.train(str(place / "classes.npz"), "mlp", tmp_path / name, PLAIN, one.but(seed=seed))
        found.append(load_file(tmp_path / name / "model.safetensors")["network.module.layers.1.weight"])
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


def test_nesting_is_what_nest_takes():
    assert Nesting().options()["weights"] == "auto"
    options = Nesting(weights="plain", order="uniform", num_blocks=3, num_always=1, rescale=True).options()
    assert options["weights"] is None
    nested = nl.nest(nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2)), torch.randn(2, 4), **options)
    assert [group.num_blocks for group in nested.groups.free] == [3]


def test_pretrained_weights_are_where_training_starts(place, tmp_path):
    torch.manual_seed(5)
    network = nl.models.build("mlp", in_features=25, num_classes=4)
    save_file(network.state_dict(), tmp_path / "weights.safetensors")
    still = QUICK.but(epochs=1, lr=1e-12)
    options = {"pretrained": tmp_path / "weights.safetensors"}
    commands.train(str(place / "classes.npz"), "mlp", tmp_path / "run", PLAIN, still, **options)
    images = torch.randn(6, 1, 5, 5)
    with torch.no_grad():
        torch.testing.assert_close(nl.load(tmp_path / "run")(images), network(images))


@pytest.mark.parametrize(
    ("num_classes", "objective", "teaches"),
    [
        (4, "every_width", True),
        (4, "slimmable", True),
        (4, "elbo", False),
        (9, "every_width", False),  # its head is of other classes, and was not taken
    ],
)
def test_a_pretrained_network_teaches_where_it_can(place, tmp_path, monkeypatch, num_classes, objective, teaches):
    torch.manual_seed(5)
    network = nl.models.build("mlp", in_features=25, num_classes=num_classes)
    save_file(network.state_dict(), tmp_path / "weights.safetensors")
    asked = []
    training = import_module("nestling.commands.training")
    monkeypatch.setattr(training, "run_training", lambda _nested, _data, recipe, **own: asked.append((recipe, own)))
    recipe = QUICK.but(objective=objective)
    words = (str(place / "classes.npz"), "mlp", tmp_path / "run", PLAIN)
    commands.train(*words, recipe, pretrained=tmp_path / "weights.safetensors")
    commands.train(*words, recipe.but(optimiser="adamw"), pretrained=tmp_path / "weights.safetensors")
    commands.train(*words, recipe)
    (tuned, first), (chosen, _), (fresh, last) = asked
    assert (tuned.optimiser, chosen.optimiser, fresh.optimiser) == ("sgd", "adamw", "auto")
    assert last["teacher"] is None
    assert (first["teacher"] is not None) == teaches
    if teaches:
        x = torch.randn(6, 1, 5, 5)
        torch.testing.assert_close(first["teacher"].eval()(x), network.eval()(x))


def test_weights_of_another_precision_are_converted(tmp_path):
    network, other = nn.Linear(3, 2), nn.Linear(3, 2)
    save_file({name: own.half() for name, own in other.state_dict().items()}, tmp_path / "a.safetensors")
    load_weights(network, tmp_path / "a.safetensors")
    assert network.weight.dtype == torch.float32
    torch.testing.assert_close(network.weight, other.weight.half().float())


@pytest.mark.parametrize(
    ("tensors", "said"),
    [
        ({"weight": torch.zeros(2, 4), "bias": torch.zeros(2)}, r"at weight: \(2, 4\) and \(2, 3\)"),
        ({"weight": torch.zeros(2, 3)}, r"at bias: nothing and \(2,\)"),
        ({"weight": torch.zeros(2, 3), "bias": torch.zeros(2), "more": torch.zeros(1)}, r"at more: \(1,\) and nothing"),
    ],
)
def test_weights_that_do_not_fit(tmp_path, tensors, said):
    save_file(tensors, tmp_path / "a.safetensors")
    network = nn.Linear(3, 2)
    before = network.weight.clone()
    with pytest.raises(RunError, match=said):
        load_weights(network, tmp_path / "a.safetensors")
    assert torch.equal(network.weight, before)


def test_a_head_of_another_number_of_classes_stays_fresh(tmp_path):
    old, new = (nl.models.build("resnet14", width=0.25, num_classes=number) for number in (10, 4))
    fresh = {name: tensor.clone() for name, tensor in new.state_dict().items()}
    save_file(old.state_dict(), tmp_path / "a.safetensors")
    left = load_weights(new, tmp_path / "a.safetensors", num_outputs=4)
    assert left == ["classifier.weight", "classifier.bias"]
    for name, tensor in new.state_dict().items():
        assert torch.equal(tensor, fresh[name] if name in left else old.state_dict()[name]), name


@pytest.mark.parametrize("name", [name for name in nl.models.names() if name != "unet"])
def test_the_head_of_every_network_of_classes_is_known(tmp_path, name):
    options = nl.models.options_for(name, nl.models.example_shape(name), 7) | {"width": 0.1}
    old, new = (nl.models.build(name, **options | {"num_classes": number}) for number in (5, 7))
    save_file(old.state_dict(), tmp_path / "a.safetensors")
    left = load_weights(new, tmp_path / "a.safetensors", num_outputs=7)
    assert {old.state_dict()[own].shape[0] for own in left} == {5}
    assert {new.state_dict()[own].shape[0] for own in left} == {7}


def layers(*sizes):
    return nn.Sequential(*(nn.Linear(a, b) for a, b in pairwise(sizes)))


@pytest.mark.parametrize(
    ("saved", "num_outputs", "said"),
    [
        (layers(4, 6, 3), None, r"at 1\.weight: \(3, 6\) and \(5, 6\)"),
        (layers(4, 6, 3), 3, r"at 1\.weight: \(3, 6\) and \(5, 6\)"),
        (layers(4, 7, 3), 5, r"at 0\.weight: \(7, 4\) and \(6, 4\)"),
        (layers(4, 7, 5), 5, r"at 0\.weight: \(7, 4\) and \(6, 4\)"),
        (layers(4, 6, 3, 5), 5, r"at 2\.\w+: \(5.* and nothing"),
        (nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 3, bias=False)), 5, r"at 1\.bias: nothing and \(5,\)"),
    ],
    ids=["not asked for", "not the classes", "other hidden and head", "other hidden", "one more", "no bias"],
)
def test_every_other_mismatch_is_refused(tmp_path, saved, num_outputs, said):
    save_file(saved.state_dict(), tmp_path / "a.safetensors")
    network = layers(4, 6, 5)
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    with pytest.raises(RunError, match=said):
        load_weights(network, tmp_path / "a.safetensors", num_outputs=num_outputs)
    assert all(torch.equal(before[name], tensor) for name, tensor in network.state_dict().items())


def test_weights_of_norms_without_a_count_of_batches(tmp_path):
    old, new = (nn.Sequential(nn.Conv2d(1, 3, 1), nn.BatchNorm2d(3)) for _ in range(2))
    old(torch.randn(4, 1, 5, 5))
    save_file({k: t for k, t in old.state_dict().items() if "tracked" not in k}, tmp_path / "a.safetensors")
    assert load_weights(new, tmp_path / "a.safetensors") == []
    assert torch.equal(new[1].running_mean, old[1].running_mean)
    assert new[1].num_batches_tracked == 0


@pytest.mark.parametrize(("sort", "is_sorted"), [("auto", True), ("norm", True), ("none", False)])
def test_pretrained_weights_of_other_classes_are_sorted(place, tmp_path, capsys, sort, is_sorted):
    torch.manual_seed(5)
    network = nl.models.build("mlp", in_features=25, num_classes=9, hidden=[12, 8])
    save_file(network.state_dict(), tmp_path / "weights.safetensors")
    nesting = Nesting(num_blocks=4, num_always=1, order="uniform", weights="plain", sort=sort)
    options = {"pretrained": tmp_path / "weights.safetensors", "model_options": ["hidden=[12,8]"]}
    still = QUICK.but(epochs=1, lr=1e-12)
    commands.train(str(place / "classes.npz"), "mlp", tmp_path / "run", nesting, still, **options)
    (said,) = [line for line in capsys.readouterr().out.splitlines() if "not taken" in line]
    assert said.startswith(f"{tmp_path / 'weights.safetensors'}: layers.5.weight, layers.5.bias not taken")
    nested = nl.load(tmp_path / "run")
    norms = nested.module.layers[1].weight.detach().abs().sum(1)
    assert torch.equal(norms, norms.sort(descending=True).values) == is_sorted
    order = network.layers[1].weight.detach().abs().sum(1).argsort(descending=True)
    expected = network.layers[1].weight[order] if is_sorted else network.layers[1].weight
    torch.testing.assert_close(nested.module.layers[1].weight, expected)
    before = (tmp_path / "run" / "model.safetensors").read_bytes()
    commands.train(str(place / "classes.npz"), "mlp", tmp_path / "run", nesting, still, **options)
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == before


def test_a_fresh_network_is_not_sorted(place, tmp_path):
    commands.train(str(place / "classes.npz"), "mlp", tmp_path / "run", PLAIN, QUICK.but(epochs=1))
    assert "sort" not in nl.load(tmp_path / "run").made_with


@pytest.mark.parametrize("what", ["pickle", "cut short", "missing", "folder"])
def test_weights_that_can_not_be_read(tmp_path, what):
    path = tmp_path / "a.safetensors"
    if what == "pickle":
        torch.save({"weight": torch.zeros(2, 3)}, path)
    elif what == "cut short":
        save_file({"weight": torch.zeros(2, 3)}, path)
        path.write_bytes(path.read_bytes()[:-4])
    elif what == "folder":
        path.mkdir()
    with pytest.raises(RunError, match="safetensors"):
        load_weights(nn.Linear(3, 2), path)


def test_evaluate_agrees_with_the_library(place, run):
    rows = cells(commands.evaluate(run, (), samples=2))
    assert [row["cut"] for row in rows] == ["0.5", "1"]
    opened, data = nl.open_run(run), nl.data.load(place / "classes.npz")
    saved = json.loads((run / "scores.json").read_text())
    assert (saved["data"], saved["samples"]) == ("classes", 2)
    for row, kept, cut in zip(rows, saved["rows"], (0.5, 1.0), strict=True):
        plain, calibrated = (
            nl.evaluate(opened.nested, data.batches("test", 500), cut=cut, samples=2, calibration=own)
            for own in (None, opened.calibration(cut))
        )
        assert kept["scores"] == json.loads(json.dumps(plain.to_dict()))
        assert kept["calibrated"] == json.loads(json.dumps(calibrated.to_dict()))
        assert row["accuracy %"] == f"{100 * plain.accuracy:.2f}"
        assert row["ECE %"] == f"{100 * plain.ece:.2f}"
        assert row["ECE % calibrated"] == f"{100 * calibrated.ece:.2f}"
        assert row["NLL"] == f"{plain.nll:.4f}"


def test_accuracy_by_hand(place, run):
    (row,) = cells(commands.evaluate(run, (0.5,), samples=0))
    assert "ECE % calibrated" not in row
    data, nested = nl.data.load(place / "classes.npz"), nl.load(run)
    with torch.no_grad(), nested.at(0.5):
        right = torch.cat([nested(x).argmax(1) == y for x, y in data.batches("test", 7)])
    assert row["accuracy %"] == f"{100 * right.double().mean():.2f}"


def test_evaluate_puts_cuts_in_order_and_each_once(run):
    assert [row["cut"] for row in cells(commands.evaluate(run, (1.0, 0.5, 1.0), samples=0))] == ["0.5", "1"]


def test_cuts_that_are_one_network_are_one_row(run):
    rows = cells(commands.evaluate(run, (0.01, 0.2, 0.5), samples=0))
    assert [(row["cut"], row["kept"]) for row in rows] == [("0.01, 0.2", "25.0%"), ("0.5", "50.0%")]


def test_a_new_cut_is_calibrated_once_and_kept(run):
    first = commands.evaluate(run, (0.75,), samples=2)
    opened = nl.open_run(run)
    assert len(opened.calibrations) == 3
    assert opened.calibration(0.75).temperature > 0
    before = (run / "calibration.json").read_bytes()
    assert cells(first)[0]["NLL"] == cells(commands.evaluate(run, (0.75,), samples=2))[0]["NLL"]
    assert (run / "calibration.json").read_bytes() == before


def test_held_out_classes_are_strange_data(place, tmp_path):
    held = shutil.copytree(place / "held", tmp_path / "run")
    (row,) = cells(commands.evaluate(held, (1.0,), samples=2))
    data = nl.data.load(place / "classes.npz", hold_out=(1,))
    assert len(data.classes) == 3
    strange = data.batches("held_out", 500)
    expected = nl.evaluate(nl.load(held), data.batches("test", 500), cut=1.0, samples=2, ood=strange)
    assert row["OOD AUROC % (a guess: 50)"] == f"{100 * expected.auroc:.2f}"


def test_other_data_is_normalised_like_the_run_s_own(place, run):
    commands.evaluate(run, (1.0,), ood=str(place / "strange.npz"), samples=0)
    kept = json.loads((run / "scores.json").read_text())["rows"][0]["scores"]
    own, other = (nl.data.load(place / name) for name in ("classes.npz", "strange.npz"))
    inputs = other.test.inputs.float() / 255
    strange = [(inputs - torch.tensor(own.mean).view(1, -1, 1, 1)) / torch.tensor(own.std).view(1, -1, 1, 1)]
    expected = nl.evaluate(nl.load(run), own.batches("test", 500), cut=1.0, samples=0, ood=strange)
    assert kept["auroc"] == pytest.approx(expected.auroc, abs=1e-6)


def test_strange_images_of_any_size_are_resized(run, tmp_path):
    (tmp_path / "strange" / "any").mkdir(parents=True)
    for number in range(12):
        Image.fromarray(np.full((8 + number, 9), 200, np.uint8)).save(tmp_path / "strange" / "any" / f"{number}.png")
    commands.evaluate(run, (1.0,), ood=str(tmp_path / "strange"), samples=0)
    assert "auroc" in json.loads((run / "scores.json").read_text())["rows"][0]["scores"]


def test_strange_data_of_another_shape_or_nowhere(place, run):
    with pytest.raises(RangeError, match="ood"):
        commands.evaluate(run, (1.0,), ood=str(place / "numbers.npz"))
    with pytest.raises(NestlingError, match="nowhere"):
        commands.evaluate(run, (1.0,), ood="nowhere")


@pytest.mark.parametrize("cut", [0.0, -1.0, 1.5, float("nan")])
def test_a_cut_that_is_none(run, tmp_path, cut):
    with pytest.raises(NestlingError, match="fraction"):
        commands.evaluate(run, (cut,))
    with pytest.raises(NestlingError, match="fraction"):
        commands.predict(run, image_file(tmp_path / "a.png"), cut, 0, 0.9)


def image_file(path, number=3):
    """An image that no run has seen: one of the validation images may lie just on a conformal threshold."""
    Image.fromarray(pictures(seed=1)[0][number]).save(path)
    return path


def test_predict_by_hand(run, tmp_path):
    path = image_file(tmp_path / "a.png")
    (row,) = cells(commands.predict(run, path, 0.5, 0, 0.8))
    opened = nl.open_run(run)
    about, calibration = opened.data, opened.calibration(0.5)
    x = (torch.from_numpy(pictures(seed=1)[0][3]).float() / 255 - about["mean"][0]) / about["std"][0]
    with torch.no_grad(), opened.nested.at(0.5):
        probs = (opened.nested(x[None, None]).double() / calibration.temperature).softmax(1)[0]
    assert row["input"] == str(path)
    assert row["class"] == str(int(probs.argmax()))
    assert float(row["probability"]) == pytest.approx(float(probs.max()), abs=1e-4)
    assert float(row["uncertainty"]) == pytest.approx(float(-(probs * probs.log()).sum()), abs=1e-4)
    assert float(row["of it epistemic"]) == 0
    held = [str(label) for label in range(4) if 1 - probs[label] <= calibration.thresholds[0.8]]
    assert row["80% set"] == (" ".join(held) or "none")


def test_predict_averages_over_as_many_draws_as_asked(run, tmp_path, monkeypatch):
    given = {}

    def noted(nested, x, **options):
        given.update(options)
        given["found"] = nl.predict(nested, x, **options)
        return given["found"]

    monkeypatch.setattr(import_module("nestling.commands.predicting"), "run_prediction", noted)
    (row,) = cells(commands.predict(run, image_file(tmp_path / "a.png"), 0.5, 8, 0.9))
    assert (given["samples"], given["cut"]) == (8, 0.5)
    found = given["found"]
    figures = [float(own[0]) for own in (found.confidence, found.entropy, found.epistemic)]
    assert [row["probability"], row["uncertainty"], row["of it epistemic"]] == [f"{own:.4f}" for own in figures]
    assert figures[2] > 0


def test_predict_reads_arrays_and_folders(run, tmp_path):
    images = pictures()[0][:3]
    np.save(tmp_path / "a.npy", images[:, None])
    (tmp_path / "images").mkdir()
    for number in range(3):
        image_file(tmp_path / "images" / f"{number}.png", number)
    tables = [cells(commands.predict(run, tmp_path / name, 1.0, 0, 0.9)) for name in ("a.npy", "images")]
    assert [row["input"] for row in tables[0]] == ["a.npy[0]", "a.npy[1]", "a.npy[2]"]
    for first, second in zip(*tables, strict=True):
        assert {**first, "input": ""} == {**second, "input": ""}


def test_answers_are_written_as_csv_too(run, tmp_path):
    table = commands.predict(run, image_file(tmp_path / "a.png"), 1.0, 0, 0.9, out=tmp_path / "answers.csv")
    with (tmp_path / "answers.csv").open(newline="") as file:
        assert list(csv.DictReader(file)) == cells(table)
    with pytest.raises(RunError, match="can't be written"):
        commands.predict(run, tmp_path / "a.png", 1.0, 0, 0.9, out=tmp_path / "nowhere" / "answers.csv")


def test_coverage_that_was_not_calibrated(run, tmp_path):
    with pytest.raises(RangeError, match=r"one of 0\.8, 0\.9"):
        commands.predict(run, image_file(tmp_path / "a.png"), 1.0, 0, 0.5)


def test_sets_are_those_that_the_validation_data_was_enough_for(place, tmp_path):
    """Five validation examples give sets of 80 %, which are shown if none are asked for."""
    images, labels = pictures(60)
    np.savez(tmp_path / "few.npz", x=images, y=labels)
    commands.train(str(tmp_path / "few.npz"), "mlp", tmp_path / "run", FEW, QUICK)
    table = commands.predict(tmp_path / "run", image_file(tmp_path / "a.png"), 1.0, 0, None)
    assert table.splitlines()[0].endswith("80% set")
    assert commands.predict(place / "classes", tmp_path / "a.png", 1.0, 0, None).splitlines()[0].endswith("90% set")


def test_predict_at_a_new_cut_calibrates_it(run, tmp_path):
    commands.predict(run, image_file(tmp_path / "a.png"), 0.75, 0, 0.9)
    assert nl.open_run(run).calibration(0.75) is not None


def test_a_run_elsewhere_predicts_without_its_data(place, run, tmp_path):
    source = Path(json.loads((run / "recipe.json").read_text())["data"]["loaded_with"]["source"])
    source.rename(tmp_path / "elsewhere")
    try:
        commands.predict(run, image_file(tmp_path / "a.png"), 1.0, 0, 0.9)
        with pytest.raises(MissingError, match=source.name):
            commands.evaluate(run, (1.0,))
    finally:
        (tmp_path / "elsewhere").rename(source)


def test_image_of_another_size(run, tmp_path):
    Image.fromarray(np.full((10, 10), 90, np.uint8)).save(tmp_path / "a.png")
    with pytest.raises(NestlingError, match="--resize"):
        commands.predict(run, tmp_path / "a.png", 1.0, 0, 0.9)
    assert len(cells(commands.predict(run, tmp_path / "a.png", 1.0, 0, 0.9, resize=True))) == 1


def test_regression(place, tmp_path):
    commands.train(str(place / "numbers.npz"), "mlp", tmp_path / "run", FEW, QUICK.but(epochs=1))
    rows = cells(commands.evaluate(tmp_path / "run", (1.0,), samples=2))
    data, opened = nl.data.load(place / "numbers.npz"), nl.open_run(tmp_path / "run")
    assert opened.likelihood == "gaussian"
    expected = nl.evaluate(opened.nested, data.batches("test", 99), cut=1.0, samples=2, likelihood="gaussian")
    assert rows[0]["RMSE"] == f"{expected.rmse:.4f}"
    rows = cells(commands.predict(tmp_path / "run", place / "numbers.npz", 1.0, 2, 0.9))
    assert len(rows) == 120
    for row in rows[:5]:
        low, high = (list(map(float, side.split())) for side in row["90% interval"].split(" to "))
        assert all(a < mean < b for a, mean, b in zip(low, map(float, row["mean"].split()), high, strict=True))


def test_segmentation(place, tmp_path):
    shared = Nesting(num_blocks=4, num_always=1, sampling="shared")
    commands.train(str(place / "masks.npz"), "unet", tmp_path / "run", shared, QUICK.but(epochs=1, cuts=(0.5,)))
    (row,) = cells(commands.evaluate(tmp_path / "run", (), samples=2))
    assert {"accuracy %", "GED", "Dice"} <= row.keys()
    np.save(tmp_path / "a.npy", np.load(place / "masks.npz")["images"][:3, None])
    rows = cells(commands.predict(tmp_path / "run", tmp_path / "a.npy", 0.5, 2, 0.9))
    assert len(rows) == 3
    for own in rows:
        assert float(own["share of 0"]) + float(own["share of 1"]) == pytest.approx(1, abs=1e-3)


def test_batch_norms_get_statistics_at_a_new_cut(place, tmp_path, monkeypatch):
    (tmp_path / "norm_nets.py").write_text(
        "from torch import nn\n"
        "def small(in_channels, num_classes):\n"
        "    layers = nn.Conv2d(in_channels, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten()\n"
        "    return nn.Sequential(*layers, nn.Linear(36, num_classes))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    run = tmp_path / "run"
    commands.train(str(place / "classes.npz"), "norm_nets:small", run, PLAIN, QUICK.but(epochs=1))
    with pytest.raises(RunError, match="norm_nets:small"):
        commands.evaluate(run, (0.25,))
    before = nl.load(run, trust=True)
    assert len(before.statistics) == 2
    commands.evaluate(run, (0.25,), trust=True)
    after = nl.load(run, trust=True)
    assert len(after.statistics) == 3
    images = torch.randn(4, 1, 5, 5)
    with torch.no_grad():
        torch.testing.assert_close(before(images), after(images))


def test_a_run_on_loaders_says_what_to_call_instead(tmp_path):
    pairs = TensorDataset(torch.randn(20, 4), torch.arange(20) % 2)
    nested = nl.nest(nl.models.build("mlp", hidden=[4], in_features=4, num_classes=2), torch.randn(2, 4), num_blocks=2)
    nl.train(nested, (pairs, pairs), QUICK.but(epochs=1), out=tmp_path / "run", quiet=True)
    with pytest.raises(RunError, match=r"nl\.evaluate"):
        commands.evaluate(tmp_path / "run", ())
    with pytest.raises(RunError, match=r"nl\.predict"):
        commands.predict(tmp_path / "run", tmp_path, 1.0, 0, 0.9)


def test_detection_stands_beside_what_a_guess_gives_and_a_limit_draws_examples(place, run, tmp_path, capsys):
    """Few out-of-distribution examples make a guess look bad and many make it look superb, so the table says which."""
    images, labels = pictures(900, seed=7)
    np.savez(tmp_path / "many.npz", x=images, y=labels)
    text = commands.evaluate(run, (0.5, 1.0), ood=str(tmp_path / "many.npz"), samples=1)
    saved = json.loads((run / "scores.json").read_text())
    scores = saved["rows"][0]["scores"]
    strange = len(nl.data.load(str(tmp_path / "many.npz")).test)
    assert scores["base_rate"] == strange / (strange + scores["count"]) > 0.8
    assert f"OOD AUPR % (a guess: {100 * scores['base_rate']:.1f})" in text
    assert "OOD AUROC % (a guess: 50)" in text
    assert text.endswith(f"± is half of the 95 % interval over the {scores['count']} test examples.")
    low, high = scores["bounds"]["accuracy"]
    assert low < scores["accuracy"] < high or scores["accuracy"] == 1
    assert f"{100 * scores['accuracy']:.2f} ±{50 * (high - low):.2f}" in text
    assert {"nll", "ece", "brier", "accuracy", "auroc", "aupr"} == scores["bounds"].keys()
    assert capsys.readouterr().err.splitlines()[-2:] == ["0.5 scored (1 of 2)", "1 scored (2 of 2)"]
    commands.evaluate(run, (1.0,), ood=str(tmp_path / "many.npz"), samples=1, limit=10)
    few = json.loads((run / "scores.json").read_text())
    assert few["limit"] == few["rows"][0]["scores"]["count"] == 10
    assert few["rows"][0]["scores"]["base_rate"] == 0.5
    with pytest.raises(RangeError, match="limit: got 0"):
        commands.evaluate(run, (1.0,), limit=0)


def test_a_model_or_data_that_is_not_there_leaves_no_folder(place, tmp_path):
    with pytest.raises(ArgumentError, match="Did you mean mlp"):
        commands.train(str(place / "classes.npz"), "mlpp", tmp_path / "run", FEW, QUICK)
    with pytest.raises(NestlingError, match="Did you mean 'digits'"):
        commands.train("digit", "mlp", tmp_path / "run", FEW, QUICK)
    assert not (tmp_path / "run").exists()


def test_data_lists_every_set_and_where_it_is_looked_for(tmp_path, monkeypatch):
    monkeypatch.setenv("NESTLING_DATA", str(tmp_path / "sets"))
    text = commands.data()
    assert [row["name"] for row in cells(text.split("\n\n")[0])] == list(nl.data.names())
    digits = next(line for line in text.splitlines() if line.startswith("digits"))
    assert "1,797" in digits
    assert str(tmp_path / "sets") in text.splitlines()[-1]


def test_search_and_extract(run, tmp_path):
    """The table is that of the curve in the folder, and the network that comes out is the one it names."""
    rows = cells(commands.search(run, "params", Searching(num_points=4)).rsplit("\n\n", 1)[0])
    curve = nl.Curve.read(run / "curve.json")
    assert [row["accuracy %"] for row in rows] == [f"{100 * own.score:.2f}" for own in curve.rows]
    assert (run / "curve.png").read_bytes()[:4] == b"\x89PNG"
    most = curve.rows[0].params + 1
    said = commands.extract(run, under=[f"params={most}"])
    small = nl.load_small(run / f"small-{curve.rows[0].params}")
    assert str(run / f"small-{curve.rows[0].params}") in said
    opened = nl.open_run(run)
    x = torch.randn(9, *opened.nested.example[0][0].shape[1:])
    with torch.no_grad():
        assert torch.allclose(small(x), nl.extract(opened.nested, curve.rows[0].cut)(x), atol=1e-6)
    commands.extract(run, cut=0.5, out=tmp_path / "half")
    about = json.loads((tmp_path / "half" / "small.json").read_text())
    assert about["cut"] == {"layers.1": 2, "layers.3": 2}
    weights = load_file(tmp_path / "half" / "weights.safetensors")
    assert sum(own.numel() for own in weights.values()) == about["cost"]["params"]


def test_export_writes_a_file_with_all_that_the_run_knows(run, place, tmp_path):
    said = commands.export(run, "onnx", cut=0.5, layout="nhwc", out=tmp_path / "half.onnx")
    assert str(tmp_path / "half.onnx") in said
    network, opened = nl.runtime.open(tmp_path / "half.onnx"), nl.open_run(run)
    about, loaded = network.about, nl.data.load(str(place / "classes.npz"))
    assert about["run"] == identity_of(json.loads((run / "recipe.json").read_text()))
    assert about["cut"] == {"layers.1": 2, "layers.3": 2}
    assert about["classes"] == list(loaded.classes)
    calibration = nl.calibrate(opened.nested, loaded.batches("validation", 500), cut=0.5, samples=0, coverage=0.8)
    assert about["temperature"] == pytest.approx(calibration.temperature)
    assert about["thresholds"]["0.8"] == pytest.approx(calibration.thresholds[0.8])
    answers = network.predict(np.moveaxis(loaded.test.inputs.numpy(), 1, -1))
    x, _ = next(iter(loaded.batches("test", 500)))
    p = nl.predict(opened.nested, x, cut=0.5, samples=0, calibration=calibration)
    assert np.allclose(answers.probs, p.probs, atol=1e-5)


def test_export_takes_the_best_cut_under_a_budget(run):
    commands.search(run, "params", Searching(num_points=4))
    row = nl.Curve.read(run / "curve.json").rows[0]
    commands.export(run, "onnx", under=[f"params={row.params + 1}"], floats=True)
    about = nl.runtime.open(run / f"small-{row.params}.onnx").about
    assert about["cut"] == row.cut.as_dict()
    assert about["inputs"][0]["dtype"] == "float32"


def test_a_small_network_is_exported_from_its_folder(tmp_path):
    module = nl.models.build("mlp", hidden=[6], in_features=25, num_classes=4).eval()
    data = {"as_bytes": True, "input_shape": [1, 5, 5], "mean": [0.3], "std": [0.2]}
    about = {"data": data, "classes": ["a", "b", "c", "d"], "likelihood": {"name": "categorical"}}
    save_small(module, ((torch.zeros(2, 1, 5, 5),), {}), tmp_path, about)
    commands.export(tmp_path, "onnx")
    images = pictures(3)[0][:, None]
    answers = nl.runtime.open(tmp_path / "network.onnx").predict(images)
    with torch.no_grad():
        expected = module((torch.from_numpy(images).float() / 255 - 0.3) / 0.2).softmax(1)
    assert np.allclose(answers.probs, expected, atol=1e-5)
    assert answers.names == ["abcd"[label] for label in expected.argmax(1)]
    with pytest.raises(ArgumentError, match="Export the run"):
        commands.export(tmp_path, "onnx", cut=0.5)
    save_small(module, ((torch.zeros(2, 1, 5, 5),), {}), tmp_path, {})
    with pytest.raises(RunError, match="does not say what the network takes"):
        commands.export(tmp_path, "onnx")


def test_an_extracted_network_knows_what_it_takes(place, run, tmp_path):
    """Bytes as they are in files: the folder alone gives the scores of the run, and its calibration of the cut."""
    commands.evaluate(run, (0.5,), samples=0)
    commands.extract(run, cut=0.5, out=tmp_path / "half")
    small, opened = nl.load_small(tmp_path / "half"), nl.open_run(run)
    test = nl.data.load(place / "classes.npz").split("test")
    answer, calibration = small.predict(test.inputs), opened.calibration(0.5)
    assert calibration is not None
    x, _ = next(iter(nl.data.load(place / "classes.npz").batches("test", 500)))
    expected = nl.predict(opened.nested, x, cut=0.5, samples=0, calibration=calibration)
    torch.testing.assert_close(answer.log_probs, expected.log_probs, rtol=1e-4, atol=1e-4)
    assert answer.thresholds == calibration.thresholds
    assert small.about["run"] == identity_of(read_json(run / "recipe.json"))
    assert small.about["classes"] == opened.data["classes"]


def test_a_latency_above_the_budget_is_said(run, tmp_path, monkeypatch):
    """The network as it is loaded is measured again, and is what the table says."""
    commands.search(run, "latency", Searching(num_points=3))
    searching = import_module("nestling.commands.searching")
    for milliseconds, beyond in ((1e-9, False), (123.456, True)):
        timed = []
        monkeypatch.setattr(searching, "latencies_ms", lambda own, _, to=timed, ms=milliseconds: to.extend(own) or [ms])
        said = commands.extract(run, under=["latency_ms=100"], out=tmp_path / "small")
        assert isinstance(timed[0], PlainGraph)
        assert ("above the budget of 100 ms" in said) is beyond
        about = json.loads((tmp_path / "small" / "small.json").read_text())
        assert about["cost"]["latency_ms"] == milliseconds


def transferred(place, out, **options):
    words = (str(place / "strange.npz"), "resnet14", out, PLAIN, QUICK)
    return commands.train(*words, model_options=["width=0.25"], **options)


def test_training_starts_from_a_run(place, with_norms, tmp_path, monkeypatch):
    """From its network at full width, with its norms' statistics, as teacher too; its units keep their order."""
    seen = {}

    def note(nested, data, recipe, *, starts_from, teacher, **_):
        seen.update(nested=nested, starts_from=starts_from, teacher=teacher)

    monkeypatch.setattr(import_module("nestling.commands.training"), "run_training", note)
    transferred(place, tmp_path / "run", pretrained=with_norms[0])
    opened = nl.open_run(with_norms[0])
    x, _ = next(iter(nl.data.load(place / "classes.npz").batches("test", 20)))
    with torch.no_grad(), opened.nested.at(1.0):
        expected = opened.nested(x)
    assert torch.allclose(seen["nested"].eval()(x), expected, atol=1e-5)
    assert torch.allclose(seen["teacher"].eval()(x), expected, atol=1e-5)
    first = seen["starts_from"]
    commands.evaluate(with_norms[0], (0.4,), samples=0)  # changes the file, and not the network
    transferred(place, tmp_path / "run", pretrained=with_norms[0])
    assert seen["starts_from"] == first


def test_training_on_other_classes_starts_from_a_run(place, with_norms, tmp_path, capsys):
    images, labels = pictures()
    np.savez(place / "three.npz", x=images, y=labels % 3)
    words = (str(place / "three.npz"), "resnet14", tmp_path / "three", PLAIN, QUICK.but(epochs=1))
    commands.train(*words, model_options=["width=0.25"], pretrained=with_norms[0])
    assert "classifier.weight, classifier.bias not taken" in capsys.readouterr().out
    assert nl.load(tmp_path / "three").module.classifier.out_features == 3


def test_a_folder_that_is_no_run_gives_no_weights(place, tmp_path):
    with pytest.raises(RunError, match=r"model\.safetensors: is not there"):
        transferred(place, tmp_path / "run", pretrained=place)


def test_help_names_the_models():
    assert nl.models.names() == commands.MODELS


@pytest.fixture(scope="module")
def with_norms(place):
    """A run of a network with batch norms, which was searched, and its curve."""
    words = (str(place / "classes.npz"), "resnet14", place / "norms", PLAIN, QUICK)
    commands.train(*words, model_options=["width=0.25"])
    commands.search(place / "norms", "params", Searching(num_points=5))
    return place / "norms", nl.Curve.read(place / "norms" / "curve.json")


def test_a_searched_cut_is_one_network_everywhere(place, with_norms, tmp_path):
    """Loaded again, each network of the curve has the scores that the search gave it, and extract gives the same."""
    run, curve = with_norms
    nested, data = nl.load(run), nl.data.load(place / "classes.npz")
    assert len(curve.rows) > 3
    for row in curve.rows:
        scores = nl.evaluate(nested, data.batches("validation", 500), cut=row.cut, samples=0)
        assert (scores.quality, -scores.nll) == (row.score, row.log_likelihood)
    row = curve.rows[1]
    commands.extract(run, under=[f"params={row.params}"], out=tmp_path / "small")
    small = nl.load_small(tmp_path / "small")
    x, _ = next(iter(data.batches("test", 100)))
    with torch.no_grad(), nested.at(row.cut):
        assert torch.allclose(small(x), nested(x), atol=1e-5)


def test_a_run_searched_in_python_is_saved_with_its_statistics(place, with_norms, tmp_path):
    run = nl.open_run(shutil.copytree(with_norms[0], tmp_path / "run"))
    data = nl.data.load(place / "classes.npz")
    curve = nl.search(run.nested, data.batches("validation", 500), "macs", num_points=3)
    nl.save(run.nested, run.folder)
    again = nl.open_run(run.folder)
    assert {row.cut for row in curve.rows} <= set(again.nested.statistics)
    assert len(again.calibrations) == len(run.calibrations)


def test_a_run_keeps_the_statistics_of_its_last_curve_alone(with_norms, tmp_path):
    run = shutil.copytree(with_norms[0], tmp_path / "run")
    size = (run / "model.safetensors").stat().st_size
    commands.search(run, "macs", Searching(num_points=2))
    opened, curve = nl.open_run(run), nl.Curve.read(run / "curve.json")
    calibrated = {calibration.cut for calibration in opened.calibrations}
    assert set(opened.nested.statistics) == calibrated | {row.cut for row in curve.rows}
    assert len(calibrated) == len(QUICK.cuts)
    assert (run / "model.safetensors").stat().st_size < size
    commands.evaluate(run, (0.75,), samples=0)  # adds a cut, and drops none
    assert set(opened.nested.statistics) < set(nl.load(run).statistics)


def test_a_search_of_a_run_that_is_trained_further_spoils_nothing(with_norms, tmp_path, monkeypatch):
    run = shutil.copytree(with_norms[0], tmp_path / "run")
    before = (run / "model.safetensors").read_bytes()
    opened = nl.open_run(run)
    opened.nested.module.classifier.bias.data += 1
    with pytest.raises(RunError, match="trained further in the meantime"):
        keep_statistics(opened, [])
    assert (run / "model.safetensors").read_bytes() == before


def test_a_curve_of_other_weights_is_not_used(place, with_norms, tmp_path):
    """The run went on after its search, and a later epoch was better."""
    run = shutil.copytree(with_norms[0], tmp_path / "run")
    opened = nl.open_run(run)
    opened.nested.module.classifier.bias.data += 1
    nl.save(opened.nested, run, notes={"run": identity_of(json.loads((run / "recipe.json").read_text()))})
    (run / "calibration.json").unlink()
    with pytest.raises(RunError, match=r"is of other weights.*nestling search .*run --trust"):
        commands.extract(run, under=["params=1e9"], trust=True)


def test_the_hint_after_a_search_can_be_copied(run, tmp_path):
    said = commands.search(run, "params", Searching(num_points=2), trust=True)
    assert f"nestling extract {run} --trust --under params=" in said
    spaced = run.rename(tmp_path / "my run")
    assert f"nestling extract '{spaced}' --under params=" in commands.search(spaced, "params", Searching(num_points=2))


def test_a_search_says_at_once_that_it_can_not_write(run, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(FileLock, "acquire", refuse)
    monkeypatch.setattr(import_module("nestling.commands.searching"), "run_search", None)
    with pytest.raises(RunError, match=r"can't be written to \(Permission denied\)"):
        commands.search(run, "params")


def test_a_search_that_is_ended_leaves_no_half_written_file(run, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(Stopped, match="what was saved before is whole"):
        commands.search(run, "params", Searching(num_points=2))
    assert not list(run.glob(".*.part"))


def test_a_file_system_that_is_read_only_is_one_line(tmp_path, monkeypatch):
    """There not even a file that is absent can be removed."""

    def refuse(*_, **__):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(Path, "open", refuse)
    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(RunError, match=r"curve.json: can't be written \(Read-only file system\)"):
        write_json(tmp_path / "curve.json", {})


def test_a_search_removes_what_a_killed_one_left(run):
    part = run / ".search.json.123.0a1b2c3d.part"
    part.write_text("half")
    commands.search(run, "params", Searching(num_points=2))
    assert not list(run.glob(".*.part"))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "a cut, or budgets"),
        ({"cut": 0.5, "under": ["macs=3"]}, "a cut, or budgets"),
        ({"under": ["macs=3"]}, "has no curve yet"),
        ({"under": ["macs"]}, "a budget such as"),
        ({"under": ["latency_ms=4ms"]}, "without its unit"),
        ({"cut": 2.0}, "a fraction within"),
    ],
)
def test_what_can_not_be_extracted(run, options, said):
    with pytest.raises(NestlingError, match=said):
        commands.extract(run, **options)


@pytest.mark.parametrize("structure", ["weights", "units"])
def test_prune_leaves_a_network_that_runs_by_itself(place, tmp_path, structure):
    recipe = Recipe(epochs=2, batch_size=32, lr=1e-2, order_lr=0.1, lr_warm_up=0.0, kappa=1.0, kl_warm_up=0.0)
    words = (str(place / "classes.npz"), "mlp", tmp_path / "out", Pruning(structure=structure, threshold=0.0), recipe)
    text = commands.prune(*words, model_options=["hidden=[12, 8]"])
    about = json.loads((tmp_path / "out" / "small.json").read_text())
    assert about["structure"] == structure
    low, high = about["test"]["bounds"]["accuracy"]
    assert f"test accuracy {about['test']['accuracy']:.4g} (95 % interval {low:.4g} to {high:.4g})" in text
    loaded = nl.data.load(str(place / "classes.npz"))
    small = nl.load_small(tmp_path / "out")
    whole = nl.models.build("mlp", hidden=[12, 8], in_features=25, num_classes=4)
    again = nl.load_pruned(tmp_path / "out" / "pruned.safetensors", whole)
    x, y = next(iter(loaded.batches("test", 500)))
    with torch.no_grad():
        assert about["test"]["accuracy"] == pytest.approx(float((small(x).argmax(1) == y).float().mean()))
        assert torch.allclose(again(x), small(x), atol=1e-6)
    files = {path.name: path.stat().st_size for path in (tmp_path / "out").glob("*.*")}
    assert set(files) == {"network.json", "pruned.safetensors", "small.json"}
    assert f"({files['network.json'] + files['pruned.safetensors']:,} of" in text  # the headline is of these files
    said = commands.export(tmp_path / "out", "onnx")
    answers = nl.runtime.open(tmp_path / "out" / "network.onnx").predict(loaded.test.inputs.numpy())
    assert "at most" in said, "of the difference from torch"
    assert np.allclose(answers.probs, small.predict(loaded.test.inputs).probs, atol=1e-6)
    assert answers.about["classes"] == list(loaded.classes)
    again = commands.prune(*words, model_options=["hidden=[12, 8]"])
    assert without_times(again) == without_times(text)


def test_a_pruned_network_without_a_graph_is_not_exported(tmp_path):
    write_about(tmp_path, {"data": None})
    (tmp_path / "pruned.safetensors").write_bytes(b"")
    with pytest.raises(RunError, match=r"whose graph could not be stored.*nl\.load_pruned"):
        nl.load_small(tmp_path)


def without_times(text):
    """The text of ``prune`` without measured milliseconds."""
    rows = re.sub(r"bytes\), .* for one example", "", text).splitlines()
    return [row.split() for row in rows if not row.startswith(("ms ", "---"))]


def test_prune_to_a_target(place, tmp_path):
    recipe = Recipe(epochs=2, batch_size=32, lr=1e-2, order_lr=0.1, lr_warm_up=0.0, kappa=0.1, kl_warm_up=0.0)
    options = Pruning(structure="units", under=("macs=0.5x", "params=300"))
    source = str(place / "classes.npz")
    said = commands.prune(source, "mlp", tmp_path / "out", options, recipe, model_options=["hidden=[12, 8]"])
    about = json.loads((tmp_path / "out" / "small.json").read_text())
    assert about["after"]["macs"] <= about["before"]["macs"] / 2
    assert about["after"]["params"] <= 300
    assert f"under macs=0.5x, params=300 ({about['num_beyond']} more units dropped)" in said


@pytest.mark.parametrize(
    ("function", "record"),
    [(nl.nest, Nesting), (nl.prune, Pruning), (nl.search, Searching), (nl.cascade, Cascading)],
)
def test_options_of_commands_are_those_of_python(function, record):
    """Each is an argument of the same name with the same default; bits have one only where there are some."""
    defaults = {name: each.default for name, each in inspect.signature(function).parameters.items()}
    given = {name: value for name, value in vars(record()).items() if name != "bits"}
    assert given == {name: defaults[name] for name in given}


def test_one_file_has_the_cuts_of_the_recipe(run, place, tmp_path):
    commands.cascade(run, (0.25, 1.0), Cascading(goal="macs=0.8x", samples=2))
    said = commands.export(run, "onnx", all_widths=True, out=tmp_path / "all.onnx")
    assert "averages 2 draws" in said, "why its cascade is not in the file"
    assert "--samples 0" in said
    opened, loaded = nl.open_run(run), nl.data.load(str(place / "classes.npz"))
    x, _ = next(iter(loaded.batches("test", 500)))
    for cut in opened.recipe.cuts:
        answers = nl.runtime.open(tmp_path / "all.onnx", cut=cut).predict(loaded.test.inputs.numpy())
        fitted = nl.calibrate(opened.nested, loaded.batches("validation", 500), cut=cut, samples=0)
        expected = nl.predict(opened.nested, x, cut=cut, samples=0, calibration=fitted)
        assert np.allclose(answers.probs, expected.probs, atol=1e-5)
        assert fitted.temperature != 1
        assert answers.about["thresholds"]["0.9"] == fitted.thresholds[0.9]
    with pytest.raises(ArgumentError, match="left out with all_widths"):
        commands.export(run, "onnx", all_widths=True, cut=0.5)


def test_a_file_of_several_widths_has_the_cascade_of_the_run(run, place, tmp_path):
    """That of the mean weights, which answers as in torch."""
    commands.cascade(run, (0.25, 1.0), Cascading(goal="macs=0.8x", samples=0))
    said = commands.export(run, "onnx", all_widths=True, out=tmp_path / "all.onnx")
    assert "open_cascade" in said
    loaded = nl.data.load(str(place / "classes.npz"))
    x, _ = next(iter(loaded.batches("test", 500)))
    fitted = nl.Cascade.load(run, nl.open_run(run).nested).predict(x)
    found = nl.runtime.open_cascade(tmp_path / "all.onnx").predict(loaded.test.inputs.numpy())
    assert found.stages.tolist() == fitted.stages.tolist()
    assert np.allclose(found.probs, fitted.probs, atol=1e-5)
    table = nl.runtime.open(tmp_path / "all.onnx").about["widths"]["table"]
    assert {row["name"] for row in table} == {"0.25", "0.5", "1"}, "those of the recipe and of the cascade"


def test_a_repository_for_triton_has_a_model_of_each_width(run, tmp_path):
    """Those of the recipe and of the run's cascade, calibrated as single files are."""
    commands.cascade(run, (0.5, 1.0), Cascading(goal="latency_ms=1x", samples=0), measured_in="onnxruntime")
    fitted = nl.Cascade.load(run, nl.open_run(run).nested)
    assert all(stage.ms > 0 for stage in fitted.stages)
    assert fitted.goal == "latency_ms=1x"
    said = commands.export(run, "triton", out=tmp_path / "models")
    names = ["run_0_5", "run_1", "run_cascade"]
    assert ", ".join(names) in said
    assert sorted(path.name for path in (tmp_path / "models").iterdir()) == names
    about = nl.runtime.open(tmp_path / "models/run_0_5/1/model.onnx").about
    assert about["calibrated_on"]["samples"] == 0
    with pytest.raises(ArgumentError, match="left out for Triton"):
        commands.export(run, "triton", all_widths=True)
    with pytest.raises(RunError, match="is there already"):
        commands.export(run, "triton", cut=0.5, out=tmp_path / "models")


def test_a_file_in_8_bits_is_written_beside_the_one_in_float(run, tmp_path):
    said = commands.export(run, "onnx", cut=1.0, int8=True, out=tmp_path / "whole.onnx")
    assert "keep their class" in said
    assert nl.runtime.open(tmp_path / "whole-int8.onnx").about["classes"] == nl.open_run(run).data["classes"]
    with pytest.raises(ArgumentError, match="the format onnx"):
        commands.export(run, "openvino", int8=True)


def test_a_run_is_exported_as_a_folder_for_the_hub(run, tmp_path):
    commands.export(run, "hub", out=tmp_path / "hub")
    x = torch.zeros(2, *nl.open_run(run).data["input_shape"])
    opened, loaded = nl.open_run(run).nested.eval(), load_hub(tmp_path / "hub")
    loaded = getattr(loaded, "nested", loaded).eval()
    torch.testing.assert_close(loaded(x), opened(x))
    with pytest.raises(ArgumentError, match="left out for the hub"):
        commands.export(run, "hub", cut=0.5)
