"""The command line as a user meets it: what is printed where, exit codes, and one line for every mistake."""

import inspect
import os
import signal
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from effort import PATIENCE
from nestling import cli, commands, models, version
from nestling.errors import NestlingError
from nestling.network import Bits, Nesting
from nestling.training import Recipe

COMMANDS = ("demo", "train", "evaluate", "predict", "report", "data")
SMALL = ["--epochs", "1", "--num-blocks", "4", "--cuts", "0.5", "1", "--samples", "2"]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with data, an image of its size, a network of one's own, and a run."""
    folder = tmp_path_factory.mktemp("cli")
    noise = np.random.default_rng(0)
    images = noise.integers(0, 256, (120, 4, 4), dtype=np.uint8)
    np.savez(folder / "mine.npz", x=images, y=np.arange(120) % 3)
    Image.fromarray(images[0]).save(folder / "one.png")
    (folder / "cli_nets.py").write_text(
        "import os, time, torch\n"
        "from torch import nn\n"
        "class Small(nn.Sequential):\n"
        "    def forward(self, x):\n"
        "        time.sleep(float(os.environ.get('SLOWNESS', 0)) if torch.is_grad_enabled() else 0)\n"
        "        return super().forward(x)\n"
        "def small(in_features, num_classes):\n"
        "    layers = nn.Flatten(), nn.Linear(in_features, 8), nn.ReLU()\n"
        "    return Small(*layers, nn.Linear(8, num_classes))\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", sys.path[:])
        patch.chdir(folder)
        words = ["train", "mine.npz", "--model", "cli_nets:small", "--out", "run", *SMALL]
        patch.setattr(sys, "argv", ["nestling", *words])
        cli.main()
    return folder


@pytest.fixture
def nestling(place, monkeypatch, capsys):
    """Runs a command in that folder, and gives its exit code, output and errors."""
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.setattr(import_module("nestling.running.cost"), "MEASURED_SECONDS", 0.0)
    monkeypatch.chdir(place)

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["nestling", *map(str, words)])
        capsys.readouterr()
        try:
            cli.main()
            code = 0
        except SystemExit as stopped:
            code = stopped.code
        return code, *capsys.readouterr()

    return call


def one_line(answer):
    """The line that a refused command prints, and nothing else."""
    code, _, err = answer
    assert code == 2
    assert err.startswith("nestling: ")
    assert err.count("\n") == 1
    return err


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example(nestling, command):
    code, out, err = nestling(command, "--help")
    assert (code, err) == (0, "")
    assert "Example: " in out
    assert f"nestling {command}" in out


