"""Runs of several processes, against one process with the same batches, and with a process that is killed."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest
import torch
from child_processes import free_port, together
from small_networks import QUICK, examples, images, nested_mlp, nested_norms, normal, same_tensors
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler
from warm import PLAIN

import nestling as nl
from effort import PATIENCE, SOAK
from nestling.errors import NonFiniteError, ProcessError, RunError
from nestling.processes import connected
from nestling.running.layers import VariationalLayer
from nestling.storage.files import read_tensors
from nestling.training import Recipe, open_run, train
from nestling.training.loop import Loop


class Residual(nn.Module):
    """Two residual layers, either of which a cut may drop, so that a step leaves parameters unused."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 6)
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(3))
        self.last = nn.Linear(6, 3)

    def forward(self, x):
        x = self.first(x)
        for layer in self.layers:
            x = x + layer(x)
        return self.last(x)


def residual():
    torch.manual_seed(0)
    return nl.nest(Residual().double(), normal(2, 4).double(), kinds=("layer",), num_always=1, where="all", **PLAIN)


def double(data):
    return TensorDataset(data.tensors[0].double(), data.tensors[1])


CASES = {
    "plain": lambda: nested_mlp(**PLAIN).double(),
    "learned order": lambda: nested_mlp(weights=None).double(),
    "dropped layers": residual,
}
RECIPE = QUICK.but(draws=2, explore=0.3, coupled=0.3, recalibration_batches=2)


def weights_after(case, objective="every_width", optimiser="adamw", batch_size=8):
    """Train one case; the weights, the log and the calibrations, as plain data."""
    nested = CASES[case]()
    recipe = RECIPE.but(objective=objective, optimiser=optimiser, batch_size=batch_size)
    run = train(nested, (double(examples()), double(examples(seed=3))), recipe, quiet=True)
    return as_data(run)


def as_data(run):
    state = {name: tensor.tolist() for name, tensor in run.nested.state_dict().items()}
    lines = [{key: value for key, value in line.items() if key != "seconds"} for line in run.log]
    return state, lines, [own.to_dict() for own in run.calibrations]


def close(first, second, tolerance=1e-9):
    """Whether two structures of numbers and names are equal up to rounding."""
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(close(first[key], second[key], tolerance) for key in first)
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(close(*pair, tolerance) for pair in zip(first, second, strict=True))
    if isinstance(first, float):
        return abs(first - second) <= tolerance * max(1, abs(first))
    return first == second


@pytest.mark.parametrize(
    ("case", "objective", "world"),
    [*((case, "every_width", 2) for case in CASES), ("learned order", "elbo", 2), ("dropped layers", "every_width", 3)],
    ids=str,
)
def test_ranks_are_one_with_the_whole_batch(case, objective, world):
    """Without noise in the weights the gradients are the same sums, whichever widths are drawn."""
    options = {"objective": objective, "batch_size": 4 * world}
    alone = weights_after(case, **options)
    ranks = together(partial(weights_after, case, **options), world=world)
    assert all(own == ranks[0] for own in ranks)
    for found, expected in zip(ranks[0], alone, strict=True):
        assert close(found, expected)


def gradients_of(rank, used):
    """The loss of a rank as a function of its layers, of which it uses the first few."""
    torch.manual_seed(0)
    layers = nn.ModuleList(nn.Linear(3, 2).double() for _ in range(3))
    x = normal(4, 3, seed=rank).double()
    return layers, lambda: sum((layer(x) ** 2).sum() for layer in layers[:used])


def averaged(used):
    """The gradients after two steps, in each of which a rank uses as many layers as ``used`` says."""
    with connected() as processes:
        layers, loss = gradients_of(processes.rank, used[processes.rank])
        with processes.averaging(layers) as call:
            for _ in range(2):
                layers.zero_grad()
                call(loss).backward()
            return [None if p.grad is None else p.grad.tolist() for p in layers.parameters()]


@pytest.mark.parametrize("used", [(1, 2), (3, 3), (2, 1, 1)])
def test_gradients_are_averaged_over_ranks_that_use_other_layers(used):
    found = together(averaged, used, world=len(used))
    expected = [[torch.zeros(2, 3).double(), torch.zeros(2).double()] for _ in range(3)]
    for rank, number in enumerate(used):
        layers, loss = gradients_of(rank, number)
        loss().backward()
        for layer, sums in zip(layers[:number], expected, strict=False):
            sums[0] += layer.weight.grad / len(used)
            sums[1] += layer.bias.grad / len(used)
    flat = [own.tolist() if layer < max(used) else None for layer, sums in enumerate(expected) for own in sums]
    assert all(close(own, flat, 1e-12) for own in found)
    assert all(own == found[0] for own in found)


