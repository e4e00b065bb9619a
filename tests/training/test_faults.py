"""Runs that are killed, that find no room, or whose numbers go wrong, as real processes where that matters."""

import hashlib
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from child_processes import CONTEXT, started
from filelock import FileLock
from small_networks import QUICK, examples, images, nested_mlp, nested_norms, same_tensors
from torch.utils.data import TensorDataset

import nestling as nl
from effort import PATIENCE, SOAK, tries
from nestling.errors import DivergenceError, RunError
from nestling.storage import files, lock
from nestling.storage.files import read_tensors
from nestling.training import Recipe, loop, open_run, train
from nestling.training.loop import Loop
from nestling.training.optimisers import AdamW
from nestling.training.stopping import Stopped

RECIPE = QUICK.but(epochs=8)
NUM_KILLS = tries(20, 6)


def run(place, *, often=False, dies_in_write=None):
    """A run with a checkpoint at every epoch, or at every step; it may end in the middle of a write."""
    if often:
        loop.CHECKPOINT_SECONDS = -1.0
    if dies_in_write is not None:
        files.write_whole = dying(files.write_whole, *dies_in_write)
    train(nested_mlp(), (examples(), examples(seed=3)), RECIPE, out=place, quiet=True)


def dying(write, number, share):
    """A write whose call of this number ends the process for good once a share of the content is in the file."""
    calls = []

    def call(path, content, **options):
        calls.append(path)
        if len(calls) == number:
            part = path.with_name(f".{path.name}.{os.getpid()}.00000000.part")
            part.write_bytes(content[: int(len(content) * share)])
            if share == 1 and options.get("old") is not None and path.exists():
                os.replace(path, options["old"])  # between the two moves
            os.kill(os.getpid(), signal.SIGKILL)
        write(path, content, **options)

    return call


def to_the_end(place, **options):
    process = started(run_with, place, options)
    process.join(PATIENCE)
    assert process.exitcode == 0


def run_with(place, options):
    run(place, **options)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An uninterrupted run, and how long it took."""
    place = tmp_path_factory.mktemp("whole")
    to_the_end(place / "warm")
    began = time.monotonic()
    to_the_end(place / "run", often=True)
    return place / "run", time.monotonic() - began


def check_same(place, expected):
    for name in ("model.safetensors", "calibration.json"):
        assert (place / name).read_bytes() == (expected / name).read_bytes()
    lines = [{**json.loads(text), "seconds": 0, "crc32": 0} for text in (place / "log.jsonl").read_text().splitlines()]
    known = (expected / "log.jsonl").read_text().splitlines()
    assert lines == [{**json.loads(text), "seconds": 0, "crc32": 0} for text in known]
    assert not list(place.glob(".*.part"))


def test_killed_at_random_moments(tmp_path, whole, capsys):
    """SIGKILL at any time, and then the same call again until it ends: the files are the same, byte for byte."""
    expected, seconds = whole
    chance = random.Random(0)
    steps = []
    for number in range(NUM_KILLS):
        place = tmp_path / str(number)
        process = started(run_with, place, {"often": True})
        process.join(chance.uniform(0, 0.9 * seconds))
        process.kill()
        process.join()
        steps.append(step_of(place))
        to_the_end(place, often=True)
        check_same(place, expected)
    with capsys.disabled():
        print(f"\n{NUM_KILLS} runs killed, of {RECIPE.epochs * 3} steps at these: {sorted(steps)}")
    assert len(set(steps)) > NUM_KILLS // 3  # the moments were not all before the beginning or after the end


def step_of(place):
    path = place / "checkpoint.safetensors"
    return read_tensors(path)[1]["state"]["step"] if path.exists() else -1


NUMBERS = (1, 2, 4, 13, 22, 35) if SOAK else (1, 4, 22)
WRITES = [(number, share) for number in NUMBERS for share in (0.5, 1)]


def test_killed_while_a_file_is_written(tmp_path, whole):
    """With half or all of a file written, and between the two moves of a checkpoint."""
    expected, _ = whole
    dead = 0
    for number, share in WRITES:
        place = tmp_path / f"{number} {share}"
        process = started(run_with, place, {"often": True, "dies_in_write": (number, share)})
        process.join(PATIENCE)
        dead += process.exitcode == -signal.SIGKILL
        to_the_end(place, often=True)
        check_same(place, expected)
    assert dead > len(WRITES) * 0.8


def test_killed_again_and_again(tmp_path, whole):
    expected, seconds = whole
    chance = random.Random(1)
    for _ in range(6):
        process = started(run_with, tmp_path / "run", {"often": True})
        process.join(chance.uniform(0, seconds / 2))
        process.kill()
        process.join()
    to_the_end(tmp_path / "run", often=True)
    check_same(tmp_path / "run", expected)


def test_the_command_killed_and_given_again(tmp_path):
    """The real command, in processes of its own that nothing was done to."""
    words = [sys.executable, "-m", "nestling", "train", "digits", "--num-blocks", "4", "--epochs", "4"]
    words += ["--samples", "2", "--cuts", "0.5", "1", "--out"]
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    torch.manual_seed(0)
    nested = nl.nest(nl.models.build("mlp", in_features=64, num_classes=10), torch.zeros(2, 1, 8, 8), num_blocks=4)
    recipe = Recipe(epochs=4, samples=2, cuts=(0.5, 1.0))
    undisturbed = started(digits_run, nested, recipe, tmp_path / "whole")
    with subprocess.Popen([*words, "run"], cwd=tmp_path, env=env, stderr=subprocess.PIPE, text=True) as process:
        for line in process.stderr:
            if line.startswith("epoch 2/4"):
                break
        process.kill()
    again = subprocess.run([*words, "run"], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=PATIENCE)
    assert again.returncode == 0, again.stderr
    assert "going on from epoch" in again.stderr
    undisturbed.join(PATIENCE)
    same, expected = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("run", "whole"))
    assert same == expected


def digits_run(nested, recipe, place):
    train(nested, "digits", recipe, out=place, quiet=True)


SMALL_DISK = """
import json, os, subprocess, sys
place, words = sys.argv[1], sys.argv[2:]
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", place], check=True)
done = subprocess.run(words, capture_output=True, text=True)
again = subprocess.run([sys.executable, "-c", "import sys; sys.path[:0] = sys.argv[2:]; import test_faults; "
                        "test_faults.print_state(sys.argv[1])", place, *os.environ["BESIDE"].split(os.pathsep)],
                       capture_output=True, text=True)
