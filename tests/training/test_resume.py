"""Runs that were stopped anywhere and begun again, against one that was not."""

import os
import sys
from copy import deepcopy

import pytest
import torch
from small_networks import QUICK, examples, images, nested_mlp, nested_norms, same_tensors
from torch.utils.data import DataLoader

import nestling as nl
from nestling.errors import RunError
from nestling.training import files, loop, open_run, train
from nestling.training.files import read_tensors, write_tensors
from nestling.training.loop import Loop

RECIPE = QUICK.but(recalibration_batches=2)
NUM_STEPS = 6


def make_mlp():
    return nested_mlp(), (examples(), examples(seed=3))


def make_norms():
    return nested_norms(), (DataLoader(images(), 8, shuffle=True, drop_last=True), images(seed=3))


MAKERS = {"mlp": make_mlp, "norms": make_norms}
RECIPES = {"mlp": RECIPE, "norms": RECIPE.but(optimiser="sgd", lr=0.05, schedule="step")}


def run(kind, place):
    torch.manual_seed(99)  # what the caller did before is of no account
    nested, data = MAKERS[kind]()
    return train(nested, data, RECIPES[kind], out=place, quiet=True)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return {kind: run(kind, tmp_path_factory.mktemp(kind) / "run") for kind in MAKERS}


def figures(log):
    return [{key: value for key, value in line.items() if key != "seconds"} for line in log]


def check_same(given, expected, *, log=True):
    assert same_tensors(given.nested.state_dict(), expected.nested.state_dict())
    assert given.nested.statistics.keys() == expected.nested.statistics.keys()
    for cut, known in expected.nested.statistics.items():
        assert same_tensors(given.nested.statistics[cut], known)
    assert list(given.calibrations) == list(expected.calibrations)
    if log:
        assert figures(given.log) == figures(expected.log)