def test_help_lists_the_commands(nestling):
    code, out, _ = nestling("--help")
    assert code == 0
    assert all(f"• {command} " in out for command in COMMANDS)


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["tune"],
        ["train"],
        ["train", "digits"],
        ["train", "digits", "--out", "x", "--epochs", "many"],
        ["train", "digits", "--out", "x", "--order", "random"],
        ["train", "digits", "--out", "x", "--layers", "3"],
        ["evaluate"],
        ["evaluate", "run", "--cuts", "half"],
        ["predict", "run"],
        ["data", "digits"],
    ],
    ids=" ".join,
)
def test_what_can_not_be_parsed_exits_with_2(nestling, place, words):
    code, out, err = nestling(*words)
    assert code == 2
    assert out == ""
    assert err
    assert "Traceback" not in err
    assert not (place / "x").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("train digit --out x", "Did you mean 'digits'"),
        ("train nowhere.npz --out x", "nowhere.npz does not exist"),
        ("train cli_nets.py --out x", "none of these: an .npz file, a folder of images"),
        ("train mine.npz --out x --model mpl", "Did you mean mlp"),
        ("train mine.npz --out x --model nowhere:net", "can't be imported"),
        ("train mine.npz --out x --model cli_nets:large", "a function that cli_nets has"),
        ("train mine.npz --out x --model vgg11", "does not run on the example"),
        ("train mine.npz --out x --epochs 0", "epochs: got 0"),
        ("train mine.npz --out x --lr nan", "lr: got nan"),
        ("train mine.npz --out x --cuts 2", "cuts: got 2.0"),
        ("train mine.npz --out x --seed -1", "seed: got -1"),
        ("train mine.npz --out x --num-blocks 0", "num_blocks: got 0"),
        ("train mine.npz --out x --exclude nothing", "exclude: got 'nothing'"),
        ("train mine.npz --out x --hold-out 7", "hold_out: got 7"),
        ("train mine.npz --out x --pretrained nowhere.safetensors", "nowhere.safetensors"),
        ("train mine.npz --out one.png", "one.png: can't be made"),
        ("train mine.npz --out run --model cli_nets:small", "holds another run"),
        ("evaluate nowhere", "nowhere/recipe.json: is not there"),
        ("evaluate one.png", "one.png/recipe.json: can't be read"),
        ("evaluate run", "cli_nets:small"),
        ("evaluate run --trust --cuts 0", "cut: got 0.0"),
        ("evaluate run --trust --samples -1", "samples: got -1"),
        ("evaluate run --trust --ood nowhere", "no data set 'nowhere'"),
        ("predict run one.png", "cli_nets:small"),
        ("predict nowhere one.png", "nowhere/recipe.json: is not there"),
        ("predict run nowhere.png --trust", "nowhere.png does not exist"),
        ("predict run cli_nets.py --trust", "cli_nets.py is not an image"),
        ("predict run one.png --trust --coverage 0.5", "coverage: got 0.5"),
        ("predict run one.png --trust --cut 1.5", "cut: got 1.5"),
        ("report", "report: got no folder"),
        ("report nowhere", "nowhere/recipe.json: is not there"),
        ("report run", "cli_nets:small"),
        ("report run --trust --limit 0", "limit: got 0"),
        ("report run --trust --samples -1", "samples: got -1"),
        ("report run --trust --ood nowhere", "no data set 'nowhere'"),
        ("report run --trust --out nowhere/a.html", "nowhere/a.html: can't be written"),
        ("predict run one.png --trust --out nowhere/a.csv", "nowhere/a.csv: can't be written"),
    ],
)
def test_every_mistake_is_one_line(nestling, place, words, said):
    assert said in one_line(nestling(*words.split()))
    assert not (place / "x").exists()


def test_an_error_of_several_lines_is_printed_as_one(nestling, monkeypatch):
    def data():
        raise NestlingError("first\n  second\n\nthird")

    monkeypatch.setattr(commands, "data", data)
    assert one_line(nestling("data")) == "nestling: first second third\n"