def threads_after_an_error(where):
    """The threads of each rank once an error of the network's has ended its run, while the traceback is still there."""
    nested, steps = nested_mlp(), []

    def fail(*_):
        steps.append(1)
        if len(steps) > 4:
            raise LookupError("the network's own")

    if where == "forward":
        nested.module.register_forward_hook(fail)
    else:
        next(nested.parameters()).register_post_accumulate_grad_hook(fail)
    kept = None
    try:
        train(nested, (examples(), examples(seed=3)), QUICK, quiet=True)
    except LookupError as error:
        kept = error
    return type(kept).__name__, [path.read_text() for path in Path("/proc/self/task").glob("*/comm")]


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_an_error_leaves_no_thread_of_the_group(where):
    """One that outlives the group may hang or abort the process when the interpreter ends."""
    for name, threads in together(threads_after_an_error, where):
        assert name == "LookupError"
        assert not any("gloo" in thread for thread in threads)


def stepped_back():
    """One rank meets numbers that are none in a step of the second epoch, and both go back to the first's end."""
    nested, calls = nested_mlp(**PLAIN), []
    real = Loop._terms

    def terms(self, *args):
        calls.append(self.state.step)
        if self.processes.rank == 1 and len(calls) == 5:
            raise NonFiniteError("the loss", "nan", "a number", "Look at the data.")
        return real(self, *args)

    Loop._terms = terms
    run = train(nested, (examples(), examples(seed=3)), QUICK.but(step_back=1), quiet=True)
    return calls, {name: tensor.tolist() for name, tensor in run.nested.state_dict().items()}


def test_ranks_step_back_together():
    (calls, state), other = together(stepped_back)
    assert calls == [0, 1, 2, 3, 4, 3, 4, 5]
    assert other == (calls, state)


def test_without_averaging_the_check_above_would_fail():
    """The tolerance tells a run with half the batch from the real one."""
    assert not close(weights_after("plain", batch_size=4)[0], weights_after("plain")[0], tolerance=1e-4)


def noisy(objective):
    """What each rank draws in the first steps: its widths, its noise and its data."""
    seen = []
    nested = nested_mlp()
    layer = next(part for part in nested.modules() if isinstance(part, VariationalLayer))
    handle = layer.register_forward_hook(lambda _, args, output: seen.append((args[0].tolist(), output.tolist())))
    cuts = []
    real = nested.shared_at
    nested.shared_at = lambda cut: cuts.append(cut.as_dict()) or real(cut)
    recipe = QUICK.but(epochs=1, objective=objective, draws=2, coupled=0.0, cuts=(1 / 3, 1.0))
    run = train(nested, (examples(), examples(seed=3)), recipe, quiet=True)
    handle.remove()
    state = {name: tensor.tolist() for name, tensor in run.nested.state_dict().items()}
    return cuts, seen[:4], state


@pytest.mark.parametrize("objective", ["every_width", "elbo"])
def test_ranks_draw_the_same_widths_and_other_noise_and_data(objective):
    (cuts, seen, state), (other_cuts, other_seen, other_state) = together(noisy, objective)
    assert cuts == other_cuts
    assert len({tuple(sorted(cut.items())) for cut in cuts}) > 2
    assert all(mine[0] != theirs[0] for mine, theirs in zip(seen, other_seen, strict=True))
    assert state == other_state


def same_inputs():
    """The noise of each rank on inputs that do not differ."""
    x = torch.ones(24, 4)
    data = TensorDataset(x, torch.zeros(24, dtype=torch.long))
    seen = []
    nested = nested_mlp()
    layer = next(part for part in nested.modules() if isinstance(part, VariationalLayer))
    layer.register_forward_hook(lambda _, __, output: seen.append(output.tolist()))
    train(nested, (data, data), QUICK.but(epochs=1), quiet=True)
    return seen[:2]


def test_the_noise_of_ranks_differs():
    first, second = together(same_inputs)
    assert first != second


def norms_run():
    return as_data(train(nested_norms(**PLAIN), (images(), images(seed=3)), RECIPE, quiet=True))


def test_batch_norms_are_not_synchronised():
    """Each rank normalises by its own rows, so that two ranks differ from one; both end with the same weights."""
    first, second = together(norms_run)
    assert first == second
    assert not close(first[0], norms_run()[0], tolerance=1e-4)


def scored(samples):
    """Recalibrate, calibrate and evaluate, shared among whatever processes there are."""
    with connected() as processes:
        spread = processes.count > 1
        nested = nested_norms().double().eval()
        nl.recalibrate(nested, batches(), 0.5, spread=spread)
        calibration = nl.calibrate(nested, batches(), cut=0.5, samples=samples, coverage=0.5, spread=spread)
        scores = nl.evaluate(
            nested, batches(), cut=0.5, samples=samples, ood=batches(seed=9), calibration=calibration, spread=spread
        )
        statistics = {name: own.tolist() for known in nested.statistics.values() for name, own in known.items()}
    return calibration.to_dict(), scores.to_dict(), statistics


