"""Runs that were stopped anywhere and begun again, against one that was not."""

import os
import shutil
import sys
from copy import deepcopy

import pytest
import torch
from small_networks import QUICK, examples, images, nested_mlp, nested_norms, same_tensors
from torch.utils.data import DataLoader

import nestling as nl
from nestling.errors import RunError
from nestling.storage import files
from nestling.storage.files import read_tensors, write_tensors
from nestling.training import loop, open_run, train
from nestling.training.loop import Loop

RECIPE = QUICK.but(recalibration_batches=2)
NUM_STEPS = 6


def make_mlp():
    return nested_mlp(), (examples(), examples(seed=3))


def make_norms():
    return nested_norms(), (DataLoader(images(), 8, shuffle=True, drop_last=True), images(seed=3))


def make_channels_last():
    nested, data = make_norms()
    return nested.to(memory_format=torch.channels_last), data


MAKERS = {"mlp": make_mlp, "norms": make_norms, "channels_last": make_channels_last}
RECIPES = {"mlp": RECIPE, "norms": RECIPE.but(optimiser="sgd", lr=0.05, schedule="step"), "channels_last": RECIPE}


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
            assert [own.name for own in (place / str(at)).glob(".*")] == [".lock"]
    assert len(again) > 10
    return expected, again


def test_a_run_that_was_stopped_before_any_write(swept):
    expected, again = swept
    for given in again.values():
        check_same(given, expected, log=False)


def test_the_log_of_a_run_that_was_stopped_before_any_write(swept):
    expected, again = swept
    assert [at for at, given in again.items() if figures(given.log) != figures(expected.log)] == []


@pytest.mark.parametrize("name", ["validate", "_validate_and_keep", "_checkpoint"])
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
        (tensors | {"optimiser.x.y": torch.zeros(3)}, record),
        (tensors | {"optimiser.99.step": torch.zeros(())}, record),
        (tensors | {"optimiser.0.exp_avg": torch.zeros(3)}, record),
        (tensors | {"optimiser.0.exp_avg": tensors["optimiser.0.exp_avg"].double()}, record),
        ({own: tensor for own, tensor in tensors.items() if own != "optimiser.0.exp_avg"}, record),
        (tensors, {key: value for key, value in record.items() if key != "state"}),
        (tensors, record | {"state": {}}),
    ):
        (tmp_path / "checkpoint.previous.safetensors").unlink(missing_ok=True)
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
    (tmp_path / "checkpoint.previous.safetensors").unlink()
    write_tensors(path, tensors, record)
    with pytest.raises(RunError):
        run("mlp", tmp_path)


def damage(path):
    path.write_bytes(path.read_bytes()[:-5])


def test_the_checkpoint_before_a_damaged_one_is_used(monkeypatch, tmp_path, whole, capsys):
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", -1.0)
    interrupted(monkeypatch, "mlp", tmp_path, Loop, "_step", 5)
    damage(tmp_path / "checkpoint.safetensors")
    steps = []
    real = Loop._step
    monkeypatch.setattr(Loop, "_step", lambda self, batch: steps.append(self.state.step) or real(self, batch))
    nested, data = MAKERS["mlp"]()
    check_same(train(nested, data, RECIPES["mlp"], out=tmp_path), whole["mlp"])
    assert steps == [3, 4, 5]
    said = capsys.readouterr().err.splitlines()[0]
    assert "checkpoint.safetensors: is" in said
    assert said.endswith("Going on from the checkpoint before it.")


def test_two_damaged_checkpoints_are_refused(monkeypatch, tmp_path):
    interrupted(monkeypatch, "mlp", tmp_path, Loop, "_step", 5)
    for name in ("checkpoint.safetensors", "checkpoint.previous.safetensors"):
        damage(tmp_path / name)
    with pytest.raises(RunError, match=r"checkpoint\.safetensors"):
        run("mlp", tmp_path)


def test_the_one_before_is_enough(monkeypatch, tmp_path, whole):
    """As after a kill between the two moves of a checkpoint."""
    interrupted(monkeypatch, "mlp", tmp_path, Loop, "_step", 5)
    (tmp_path / "checkpoint.safetensors").rename(tmp_path / "checkpoint.previous.safetensors")
    check_same(run("mlp", tmp_path), whole["mlp"])
    assert not (tmp_path / "checkpoint.previous.safetensors").exists()


def test_files_of_another_run_are_refused(monkeypatch, tmp_path):
    """Each is whole and fits the network: only who wrote it differs."""
    for name, recipe in (("one", RECIPE), ("two", RECIPE.but(seed=1))):
        train(nested_mlp(), (examples(), examples(seed=3)), recipe, out=tmp_path / name, quiet=True)
    for file in ("model.safetensors", "calibration.json", "recipe.json"):
        place = tmp_path / f"mixed {file}"
        shutil.copytree(tmp_path / "one", place)
        shutil.copy(tmp_path / "two" / file, place)
        with pytest.raises(RunError, match=f"{file}|model.safetensors"):
            open_run(place)
    interrupted(monkeypatch, "mlp", tmp_path / "three", Loop, "_step", 5)
    tensors, record = read_tensors(tmp_path / "three" / "checkpoint.safetensors")
    for name in ("checkpoint.safetensors", "checkpoint.previous.safetensors"):
        write_tensors(tmp_path / "three" / name, tensors, record | {"run": "0" * 64})
    with pytest.raises(RunError, match="another run"):
        run("mlp", tmp_path / "three")


def test_an_optimisers_state_is_all_there(monkeypatch, tmp_path):
    """Momentum and Adam's moments, and no entry that a restart would begin anew; natural steps have no state."""
    for kind, entries in (("mlp", {"exp_avg", "exp_avg_sq", "step"}), ("norms", {"momentum_buffer"})):
        interrupted(monkeypatch, kind, tmp_path / kind, Loop, "_step", 5)
        tensors, _ = read_tensors(tmp_path / kind / "checkpoint.safetensors")
        names = [name.split(".") for name in tensors if name.startswith("optimiser.")]
        assert {name for _, _, name in names} == entries
        stepped = [name for name, _ in MAKERS[kind]()[0].named_parameters() if not name.endswith("log_sigma2")]
        assert {int(number) for _, number, _ in names} == set(range(len(stepped)))


def test_more_cuts_are_prepare_cuts_once(tmp_path):
    """``prepare_cuts`` adds statistics and calibrations for cuts that the recipe did not have, also in the folder."""
    from nestling.training.train import prepare_cuts

    nested = nl.nest(nl.models.build("mlp", hidden=[8], in_features=64), torch.randn(2, 64), num_blocks=8, num_always=1)
    done = train(nested, "digits", QUICK.but(epochs=1, batch_size=500), out=tmp_path, quiet=True)
    more = prepare_cuts(done, (0.25, 0.5), nl.data.load("digits"))
    assert [own.cut["layers.1"] for own in more.calibrations] == [4, 8, 2]
    assert prepare_cuts(more, (0.25, 0.5), nl.data.load("digits")) is more
    again = open_run(tmp_path)
    assert list(again.calibrations) == list(more.calibrations)
    assert same_tensors(again.nested.state_dict(), more.nested.state_dict())