def test_an_error_of_the_library_itself_is_not_hidden(nestling, monkeypatch):
    monkeypatch.setattr(commands, "data", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        nestling("data")


def test_stopped_by_the_user(nestling, monkeypatch):
    def data():
        raise KeyboardInterrupt

    monkeypatch.setattr(commands, "data", data)
    code, out, err = nestling("data")
    assert (code, out) == (130, "")
    assert err.startswith("nestling: stopped")
    assert err.count("\n") == 1


def test_train_evaluate_predict(nestling, place, tmp_path):
    out = tmp_path / "new"
    code, printed, progress = nestling("train", "mine.npz", "--out", out, *SMALL)
    assert code == 0
    assert printed.splitlines()[-1] == f"{out} is complete. Next: nestling evaluate {out}"
    assert progress.startswith("epoch 1/1  loss ")
    assert "\r" not in progress

    code, printed, err = nestling("evaluate", out, "--cuts", "0.25", "1", "--samples", "0")
    assert code == 0
    assert [line.partition(" ")[2] for line in err.splitlines()] == ["scored (1 of 2)", "scored (2 of 2)"]
    assert [line.split()[0] for line in printed.split("\n\n")[0].splitlines()[2:]] == ["0.25", "1"]
    assert (out / "scores.json").exists()

    code, printed, err = nestling("predict", out, "one.png", "--cut", "0.5", "--out", tmp_path / "answers.csv")
    assert (code, err) == (0, "")
    assert printed.splitlines()[2].startswith("one.png ")
    assert (tmp_path / "answers.csv").read_text().count("\n") == 2


def test_predictions_are_the_same_each_time(nestling):
    first, second = (nestling("predict", "run", "one.png", "--trust") for _ in range(2))
    assert first == second
    assert first[0] == 0


def test_a_try_that_failed_does_not_block_its_folder(nestling, place):
    code, _, _ = nestling("train", "mine.npz", "--out", "again", "--model", "vgg11", *SMALL)
    assert code == 2
    assert nestling("train", "mine.npz", "--out", "again", *SMALL)[0] == 0


def test_nothing_to_cut_is_said(nestling):
    assert "something to cut" in one_line(nestling("train", "mine.npz", "--out", "none", "--kinds", "head", *SMALL))


def test_data_that_changed_is_noticed(nestling, place, tmp_path):
    arrays = dict(np.load(place / "mine.npz"))
    np.savez(tmp_path / "other.npz", **arrays)
    assert nestling("train", tmp_path / "other.npz", "--out", tmp_path / "run", *SMALL)[0] == 0
    np.savez(tmp_path / "other.npz", x=arrays["x"][::-1], y=arrays["y"])
    assert "other data" in one_line(nestling("evaluate", tmp_path / "run"))


def test_a_run_finds_its_data_from_anywhere(nestling, place, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert nestling("evaluate", place / "run", "--trust", "--samples", "0")[0] == 0


def test_images_for_a_network_that_was_trained_on_floats(nestling, place, tmp_path):
    arrays = dict(np.load(place / "mine.npz"))
    np.savez(tmp_path / "floats.npz", x=arrays["x"].astype(np.float32)[:, None], y=arrays["y"])
    assert nestling("train", tmp_path / "floats.npz", "--out", tmp_path / "run", *SMALL)[0] == 0
    assert "trained on floats" in one_line(nestling("predict", tmp_path / "run", "one.png"))


def test_predict_reads_what_train_read(nestling):
    code, printed, _ = nestling("predict", "run", "mine.npz", "--trust")
    assert code == 0
    assert len(printed.splitlines()) == 2 + 120


def test_other_pretrained_weights_are_another_run(nestling, tmp_path):
    torch.manual_seed(0)
    net = models.build("mlp", in_features=16, num_classes=3)
    save_file(net.state_dict(), tmp_path / "weights.safetensors")
    words = ["train", "mine.npz", "--out", tmp_path / "run", *SMALL]
    assert nestling(*words, "--pretrained", tmp_path / "weights.safetensors")[0] == 0
    assert "starts_from" in one_line(nestling(*words))


def test_code_that_breaks_is_one_line(nestling, place):
    (place / "cli_broken.py").write_text("def f():\n    raise OSError('no such thing')\n1 / 0\n")
    assert "ZeroDivisionError" in one_line(nestling("train", "mine.npz", "--out", "b", "--model", "cli_broken:f"))


def test_code_of_one_s_own_runs_when_trusted(nestling):
    assert nestling("evaluate", "run", "--trust", "--samples", "0")[0] == 0
    code, out, _ = nestling("predict", "run", "one.png", "--trust", "--samples", "0")
    assert code == 0
    assert "one.png" in out


def test_data_lists_the_sets(nestling):
    code, out, err = nestling("data")
    assert (code, err) == (0, "")
    assert out.splitlines()[2].startswith("digits ")


class Noted:
    """Stands in for a function, and keeps what it was called with, by the names of its parameters."""

    def __init__(self, function):
        self.signature = inspect.signature(function)

    def __call__(self, *args, **kwargs):
        self.given = self.signature.bind(*args, **kwargs).arguments
        return "done"


@pytest.fixture
def noted(monkeypatch):
    def stand_in(where, name):
        function = Noted(getattr(where, name))
        monkeypatch.setattr(where, name, function)
        return function

    return stand_in


def test_options_of_train_arrive(nestling, noted):
    function = noted(commands, "train")
    words = "train mnist --out runs/a --model lenet_300_100 --hold-out 8 9 --pretrained w.safetensors --order uniform"
    words += " --weights plain --kinds channel bit --where all --exclude stem head --epochs 7 --kappa 0.5"
    words += " --bits.num-groups 3 --model-options width=0.5 --likelihood categorical"
    words += " --augment crop_flip --resize 48 64"
    words += " --cuts 0.3 1 --patience 4 --optimiser sgd --schedule step --milestones 0.6 --temperature 0.9 0.2"
    assert nestling(*words.split()) == (0, "done\n", "")
    nesting = Nesting(
        order="uniform",
        weights="plain",
        kinds=("channel", "bit"),
        where="all",
        exclude=("stem", "head"),
        bits=Bits(num_groups=3),
    )
    recipe = Recipe(
        epochs=7,
        kappa=0.5,
        cuts=(0.3, 1.0),
        patience=4,
        optimiser="sgd",
        schedule="step",
        milestones=(0.6,),
        temperature=(0.9, 0.2),
    )
    expected = {"source": "mnist", "model": "lenet_300_100", "out": Path("runs/a"), "nesting": nesting}
    expected |= {"hold_out": (8, 9), "pretrained": Path("w.safetensors"), "device": "auto", "recipe": recipe}
    expected |= {"augment": "crop_flip", "resize": (48, 64), "likelihood": "categorical"}
    assert function.given == expected | {"model_options": ("width=0.5",)}


def test_train_without_options_is_the_default_recipe(nestling, noted):
    function = noted(commands, "train")
    nestling("train", "digits", "--out", "a")
    expected = {"source": "digits", "model": "mlp", "out": Path("a"), "nesting": Nesting(), "recipe": Recipe()}
    expected |= {"model_options": (), "hold_out": (), "pretrained": None, "likelihood": None, "device": "auto"}
    assert function.given == expected | {"augment": "auto", "resize": ()}


def test_every_entry_of_the_recipe_is_an_option(nestling):
    _, out, _ = nestling("train", "--help")
    for name in (*Recipe.__dataclass_fields__, *Nesting.__dataclass_fields__):
        assert f"--{name.replace('_', '-')}" in out


def test_options_of_evaluate_and_predict_arrive(nestling, noted):
    function = noted(commands, "evaluate")
    nestling(*"evaluate runs/a --cuts 0.2 0.4 --ood kmnist --limit 9 --samples 3 --trust".split())
    expected = {"folder": Path("runs/a"), "cuts": (0.2, 0.4), "ood": "kmnist", "limit": 9, "samples": 3}
    assert function.given == expected | {"trust": True, "device": "auto"}
    function = noted(commands, "predict")
    nestling(*"predict runs/a b.png --cut 0.3 --samples 2 --coverage 0.8 --resize --out c.csv".split())
    expected = {"folder": Path("runs/a"), "inputs": Path("b.png"), "cut": 0.3, "samples": 2, "coverage": 0.8}
    assert function.given == expected | {"resize": True, "out": Path("c.csv"), "trust": False}


def test_options_of_report_arrive(nestling, noted):
    function = noted(commands, "report")
    nestling(*"report runs/a runs/b --ood kmnist --limit 9 --samples 3 --out c.html --trust".split())
    expected = {"folders": (Path("runs/a"), Path("runs/b")), "out": Path("c.html"), "ood": "kmnist", "limit": 9}
    assert function.given == expected | {"samples": 3, "trust": True, "device": "auto"}


def test_options_of_demo_arrive(nestling, noted):
    function = noted(import_module("nestling.demo"), "demo")
    assert nestling("demo", "--out", "a", "--seed", "3") == (0, "done\n", "")
    assert function.given == {"out": Path("a"), "seed": 3}


@pytest.mark.parametrize(
    "name",
    ["cascade", "data", "evaluate", "export", "extract", "predict", "prune", "report", "search", "serve", "train"],
)
def test_commands_have_the_options_of_the_command_line(name):
    """The same names after the first, and the same defaults where both have one."""
    on_line, in_python = (
        list(inspect.signature(getattr(where, name)).parameters.values()) for where in (cli, commands)
    )
    assert {option.name for option in on_line[1:]} == {option.name for option in in_python[1:]}
    defaults = {option.name: option.default for option in on_line}
    given = {o.name: o.default for o in in_python if o.default is not inspect.Parameter.empty}
    assert given == {option: defaults[option] for option in given}


def test_the_script_is_this_function():
    project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]
    assert project["scripts"] == {"nestling": "nestling.cli:main"}


MAIN = ["-m", "nestling"]
INTERRUPTIBLE = [  # also where a shell started the tests in the background, which has them ignore Ctrl-C
    "-c",
    "import runpy, signal\n"
    "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    "runpy.run_module('nestling', run_name='__main__')",
]


def begun(start, *words, **settings):
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    environment = os.environ | {"OMP_NUM_THREADS": "1"} | settings.pop("env", {})
    return subprocess.Popen([sys.executable, *start, *words], env=environment, **pipes, **settings)


def test_as_a_module_with_a_mistake():
    with begun(MAIN, "evaluate", "nowhere") as process:
        out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out) == (2, "")
    assert err.startswith("nestling: nowhere/recipe.json: is not there.")
    assert err.count("\n") == 1