def batches(seed=2):
    """Five batches of several sizes, so that two ranks do not have the same share."""
    x, y = double(images(22, seed=seed)).tensors
    return list(zip(x.split([5, 5, 5, 5, 2]), y.split([5, 5, 5, 5, 2]), strict=True))


@pytest.mark.parametrize(("samples", "world"), [(0, 2), (3, 3)])
def test_an_evaluation_shared_is_the_same(samples, world):
    alone = scored(samples)
    ranks = together(scored, samples, world=world)
    for found in ranks:
        assert close(json.loads(json.dumps(found)), json.loads(json.dumps(alone)), tolerance=1e-6)


def one_batch():
    """Fewer batches than processes."""
    with connected():
        return nl.evaluate(nested_mlp().eval(), [tuple(examples().tensors)], cut=0.5, spread=True).to_dict()


def test_an_evaluation_of_fewer_batches_than_ranks():
    first, second = together(one_batch)
    assert first == second
    assert close(first, nl.evaluate(nested_mlp().eval(), [tuple(examples().tensors)], cut=0.5).to_dict(), 1e-6)


def sampled():
    """A loader that gives each rank its own examples, as users of DistributedDataParallel have it."""
    with connected() as processes:
        data = double(examples())
        sampler = DistributedSampler(data, processes.count, processes.rank, seed=5)
        loader = DataLoader(data, 4, sampler=sampler)
        return as_data(train(CASES["plain"](), (loader, double(examples(seed=3))), RECIPE, quiet=True))


def test_a_loader_with_a_distributed_sampler_is_left_as_it_is():
    first, second = together(sampled)
    assert first == second
    assert len(first[1]) == 2


def odd():
    try:
        train(nested_mlp(), (examples(), examples()), QUICK.but(batch_size=9), quiet=True)
    except Exception as error:
        return type(error).__name__, str(error)


def test_a_batch_that_can_not_be_shared():
    first, second = together(odd)
    assert first[0] == "RangeError"
    assert "multiple of the number of processes, 2" in first[1]
    assert second[0] == "ProcessError"


def folder_run(place, seed):
    try:
        return as_data(train(nested_mlp(), (examples(), examples(seed=3)), QUICK.but(seed=seed), out=place, quiet=True))
    except (RunError, ProcessError) as error:
        return type(error).__name__, str(error)


def test_a_folder_is_read_by_the_first_and_known_to_all(tmp_path):
    done = together(folder_run, tmp_path, 0)
    assert done[0] == done[1]
    again = together(folder_run, tmp_path, 0)  # complete: read back
    assert again[0] == again[1] == done[0]
    first, second = together(folder_run, tmp_path, 1)
    assert first[0] == "RunError"
    assert "another run" in first[1]
    assert second[0] == "ProcessError"
    assert json.loads((tmp_path / "recipe.json").read_text())["made_by"]["processes"] == 2


def one_diverges(place):
    """Only one of the ranks has a number in its data that is none."""
    x, y = examples().tensors
    x = x.clone()
    x[7] = float("nan")
    try:
        train(nested_mlp(), (TensorDataset(x, y), examples(seed=3)), QUICK.but(step_back=2), out=place, quiet=True)
    except Exception as error:
        return type(error).__name__, str(error)


def test_data_gone_wrong_in_one_rank_stops_both(tmp_path):
    first, second = together(one_diverges, tmp_path)
    assert first[0] == "DivergenceError"
    assert "the inputs of the batch" in first[1]
    assert second == ("ProcessError", first[1])


@contextmanager
def torchrun(tmp_path, *options, slow=""):
    """The real command in the background: torchrun with two processes, neither of which outlives the block."""
    code = tmp_path / "slow.py"
    code.write_text(SLOW)
    words = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", *options]
    words += ["--master-addr", "127.0.0.1", "--master-port", str(free_port()), str(code)]
    words += ["train", "digits", "--num-blocks", "4", "--epochs", "6", "--batch-size", "128", "--samples", "2"]
    words += ["--cuts", "0.5", "1", "--out", str(tmp_path / "run")]
    env = os.environ | {"OMP_NUM_THREADS": "1", "SLOW": slow, "PIDS": str(tmp_path / "pids")}
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env, cwd=tmp_path)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
            for own in (tmp_path / "pids").glob("*"):
                with suppress(ProcessLookupError):
                    os.kill(int(own.name.split()[1]), signal.SIGKILL)


