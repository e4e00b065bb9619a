"""A run folder of a stranger's: what it may read, how long it may take, and what it may print."""

import os
import shutil
import sys

import numpy as np
import pytest
from test_corruption import edited, sign_again

from nestling import cli, commands
from nestling.errors import RunError
from nestling.network import Nesting
from nestling.search import Searching
from nestling.training import Recipe, open_run

FEW = Nesting(num_blocks=4, num_always=1, weights="plain")
QUICK = Recipe(epochs=1, batch_size=16, samples=1, cuts=(1.0,))


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with data of the reader's, and a run on it."""
    folder = tmp_path_factory.mktemp("foreign")
    x = np.random.default_rng(0).integers(0, 256, (120, 4, 4), dtype=np.uint8)
    np.savez(folder / "mine.npz", x=x, y=np.arange(120) % 3)
    shutil.copy(folder / "mine.npz", folder / "secret.npz")
    np.save(folder / "inputs.npy", x[:2])
    options = {"model_options": ["hidden=[8]"]}
    commands.train(str(folder / "mine.npz"), "mlp", folder / "run", FEW, QUICK, **options)
    return folder


@pytest.fixture
def run(place, tmp_path):
    return shutil.copytree(place / "run", tmp_path / "run")


@pytest.fixture
def foreign(place, run):
    """The run as a stranger may have made it, who knows of other data of the reader's."""
    edited(run, "recipe.json", {("data", "loaded_with", "source"): str(place / "secret.npz")})
    sign_again(run)
    return run


READERS = {
    "evaluate": lambda place, run, **trust: commands.evaluate(run, (0.5,), samples=0, **trust),
    "search": lambda place, run, **trust: commands.search(run, "macs", Searching(num_points=3), **trust),
    "predict": lambda place, run, **trust: commands.predict(run, place / "inputs.npy", 0.5, 0, 0.8, **trust),
}


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS.keys())
def test_a_run_of_one_s_own_reads_its_data_and_a_stranger_s_asks(place, run, foreign, reader, tmp_path):
    with pytest.raises(RunError, match=r"asks to read .*secret\.npz.*--trust"):
        reader(place, foreign)
    assert reader(place, foreign, trust=True)
    moved = shutil.copytree(place / "run", tmp_path / "moved")
    assert reader(place, moved)


def test_named_sets_need_no_trust(place, run):
    edited(run, "recipe.json", {("data", "loaded_with", "source"): "digits"})
    sign_again(run)
    with pytest.raises(RunError, match="was trained on other data than digits"):
        commands.evaluate(run, (0.5,), samples=0)


@pytest.mark.parametrize("home", ["none", "a file"])
def test_without_a_place_for_notes_a_run_is_trained_and_asks(place, tmp_path, monkeypatch, home):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file") if home == "a file" else "~nobody_here/state")
    commands.train(str(place / "mine.npz"), "mlp", tmp_path / "run", FEW, QUICK, model_options=["hidden=[8]"])
    with pytest.raises(RunError, match="--trust"):
        commands.evaluate(tmp_path / "run", (1.0,), samples=0)
    assert commands.evaluate(tmp_path / "run", (1.0,), samples=0, trust=True)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    commands.train(str(place / "mine.npz"), "mlp", tmp_path / "run", FEW, QUICK, model_options=["hidden=[8]"])
    assert commands.evaluate(tmp_path / "run", (1.0,), samples=0), "the same command again says whose run it is"


def test_a_recipe_that_would_never_end_is_refused(run):
    edited(run, "recipe.json", {("recipe", "samples"): 10**9})
    sign_again(run)
    with pytest.raises(RunError, match="samples: got 1000000000, but it must be at most 10,000"):
        open_run(run)


def test_a_log_of_gigabytes_is_refused(run):
    os.truncate(run / "log.jsonl", 12 * 10**9)
    with pytest.raises(RunError, match=r"log\.jsonl: is longer than"):
        open_run(run)


def test_class_names_do_not_act_on_the_terminal(place, run, monkeypatch, capsys):
    edited(run, "recipe.json", {("data", "classes"): [f"\x1b]0;{n}\x07\x1b[2J" for n in range(3)]})
    sign_again(run)
    monkeypatch.setattr(sys, "argv", ["nestling", "predict", str(run), str(place / "inputs.npy"), "--samples", "0"])
    cli.main()
    printed = capsys.readouterr().out
    assert "\x1b" not in printed
    assert "\\x1b]0;" in printed