def interrupted(monkeypatch, kind, place, owner, name, at):
    """Run until the call number ``at`` of a function, which is interrupted instead."""
    real, calls = getattr(owner, name), []

    def call(*args, **kwargs):
        calls.append(None)
        if len(calls) == at:
            raise KeyboardInterrupt
        return real(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, call)
        with pytest.raises(KeyboardInterrupt):
            run(kind, place)


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("step", [1, 4, NUM_STEPS])
def test_a_run_that_was_stopped_at_a_step(monkeypatch, tmp_path, whole, kind, step):
    """Without a checkpoint inside an epoch: it goes on from the beginning of the epoch."""
    interrupted(monkeypatch, kind, tmp_path, Loop, "_step", step)
    steps = []
    real = Loop._step
    monkeypatch.setattr(Loop, "_step", lambda self, batch: steps.append(self.state.step) or real(self, batch))
    check_same(run(kind, tmp_path), whole[kind])
    assert steps == list(range((step - 1) // 3 * 3, NUM_STEPS))


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("step", [2, 4, NUM_STEPS])
def test_a_run_that_was_stopped_inside_an_epoch(monkeypatch, tmp_path, whole, kind, step):
    """With a checkpoint after each step: it goes on from there."""
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", -1.0)
    interrupted(monkeypatch, kind, tmp_path, Loop, "_step", step)
    steps = []
    real = Loop._step
    monkeypatch.setattr(Loop, "_step", lambda self, batch: steps.append(self.state.step) or real(self, batch))
    check_same(run(kind, tmp_path), whole[kind])
    assert steps == list(range(step - 1, NUM_STEPS))


def test_a_run_that_was_stopped_again_and_again(monkeypatch, tmp_path, whole):
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", -1.0)
    for _ in range(NUM_STEPS - 1):
        interrupted(monkeypatch, "mlp", tmp_path, Loop, "_step", 2)
    check_same(run("mlp", tmp_path), whole["mlp"])


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """A short run, and for each of its writes one that ended just before it and was begun again."""
    monkeypatch, place = pytest.MonkeyPatch(), tmp_path_factory.mktemp("swept")
    real, calls = os.replace, []
    with monkeypatch.context() as patch:
        patch.setattr(files.os, "replace", lambda *args: calls.append(args) or real(*args))
        expected = run("mlp", place / "whole")
        patch.setattr(files.os, "replace", real)
        again = {}
        for at in range(1, len(calls) + 1):
            interrupted(monkeypatch, "mlp", place / str(at), files.os, "replace", at)
            again[at] = run("mlp", place / str(at))
            assert not list((place / str(at)).glob(".*"))
    assert len(again) > 10
    return expected, again


def test_a_run_that_was_stopped_before_any_write(swept):
    expected, again = swept
    for given in again.values():
        check_same(given, expected, log=False)


def test_the_log_of_a_run_that_was_stopped_before_any_write(swept):
    expected, again = swept
    assert [at for at, given in again.items() if figures(given.log) != figures(expected.log)] == []


@pytest.mark.parametrize("name", ["validate", "_validated", "_checkpoint"])
def test_a_run_that_was_stopped_after_its_steps(monkeypatch, tmp_path, whole, name):
    interrupted(monkeypatch, "norms", tmp_path, Loop, name, 2)
    check_same(run("norms", tmp_path), whole["norms"])


def test_a_run_that_was_stopped_while_it_was_calibrated(monkeypatch, tmp_path, whole):
    module = sys.modules["nestling.training.train"]  # not the function of that name
    interrupted(monkeypatch, "mlp", tmp_path, module, "calibrate", 1)
    monkeypatch.setattr(Loop, "_step", lambda *_: pytest.fail("it trained again"))
    check_same(run("mlp", tmp_path), whole["mlp"])


def test_what_a_stopped_run_holds_can_be_read(monkeypatch, tmp_path):
    interrupted(monkeypatch, "mlp", tmp_path, Loop, "_step", 5)
    half = open_run(tmp_path)
    assert [line["epoch"] for line in half.log] == [1]
    assert not half.calibrations


def test_a_log_that_was_cut_off_is_mended(monkeypatch, tmp_path, whole):
    interrupted(monkeypatch, "mlp", tmp_path, Loop, "_step", 5)
    text = (tmp_path / "log.jsonl").read_text()
    (tmp_path / "log.jsonl").write_text(text + '{"epoch": 2, "st')
    check_same(run("mlp", tmp_path), whole["mlp"])
    (tmp_path / "log.jsonl").write_text(text)


def test_a_checkpoint_of_another_network_is_refused(monkeypatch, tmp_path):
    interrupted(monkeypatch, "mlp", tmp_path, Loop, "_step", 5)
    path = tmp_path / "checkpoint.safetensors"
    tensors, record = read_tensors(path)
    name = next(own for own in tensors if own.startswith("network.module"))
    for changed in (
        ({own: tensor for own, tensor in tensors.items() if own != name}, record),
        (tensors | {name: torch.zeros(3)}, record),
        ({own: tensor for own, tensor in tensors.items() if own != "random"}, record),
        (tensors | {"random": torch.zeros(3, dtype=torch.uint8)}, record),
        (tensors | {"optimiser.x.y": torch.zeros(3)}, record),
        (tensors, {key: value for key, value in record.items() if key != "state"}),
        (tensors, record | {"state": {}}),
    ):
        write_tensors(path, *changed)
        with pytest.raises(RunError, match=r"checkpoint\.safetensors"):
            run("mlp", tmp_path)


@pytest.mark.parametrize("change", ["no cuts", "an unknown cut", "state of texts", "state beyond the end"])
def test_a_checkpoint_whose_record_is_odd_is_refused(monkeypatch, tmp_path, change):
    interrupted(monkeypatch, "mlp", tmp_path, Loop, "_step", 5)
    path = tmp_path / "checkpoint.safetensors"
    tensors, record = read_tensors(path)
    record = deepcopy(record)
    if change == "no cuts":
        del record["cuts"]
    elif change == "an unknown cut":
        record["cuts"] = [3]
    elif change == "state of texts":
        record["state"] = dict.fromkeys(record["state"], "x")
    else:
        record["state"]["batch"] = 10**6
    write_tensors(path, tensors, record)
    with pytest.raises(RunError):
        run("mlp", tmp_path)


def test_a_damaged_checkpoint_is_refused_not_passed_over(monkeypatch, tmp_path):
    interrupted(monkeypatch, "mlp", tmp_path, Loop, "_step", 5)
    path = tmp_path / "checkpoint.safetensors"
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(RunError, match=r"checkpoint\.safetensors"):
        run("mlp", tmp_path)


def test_an_optimisers_state_is_all_there(monkeypatch, tmp_path):
    """Momentum and Adam's moments, and no entry that a restart would begin anew."""
    for kind, entries in (("mlp", {"exp_avg", "exp_avg_sq", "step"}), ("norms", {"momentum_buffer"})):
        interrupted(monkeypatch, kind, tmp_path / kind, Loop, "_step", 5)
        tensors, _ = read_tensors(tmp_path / kind / "checkpoint.safetensors")
        names = [name.split(".") for name in tensors if name.startswith("optimiser.")]
        assert {name for _, _, name in names} == entries
        assert {int(number) for _, number, _ in names} == set(range(len(list(MAKERS[kind]()[0].parameters()))))


def test_more_cuts_are_prepared_once(tmp_path):
    """``prepared`` adds statistics and calibrations for cuts that the recipe did not have, also in the folder."""
    from nestling.training.train import prepared

    nested = nl.nest(nl.models.build("mlp", hidden=[8], in_features=64), torch.randn(2, 64), num_blocks=8, num_always=1)
    done = train(nested, "digits", QUICK.but(epochs=1, batch_size=500), out=tmp_path, quiet=True)
    more = prepared(done, (0.25, 0.5), nl.data.load("digits"))
    assert [own.cut["layers.1"] for own in more.calibrations] == [4, 8, 2]
    assert prepared(more, (0.25, 0.5), nl.data.load("digits")) is more
    again = open_run(tmp_path)
    assert list(again.calibrations) == list(more.calibrations)
    assert same_tensors(again.nested.state_dict(), more.nested.state_dict())