def test_interrupted_and_given_again(place, nestling, tmp_path):
    """A run that Ctrl-C stops says so in one line, and goes on from there."""
    words = ["train", "mine.npz", "--model", "cli_nets:small", "--out", str(tmp_path / "run"), *SMALL, "--epochs", "6"]
    with begun(INTERRUPTIBLE, *words, cwd=place, env={"SLOWNESS": "0.2"}) as process:
        for line in process.stderr:
            if line.startswith("epoch 2/"):
                break
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert err.splitlines()[-1].startswith("nestling: stopped")
    assert "Traceback" not in err
    log = tmp_path / "run" / "log.jsonl"
    done = log.read_text().count("\n")
    assert 2 <= done < 6
    code, _, err = nestling(*words)
    assert code == 0
    assert err.splitlines()[0].startswith(f"going on from epoch {done + 1}")
    assert log.read_text().count("\n") == 6


def test_version(nestling):
    assert nestling("--version")[:2] == (0, f"{version.__version__}\n")


def test_nobody_reads_what_is_printed(tmp_path):
    """As in ``nestling ... | head``: no traceback."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "nestling", "train", "--help"]
    with os.fdopen(writer, "wb") as out:
        done = subprocess.run(command, stdout=out, stderr=subprocess.PIPE, cwd=tmp_path, check=False, timeout=PATIENCE)
    assert (done.returncode, done.stderr) == (cli.BROKEN_PIPE, b"")


def test_the_current_folder_comes_last_where_modules_are_looked_for(monkeypatch, tmp_path, capsys):
    """A file there called scipy.py must not run in place of the library; module:function of the user's is found."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "argv", ["nestling", "--version"])
    cli.main()
    assert sys.path[-1] == str(tmp_path)
    assert str(tmp_path) not in sys.path[:-1]


def test_importing_the_library_leaves_optimisers_alone():
    code = "import nestling, torch.optim.optimizer as o; print(len(o._global_optimizer_post_hooks))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=PATIENCE)
    assert found.stdout.strip() == "0"
