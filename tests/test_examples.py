"""The examples run as a reader runs them, and those for several processes train one network in two of them."""

import os
import re
import signal
import subprocess
import sys
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
import tyro
from PIL import Image
from safetensors.torch import load_file, save_file
from sklearn.datasets import load_digits

import nestling as nl
from effort import PATIENCE, SOAK
from nestling.training.elbo import elbo_terms

FOLDER = Path(__file__).parent.parent / "examples"
TRAINERS = {"accelerate_loop": "accelerate", "fabric_loop": "lightning_fabric", "plain_loop": "torch"}
NEEDS = {
    **TRAINERS,
    "hf_trainer": "accelerate",
    "hugging_face": "transformers",
    "own_images": "onnxruntime",
    "prune_to_half_latency": "torch",
    "ray_serve": "ray",
    "regression": "sklearn",
}
IN_TWO = {
    "accelerate_loop": ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", __file__],
    "fabric_loop": [__file__, "--devices", "2"],
}
ROW = re.compile(r"^ *(\d+)% +([\d,]+) +([\d.]+)% +([\d.]+)%$", re.MULTILINE)
WATCHED_EPOCHS = 3


@contextmanager
def started(name, *command, **variables):
    """A process that begins at once, and in the block a function that waits for it and gives what it printed."""
    if find_spec(NEEDS[name]) is None:
        pytest.skip(f"{NEEDS[name]} is not installed")
    environment = os.environ | {"OMP_NUM_THREADS": "1"} | variables
    kept = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, *command], env=environment, start_new_session=True, **kept) as process:

        def printed():
            output, errors = process.communicate(timeout=PATIENCE)
            assert process.returncode == 0, errors
            return output

        try:
            yield printed
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)  # with those that it started itself


def check_table(output, least):
    """Every line is a row of the one table, and its figures are those of a network that has learned something."""
    heading, *lines = output.splitlines()
    assert heading.split() == ["width", "parameters", "accuracy", "ECE"]
    rows = ROW.findall(output)
    assert len(rows) == len(lines)
    widths, sizes, accuracies, errors = zip(*[[float(f.replace(",", "")) for f in row] for row in rows], strict=True)
    plain = nl.models.build("mlp", hidden=[64, 32], in_features=64)
    assert widths == (25, 50, 100)
    assert sizes[0] < sizes[1] < sizes[2] == sum(parameter.numel() for parameter in plain.parameters())
    assert least < min(accuracies) <= max(accuracies) < 100  # chance is 10
    assert max(errors) < 50


def test_every_example_is_known_here():
    assert {path.stem for path in FOLDER.glob("*.py")} == NEEDS.keys()


@pytest.mark.parametrize("name", NEEDS)
def test_an_example_is_short(name):
    assert len((FOLDER / f"{name}.py").read_text().splitlines()) <= 60


def test_a_loop_of_ones_own_trains_a_network():
    with started("plain_loop", FOLDER / "plain_loop.py") as printed:
        check_table(printed(), least=85)


def test_numbers_are_answered_in_their_own_unit():
    with started("regression", FOLDER / "regression.py") as printed:
        table, answers = printed().split("\n\n")
    rows = [[float(cell.rstrip("%").replace(",", "")) for cell in line.split()] for line in table.splitlines()[1:]]
    assert [row[0] for row in rows] == [25, 50, 100]
    assert all(40 < row[2] < 70 for row in rows)  # the standard deviation of the targets is 77
    assert all(75 < row[3] < 99 for row in rows)
    for line in answers.splitlines()[1:]:
        _, mean, std, low, _, high = line.split()
        assert 25 < float(low) + 40 < float(mean) < float(high) < 400
        assert 25 < float(std) < 90


def test_an_own_cnn_and_image_folder_become_a_file(tmp_path):
    """Digits 0 to 3 as a user's images: of sizes that differ, and beside a file that is none."""
    digits = load_digits()
    for number in np.flatnonzero(digits.target < 4):
        image = Image.fromarray((digits.images[number] * 15.9).astype(np.uint8))
        path = tmp_path / "images" / f"digit {digits.target[number]}" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        image.resize((16 + number % 5, 16 + number % 3)).save(path)
    (tmp_path / "images" / "notes.txt").write_text("not an image")
    given = [tmp_path / "images", "--size", "16", "--epochs", "5", "--out", tmp_path / "run"]
    with started("own_images", FOLDER / "own_images.py", *given) as printed:
        first, whole, cut, file = printed().splitlines()
    assert first.startswith("518 training images of the classes digit 0, digit 1")
    assert first.endswith("; 1 other files skipped")
    accuracies = [float(re.search(r"accuracy ([\d.]+)%", line)[1]) for line in (whole, cut, file)]
    assert accuracies[0] > 70  # chance is 25
    assert accuracies[1] == accuracies[2], "the file computes what the cut did"
    sizes = [int(re.search(r"([\d,]+) multiply-adds", line)[1].replace(",", "")) for line in (whole, cut)]
    assert sizes[1] <= 0.5 * sizes[0]
    assert (tmp_path / "run" / "small.onnx").is_file()