for found in (done.returncode, done.stderr, again.stdout + again.stderr):
    print(json.dumps(found))
"""
"""Mounts a small disk that only it and its children see, runs a command there, and then reads what was saved."""


def print_state(place):
    tensors, record = read_tensors(Path(place) / "run" / "checkpoint.safetensors")
    parts = [own.name for own in (Path(place) / "run").glob(".*.part")]
    print(json.dumps([record["state"]["step"], len(tensors), parts]))


def can_mount():
    done = subprocess.run(["unshare", "-rm", "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True)
    return done.returncode == 0


LARGE = ["train", "digits", "--epochs", "3", "--samples", "2", "--cuts", "1", "--model", "big_net:build", "--out"]
BIG_NET = """
import nestling as nl

def build(num_classes):
    return nl.models.build("mlp", hidden=[700, 480], in_features=64, num_classes=10)
"""


def limit_files():
    """No file of this process may be longer than 6 MB."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (6 * 2**20, 6 * 2**20))


def test_a_full_disk(tmp_path, capfd):
    """The first checkpoint and the best weights fit on 16 MB, a later checkpoint does not: one line, and it loads."""
    (tmp_path / "big_net.py").write_text(BIG_NET)
    (tmp_path / "disk").mkdir()
    words = [sys.executable, "-m", "nestling", *LARGE, str(tmp_path / "disk" / "run")]
    env = os.environ | {"OMP_NUM_THREADS": "1", "BESIDE": os.pathsep.join(map(str, Path(__file__).parents[:2]))}
    if shutil.which("unshare") and can_mount():
        inside = [sys.executable, "-c", SMALL_DISK, str(tmp_path / "disk"), *words]
        done = subprocess.run(["unshare", "-rm", *inside], cwd=tmp_path, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        code, err, state = (json.loads(line) for line in done.stdout.splitlines())
    else:
        done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, preexec_fn=limit_files)
        print_state(tmp_path / "disk")
        code, err, state = done.returncode, done.stderr, capfd.readouterr().out
    assert code == 2
    assert "Traceback" not in err
    (said,) = [line for line in err.splitlines() if line.startswith("nestling: ")]
    assert "can't be written (" in said
    step, num_tensors, parts = json.loads(state)
    assert step >= 0
    assert num_tensors > 0
    assert not parts


