"""More epochs for a complete run: it goes on from its best weights, also when it is stopped on the way."""

import json
from dataclasses import replace

import pytest
import torch
from small_networks import QUICK, examples, nested_mlp, nested_norms, normal
from torch.utils.data import TensorDataset

import nestling as nl
from nestling.errors import RunError
from nestling.storage import read_tensors
from nestling.training import train
from nestling.training.loop import Loop
from nestling.training.schedules import lr_factor


def run(place, epochs, nested=None, data=examples, **changes):
    recipe = QUICK.but(epochs=epochs, **changes)
    return train(nested or nested_mlp(), (data(), data(seed=3)), recipe, out=place, quiet=True)


def images(seed=2):
    x = normal(24, 1, 4, 4, seed=seed)
    return TensorDataset(x, x[:, 0, 0, :3].argmax(1))


def weights(place):
    return {name: t for name, t in read_tensors(place / "model.safetensors")[0].items() if name.startswith("network.")}


def test_a_complete_run_goes_on(tmp_path):
    first = run(tmp_path, 2)
    more = run(tmp_path, 5)
    assert [line["epoch"] for line in more.log] == [1, 2, 3, 4, 5]
    assert list(more.log[:2]) == list(first.log)
    best = [max(line["validation_quality"] for line in own.log) for own in (first, more)]
    assert best[1] >= best[0]
    opened = nl.open_run(tmp_path)
    assert opened.recipe.epochs == 5
    assert len(opened.log) == 5
    assert len(opened.calibrations) == len(QUICK.cuts)
    again = run(tmp_path, 5)  # complete: read back
    assert list(again.log) == list(more.log)
    assert [line["epoch"] for line in run(tmp_path, 6).log] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("stop", [6, 7, 10])
def test_one_that_is_stopped_on_the_way_ends_as_one_that_is_not(tmp_path, monkeypatch, stop):
    for place in (tmp_path / "whole", tmp_path / "stopped"):
        run(place, 2)
    run(tmp_path / "whole", 4)
    real = Loop._step

    def step(self, batch):
        if self.state.step == stop:
            raise KeyboardInterrupt
        return real(self, batch)

    with monkeypatch.context() as patch:
        patch.setattr(Loop, "_step", step)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path / "stopped", 4)
    run(tmp_path / "stopped", 4)
    expected, found = weights(tmp_path / "whole"), weights(tmp_path / "stopped")
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


def test_a_run_that_is_not_complete_gets_no_more(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(Loop, "_validate_and_keep", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            run(tmp_path, 2)
    with pytest.raises(RunError, match=r"its recipe\.epochs is 2, yours 4.* once it is complete"):
        run(tmp_path, 4)
    run(tmp_path, 2)
    assert len(run(tmp_path, 4).log) == 4


def test_fewer_epochs_and_other_changes_are_another_run(tmp_path):
    run(tmp_path, 2)
    for epochs, changes in ((1, {}), (4, {"lr": 0.5}), (4, {"seed": 3})):
        with pytest.raises(RunError, match="holds another run"):
            run(tmp_path, epochs, **changes)
    assert json.loads((tmp_path / "recipe.json").read_text())["recipe"]["epochs"] == 2


def test_a_run_that_patience_ended_goes_on(tmp_path, monkeypatch):
    real = Loop._validate_and_keep

    def never_better(self, means):
        line = real(self, means)
        self.state.best_epoch = 1
        return line

    monkeypatch.setattr(Loop, "_validate_and_keep", never_better)
    assert len(run(tmp_path, 9, patience=1).log) == 2
    assert len(run(tmp_path, 20, patience=1).log) == 3
    assert len(run(tmp_path, 20, patience=1).log) == 3  # complete


def test_statistics_of_other_weights_are_not_kept(tmp_path):
    run(tmp_path, 1, nested_norms(), images)
    opened = nl.open_run(tmp_path, nested_norms())
    nl.recalibrate(opened.nested, [next(iter(torch.utils.data.DataLoader(images(), 24)))], 0.7)
    nl.save(opened.nested, tmp_path)
    more = run(tmp_path, 2, nested_norms(), images, keep="best")
    kept = more.log[1]["kept"]
    assert len(nl.load(tmp_path, nested_norms()).statistics) == (2 if kept else 3)
    assert nl.open_run(tmp_path, nested_norms()).calibrations


def test_rates_rise_again_and_then_follow_the_schedule_of_all_epochs():
    recipe = replace(QUICK, lr_warm_up=0.1)
    whole = [lr_factor(recipe, step / 100) for step in range(100)]
    assert lr_factor(recipe, 0.5, 0.5) == 0
    assert lr_factor(recipe, 0.525, 0.5) == pytest.approx(0.5 * lr_factor(recipe, 0.525))
    assert [lr_factor(recipe, step / 100, 0.5) for step in range(55, 100)] == whole[55:]