def test_a_hugging_face_classifier():
    with started("hugging_face", FOLDER / "hugging_face.py") as printed:
        table, said = printed().split("\n\n")
    rows = [(float(width), float(share)) for width, _, share, _ in ROW.findall(table)]
    assert [width for width, _ in rows] == [25, 50, 100]
    assert rows[-1][1] > 85  # chance is 60
    assert re.match(r"the half says \[[01], [01]\]", said)


def test_a_trainer_of_hugging_face_trains_every_width(tmp_path):
    with started("hf_trainer", FOLDER / "hf_trainer.py", "--out", tmp_path) as printed:
        output = printed()
    rows = [(float(width), float(share)) for width, _, share, _ in ROW.findall(output)]
    assert [width for width, _ in rows] == [25, 50, 100]
    assert min(share for _, share in rows) > 85  # chance is 60
    assert 0 < float(re.search(r"loss at full width ([\d.]+)", output)[1]) < 0.5
    assert re.search(r"the half has 32 units and says \[[01], [01]\]", output)
    assert {path.name for path in (tmp_path / "half").iterdir()} == {"config.json", "model.safetensors"}


def test_a_network_is_pruned_to_half_of_its_latency(tmp_path):
    """Its files are as small as the table says, and a fresh process runs its program with torch alone."""
    with started("prune_to_half_latency", FOLDER / "prune_to_half_latency.py", tmp_path) as printed:
        table, accuracy, answers = re.split(r"\n\n|\n(?=the file)", printed())
    size, whole = re.search(r"\(([\d,]+) of ([\d,]+) bytes\), [\d.]+ times as fast", table).groups()
    assert int(size.replace(",", "")) == sum(
        (tmp_path / name).stat().st_size for name in ("network.json", "weights.safetensors")
    )
    assert int(size.replace(",", "")) < int(whole.replace(",", "")) / 2
    found, low, high = map(float, re.findall(r"([\d.]+)%", accuracy.replace("95 %", "")))
    assert 90 < low < found < high
    reader = (
        "import sys, torch; m = torch.export.load(sys.argv[1]).module(); print(m(torch.zeros(5, 1, 8, 8)).shape[0])"
    )
    command = [sys.executable, "-c", reader + "; assert 'nestling' not in sys.modules", tmp_path / "network.pt2"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "5\n"
    assert "for 3 images" in answers


@pytest.mark.parametrize("name", IN_TWO)
def test_a_trainer_trains_one_network_alone_and_in_two_processes(name, tmp_path):
    if SOAK:
        with started(name, FOLDER / f"{name}.py") as printed:
            check_table(printed(), least=85)
    with started(name, *IN_TWO[name], EXAMPLE=name, SEEN=str(tmp_path)) as printed:
        check_table(printed(), least=65)
    first, second = (load_file(tmp_path / f"{rank}.safetensors") for rank in range(2))
    batches = nl.data.load("digits").batches("train", 64, shuffle=True, drop_last=True)
    given = []
    for epoch in range(WATCHED_EPOCHS):
        batches.set_epoch(epoch)
        given += [inputs for inputs, _ in batches]
    rows = torch.stack([first.pop("rows"), second.pop("rows")], dim=2).flatten(1, 2)
    assert torch.equal(rows, torch.stack(given)), "together they see each example of a batch once"
    noise = zip(first.pop("noise"), second.pop("noise"), strict=True)
    assert not any(torch.equal(own, other) for own, other in noise), "each draws weights of its own"
    assert len(first["widths"].unique(dim=0)) > 1
    assert first.keys() == second.keys()
    for key, tensor in first.items():
        assert torch.equal(tensor, second[key]), f"{key} is the same in both"


def watch(name, folder):
    """Run an example in this process, and write down the rows, widths and noise of every step and the last weights."""
    seen = {"rows": [], "widths": [], "noise": []}
    networks = set()

    def watched(nested, batch, **options):
        networks.add(nested)
        seen["noise"].append(torch.get_rng_state())
        terms = elbo_terms(nested, batch, **options)
        seen["rows"].append(batch[0])
        seen["widths"].append(torch.tensor([list(cut.as_dict().values()) for cut in terms.cuts]))
        return terms.loss

    nl.elbo = watched
    sys.path.insert(0, str(FOLDER))
    example = import_module(name)
    example.EPOCHS = WATCHED_EPOCHS
    tyro.cli(example.main)
    (nested,) = networks
    found = {key: torch.stack(steps) for key, steps in seen.items()} | nested.state_dict()
    save_file(found, Path(folder) / f"{os.environ['LOCAL_RANK']}.safetensors")


if __name__ == "__main__":
    watch(os.environ["EXAMPLE"], os.environ["SEEN"])
