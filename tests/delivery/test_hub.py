"""Folders for the hub: they load back, say what was measured and nothing else, and never run code."""

import json
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open

import nestling as nl
from nestling import commands
from nestling.delivery.hub import HUB_FILES, load_hub, push_hub, write_hub
from nestling.storage import read_json
from nestling.training.run import identity_of


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A trained, evaluated and searched run."""
    folder = tmp_path_factory.mktemp("runs") / "digits"
    net = nl.models.build("mlp", in_features=64, num_classes=10, hidden=[16])
    nested = nl.nest(net, torch.zeros(2, 1, 8, 8), num_blocks=4, num_always=1, order="uniform", weights=None)
    recipe = nl.Recipe(epochs=1, batch_size=64, cuts=(0.5, 1.0))
    nl.train(nested, "digits", recipe, out=folder, quiet=True)
    commands.evaluate(folder, (), samples=0)
    commands.search(folder, "macs")
    return folder


@pytest.fixture(scope="module")
def made(run, tmp_path_factory):
    return write_hub(nl.open_run(run), tmp_path_factory.mktemp("hub") / "digits-nested", licence="apache-2.0")


def test_a_folder_loads_back_and_computes_the_same(run, made):
    nested, loaded = nl.open_run(run).nested, load_hub(made)
    x = torch.randn(5, 1, 8, 8)
    for cut in (0.25, 0.5, 1.0):
        with torch.no_grad(), nested.at(cut), loaded.at(cut):
            assert torch.equal(nested(x), loaded(x))
    assert loaded.statistics.keys() == nested.statistics.keys()


def test_a_folder_is_a_run(run, made):
    opened = nl.open_run(made)
    assert opened.calibrations == nl.open_run(run).calibrations
    assert commands.evaluate(made, (0.5,), samples=0).startswith("cut")
    (made / "scores.json").write_bytes((run / "scores.json").read_bytes())


def test_there_are_only_data_and_nothing_of_the_machine(made):
    assert {file.name for file in made.iterdir()} == set(HUB_FILES)
    with safe_open(made / "model.safetensors", framework="pt") as file:
        assert any(name.startswith("network.") for name in file.keys())  # noqa: SIM118 (not a dictionary)
    assert "command" not in read_json(made / "recipe.json")["made_by"]
    config = json.loads((made / "config.json").read_text())
    assert config["model"] == {"name": "mlp", "options": {"in_features": 64, "num_classes": 10, "hidden": [16]}}
    assert config["data"]["classes"] == list("0123456789")
    assert [entry["cut"] for entry in config["calibrations"]]


def test_the_card_has_what_was_measured(made):
    card = (made / "README.md").read_text()
    head, _, body = card.removeprefix("---\n").partition("---\n")
    assert "license: apache-2.0\n" in head
    assert "library_name: nestling\n" in head
    assert "pipeline_tag: image-classification\n" in head
    scores = read_json(made / "scores.json")["rows"]
    rows = table(body, "## Measured")
    for row, saved in zip(rows, scores, strict=True):
        assert row["accuracy %"].startswith(f"{100 * saved['scores']['accuracy']:.2f} ± ")
        assert row["NLL"].startswith(f"{saved['scores']['nll']:.4f} ± ")
        assert row["ms"] == f"{saved['cost']['latency_ms']:.3f}"
    curve = table(body, "## The best cuts")
    best = json.loads((made / "curve.json").read_text())["rows"]
    assert [row["accuracy %"] for row in curve] == [f"{100 * row['score']:.2f}" for row in best]
    assert curve[-1]["kept"] == "100.0%"
    assert "](curve.png)" in body
    assert (made / "curve.png").read_bytes().startswith(b"\x89PNG")


def table(card: str, title: str) -> list[dict[str, str]]:
    lines = [line for line in card.partition(title)[2].partition("## ")[0].splitlines() if line.startswith("|")]
    header, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    return [dict(zip(header, row, strict=True)) for row in rows]


def test_figures_of_other_weights_are_left_out(run, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(run, other)
    opened = nl.open_run(other)
    with torch.no_grad():
        next(opened.nested.parameters()).add_(1)
    nl.save(opened.nested, other, notes={"run": identity_of(read_json(other / "recipe.json"))})
    (other / "calibration.json").unlink()
    place = write_hub(nl.open_run(other), tmp_path / "hub")
    assert not {"scores.json", "curve.json", "curve.png"} & {file.name for file in place.iterdir()}
    assert "Nothing was measured yet" in (place / "README.md").read_text()


def test_a_nested_network_without_a_run(tmp_path):
    net = nl.models.build("lenet_5_caffe")
    nested = nl.nest(net, torch.zeros(2, 1, 28, 28), num_blocks=4, num_always=1).eval()
    place = write_hub(nested, tmp_path / "a | b<script>")
    x = torch.randn(3, 1, 28, 28)
    with torch.no_grad():
        assert torch.equal(load_hub(place)(x), nested(x))
    card = (place / "README.md").read_text()
    assert "# a &#124; b&#60;script&#62;\n" in card
    assert "license" not in card


def test_damaged_and_foreign_folders_are_refused(made, tmp_path):
    for name, content in (("cut", None), ("pickle", pickle.dumps(Trap())), ("empty", b"")):
        place = tmp_path / name
        shutil.copytree(made, place)
        weights = place / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-40] if content is None else content)
        with pytest.raises(nl.RunError, match=r"model\.safetensors") as caught:
            load_hub(place)
        assert "\n" not in str(caught.value)
    assert not Trap.sprung
    with pytest.raises(nl.RunError, match="is not there"):
        load_hub(tmp_path)


class Trap:
    sprung = False

    def __reduce__(self):
        return setattr, (Trap, "sprung", True)


def test_the_run_folder_itself_is_not_overwritten(run):
    with pytest.raises(nl.ArgumentError, match="other than the run's own"):
        write_hub(nl.open_run(run), run)


def test_only_what_was_written_is_sent_and_only_when_asked(made, monkeypatch, tmp_path):
    hub = pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed")
    calls = []

    class Recorded:
        def create_repo(self, repository, *, private, exist_ok):
            calls.append((repository, private, exist_ok))
            return f"https://hub/{repository}"

        def upload_folder(self, *, repo_id, folder_path, allow_patterns):
            calls.append((repo_id, Path(folder_path), allow_patterns))

    monkeypatch.setattr(hub, "HfApi", Recorded)
    assert push_hub(made, "me/digits") == "https://hub/me/digits"
    assert calls == [("me/digits", True, True), ("me/digits", made, list(HUB_FILES))]
    with pytest.raises(nl.RunError):
        push_hub(tmp_path, "me/digits")
    assert len(calls) == 2


def test_a_repository_is_fetched_by_name(made, monkeypatch):
    hub = pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed")
    asked = []

    def fetch(name, *, revision, allow_patterns):
        asked.append((name, revision, allow_patterns))
        if name != "me/digits":
            raise OSError("no\nsuch repository")
        return str(made)

    monkeypatch.setattr(hub, "snapshot_download", fetch)
    assert np.isfinite([p.detach().sum() for p in load_hub("me/digits", revision="v1").parameters()]).all()
    assert asked == [("me/digits", "v1", list(HUB_FILES))]
    with pytest.raises(nl.RunError, match=r"me/other: is no folder.*\(no such repository\)"):
        load_hub("me/other")