SLOW = """
import atexit, os, time
from pathlib import Path
from nestling import cli
from nestling.training.loop import Loop

real = Loop._step
folder = Path(os.environ["PIDS"])
folder.mkdir(exist_ok=True)
own = folder / f"{os.environ['RANK']} {os.getpid()}"
own.write_text("")

def threads():
    return " ".join(path.read_text() for path in Path("/proc/self/task").glob("*/comm"))

def ended():
    until = time.monotonic() + 5  # a thread that was told to end may still be on its way
    while "gloo" in threads() and time.monotonic() < until:
        time.sleep(0.01)
    own.write_text(threads())

atexit.register(ended)

def step(self, batch):
    if os.environ["SLOW"]:
        time.sleep(float(os.environ["SLOW"]))
    return real(self, batch)

Loop._step = step
cli.main()
"""


def process_record(tmp_path, rank):
    """The file of the newest process of that rank: named after its pid, and with its threads once it has ended."""
    return max((tmp_path / "pids").glob(f"{rank} *"), key=lambda path: path.stat().st_mtime)


def pid_of(tmp_path, rank):
    return int(process_record(tmp_path, rank).name.split()[1])


def wait_for(condition, process):
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "it never happened"
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.05)


def log_lines(place):
    path = place / "log.jsonl"
    return path.read_text().count("\n") if path.exists() else 0


def network_of(place):
    tensors, _ = read_tensors(place / "model.safetensors")
    return tensors


def reference(place):
    """The same run without the command line, which nobody disturbs."""
    torch.manual_seed(0)
    nested = nl.nest(nl.models.build("mlp", in_features=64, num_classes=10), torch.zeros(2, 1, 8, 8), num_blocks=4)
    recipe = Recipe(epochs=6, batch_size=128, samples=2, cuts=(0.5, 1.0))
    train(nested, "digits", recipe, out=place, quiet=True)


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    place = tmp_path_factory.mktemp("whole")
    together(reference, place)
    return network_of(place)


@pytest.mark.parametrize("killed", [0, 1] if SOAK else [0])
def test_killed_processes_are_started_again_and_the_run_goes_on(tmp_path, expected, killed):
    """torchrun with two ranks, of which one is killed; told to stop, it saves first, and the same command goes on."""
    with torchrun(tmp_path, "--max-restarts", "1", slow="0.03") as process:
        wait_for(lambda: log_lines(tmp_path / "run") >= 2, process)  # the first epoch is saved
        os.kill(pid_of(tmp_path, killed), signal.SIGKILL)
        wait_for(lambda: log_lines(tmp_path / "run") >= 4, process)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode != 0
    assert err.count("going on from epoch") == 1
    said = re.findall(r"^nestling.*$", err, re.M)[-1]
    assert said.endswith("give the same command again to go on.")
    step = int(re.search(r"stopped at step (\d+)", said).group(1))
    _, record = read_tensors(tmp_path / "run" / "checkpoint.safetensors")
    assert record["state"]["step"] == step
    with torchrun(tmp_path) as again:
        out, err = again.communicate(timeout=PATIENCE)
    assert again.returncode == 0, err
    assert re.search(rf"^going on from epoch \d, step {step}$", err, re.M)
    assert same_tensors(network_of(tmp_path / "run"), expected)
    assert out.count("is complete") == 1
    for rank in (0, 1):  # a thread of the group that outlives it may abort the process when the interpreter ends
        assert "gloo" not in process_record(tmp_path, rank).read_text()
    assert "arning" not in err
    assert "Traceback" not in err
    run = open_run(tmp_path / "run")
    assert [line["epoch"] for line in run.log] == [1, 2, 3, 4, 5, 6]
    assert run.log[-1]["validation"]["1.0"]["accuracy"] > 0.7


def test_a_run_goes_on_with_another_number_of_processes(tmp_path):
    """Data, widths and steps do not depend on how many share them, so that one process can end what two began."""
    together(part_of_a_run, tmp_path)
    run = train(nested_mlp(**PLAIN), (examples(), examples(seed=3)), Recipe(**EPOCHS), out=tmp_path, quiet=True)
    expected = train(nested_mlp(**PLAIN), (examples(), examples(seed=3)), Recipe(**EPOCHS), quiet=True)
    for name, tensor in expected.nested.state_dict().items():
        assert torch.allclose(run.nested.state_dict()[name], tensor, atol=1e-4)


EPOCHS = {"epochs": 3, "batch_size": 8, "samples": 2, "cuts": (0.5, 1.0), "lr_warm_up": 0.0}


def part_of_a_run(place):
    """Two epochs of three, ended by an error in the third."""
    real = Loop._step

    def step(self, batch):
        if self.state.epoch == 2:
            raise ProcessError("it ends here")
        return real(self, batch)

    Loop._step = step
    try:
        train(nested_mlp(**PLAIN), (examples(), examples(seed=3)), Recipe(**EPOCHS), out=place, quiet=True)
    except ProcessError as error:
        return str(error)