def test_a_folder_that_can_not_be_written_to(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(FileLock, "acquire", refuse)
    with pytest.raises(RunError, match=r"can't be written to \(Permission denied\)"):
        run(tmp_path / "run")


def hold(place, ready, end):
    with lock.FolderLock(place):
        ready.set()
        end.wait(PATIENCE)


def test_the_second_process_on_a_folder_is_refused(tmp_path):
    place = tmp_path / "run"
    run(place)
    before = {path.name: path.read_bytes() for path in place.iterdir()}
    ready, end = CONTEXT.Event(), CONTEXT.Event()
    process = started(hold, place, ready, end)
    try:
        assert ready.wait(PATIENCE)
        with pytest.raises(RunError, match="is in use by another process"):
            run(place)
        assert open_run(place).calibrations  # reading is allowed
        assert {path.name: path.read_bytes() for path in place.iterdir()} == before
        end.set()
        process.join(PATIENCE)
        run(place)
    finally:
        process.kill()


def test_a_killed_process_gives_the_folder_up(tmp_path):
    ready, end = CONTEXT.Event(), CONTEXT.Event()
    process = started(hold, tmp_path, ready, end)
    assert ready.wait(PATIENCE)
    process.kill()
    process.join()
    with lock.FolderLock(tmp_path):
        pass


def after(monkeypatch, number, act):
    """Do something in the middle of step ``number``."""
    real = Loop._step

    def step(self, batch):
        if self.state.step == number:
            act()
        return real(self, batch)

    monkeypatch.setattr(Loop, "_step", step)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("step", [0, 4, 5, 6])  # five is the last one of an epoch
def test_signals_save_first(tmp_path, monkeypatch, number, step):
    expected = train(nested_mlp(), (examples(), examples(seed=3)), RECIPE, quiet=True)
    before = [signal.getsignal(own) for own in (signal.SIGINT, signal.SIGTERM)]
    with monkeypatch.context() as patch:
        after(patch, step, lambda: os.kill(os.getpid(), number))
        with pytest.raises(Stopped, match="give the same command again") as caught:
            train(nested_mlp(), (examples(), examples(seed=3)), RECIPE, out=tmp_path, quiet=True)
    assert caught.value.signal == number
    assert isinstance(caught.value, KeyboardInterrupt)
    assert f"stopped at step {step + 1} of 24" in str(caught.value)
    assert read_tensors(tmp_path / "checkpoint.safetensors")[1]["state"]["step"] == step + 1
    assert [signal.getsignal(own) for own in (signal.SIGINT, signal.SIGTERM)] == before
    again = train(nested_mlp(), (examples(), examples(seed=3)), RECIPE, out=tmp_path, quiet=True)
    assert same_tensors(again.nested.state_dict(), expected.nested.state_dict())


def test_a_second_signal_ends_it_at_once(tmp_path, monkeypatch):
    def act():
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(5)
        pytest.fail("it went on")

    after(monkeypatch, 4, act)
    with pytest.raises(Stopped, match="at once"):
        train(nested_mlp(), (examples(), examples(seed=3)), RECIPE, out=tmp_path, quiet=True)


def test_without_a_folder_nothing_is_promised(monkeypatch):
    after(monkeypatch, 4, lambda: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(Stopped, match="Nothing of it is kept"):
        train(nested_mlp(), (examples(), examples(seed=3)), RECIPE, quiet=True)


def test_training_in_a_thread(tmp_path):
    """Where no signal handler can be set."""
    failed = []

    def work():
        try:
            run(tmp_path / "run")
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert not failed


HOT = Recipe(epochs=4, batch_size=8, samples=2, cuts=(0.5, 1.0), lr_warm_up=0.0, schedule="constant", draws=1)


def explosive(monkeypatch, *, above, at=7):
    """A loss that is infinite in one step whenever the learning rate is above a bound."""
    real = Loop._terms

    def terms(self, batch, share):
        found = real(self, batch, share)
        if self.state.step == at and self.optimiser.param_groups[0]["lr"] > above:
            return replace(found, loss=found.loss * float("inf"))
        return found

    monkeypatch.setattr(Loop, "_terms", terms)


@pytest.mark.parametrize("keep", ["folder", "memory"])
def test_a_step_back(tmp_path, monkeypatch, capsys, keep):
    """To the last checkpoint, with half the learning rates, as often as is needed and allowed."""
    explosive(monkeypatch, above=0.003)
    seen = []
    real = Loop._step
    monkeypatch.setattr(Loop, "_step", lambda self, batch: seen.append(self.state.step) or real(self, batch))
    data = examples(), examples(seed=3)
    done = train(nested_mlp(), data, HOT.but(lr=0.01, step_back=2), out=tmp_path if keep == "folder" else None)
    assert seen == [*range(8), 6, 7, 6, 7, *range(8, 12)]
    assert [line["lr"] for line in done.log] == pytest.approx([0.01, 0.01, 0.0025, 0.0025])
    said = [line for line in capsys.readouterr().err.splitlines() if "Back to step 6" in line]
    assert said[0].endswith("Back to step 6, with learning rates times 0.5.")
    assert said[1].endswith("Back to step 6, with learning rates times 0.25.")


def test_steps_back_are_counted(tmp_path, monkeypatch):
    explosive(monkeypatch, above=0.0)
    with pytest.raises(DivergenceError, match="step 8"):
        train(nested_mlp(), (examples(), examples(seed=3)), HOT.but(step_back=3), out=tmp_path, quiet=True)
    assert read_tensors(tmp_path / "checkpoint.safetensors")[1]["state"]["steps_back"] == 3


def test_a_step_back_in_the_first_epoch_and_a_kill_after_it(tmp_path, monkeypatch):
    """The beginning is a checkpoint too, and the lower rates outlive the process."""
    data, recipe = (examples(), examples(seed=3)), HOT.but(lr=0.01, step_back=3)
    explosive(monkeypatch, above=0.002, at=1)
    expected = train(nested_mlp(), data, recipe, out=tmp_path / "whole", quiet=True)
    assert [line["lr"] for line in expected.log] == pytest.approx([0.00125] * 4)
    with monkeypatch.context() as patch:
        after(patch, 7, lambda: os.kill(os.getpid(), signal.SIGTERM))
        with pytest.raises(Stopped):
            train(nested_mlp(), data, recipe, out=tmp_path / "run", quiet=True)
    again = train(nested_mlp(), data, recipe, out=tmp_path / "run", quiet=True)
    assert same_tensors(again.nested.state_dict(), expected.nested.state_dict())


@pytest.mark.parametrize("where", ["inputs", "validation"])
def test_numbers_that_are_none_in_the_data(tmp_path, where):
    """No lower learning rate helps, so that the run does not go back."""
    x, y = examples().tensors
    bad = TensorDataset(x.clone().index_fill_(0, torch.tensor([5]), float("nan")), y)
    data = (bad, examples(seed=3)) if where == "inputs" else (examples(), bad)
    place = "the inputs of the batch" if where == "inputs" else "the inputs of validation batch 0"
    with pytest.raises(DivergenceError, match=place) as caught:
        train(nested_mlp(), data, HOT.but(step_back=3), out=tmp_path, quiet=True)
    assert caught.value.in_data
    assert read_tensors(tmp_path / "checkpoint.safetensors")[1]["state"]["steps_back"] == 0


def test_weights_that_are_none_are_never_saved(tmp_path, monkeypatch):
    """They appear in the last step before a checkpoint, whose loss was still a number."""
    real, calls = AdamW.step, []

    def step(self, *args):
        found = real(self, *args)
        calls.append(None)
        if len(calls) == 3:
            self.param_groups[0]["params"][0].data.fill_(float("nan"))
        return found

    monkeypatch.setattr(AdamW, "step", step)
    with pytest.raises(DivergenceError, match="step 3: NaN or infinity in the weights layers"):
        train(nested_mlp(), (examples(), examples(seed=3)), HOT, out=tmp_path, quiet=True)
    assert read_tensors(tmp_path / "checkpoint.safetensors")[1]["state"]["step"] == 0


@pytest.mark.parametrize("make", [nested_mlp, nested_norms])
def test_the_same_recipe_and_seed_are_the_same_run(make):
    data = (examples(), examples(seed=3)) if make is nested_mlp else (images(), images(seed=3))
    runs = []
    for _ in range(2):
        torch.manual_seed(len(runs))  # of no account
        torch.rand(7 * len(runs))
        runs.append(train(make(), data, QUICK, quiet=True))
    assert same_tensors(runs[0].nested.state_dict(), runs[1].nested.state_dict())
    other = train(make(), data, QUICK.but(seed=1), quiet=True)
    assert not same_tensors(runs[0].nested.state_dict(), other.nested.state_dict())


def test_a_run_says_what_it_was_made_by(tmp_path):
    run(tmp_path)
    saved = files.read_json(tmp_path / "recipe.json")
    assert saved["recipe"]["seed"] == 0
    assert saved["data"]["fingerprint"] == [hash_of(examples()), hash_of(examples(seed=3))]
    assert saved["made_by"].keys() == {"nestling", "torch", "numpy", "python", "command", "threads", "processes"}
    assert saved["made_by"]["threads"] == torch.get_num_threads()
    assert saved["made_by"]["nestling"] == nl.__version__


def hash_of(data):
    text = hashlib.sha256()
    for tensor in data.tensors:
        text.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode() + tensor.numpy().tobytes())
    return text.hexdigest()


def test_other_data_in_loaders_is_another_run(tmp_path):
    run(tmp_path)
    with pytest.raises(RunError, match=r"its data\.fingerprint"):
        train(nested_mlp(), (examples(seed=5), examples(seed=3)), RECIPE, out=tmp_path, quiet=True)
