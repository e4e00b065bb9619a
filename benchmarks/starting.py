"""CPU time of commands that end at once: a prediction for one image beside ``import torch``, and ``--help``."""

import json
import os
import resource
import statistics
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

import nestling as nl

ROUNDS = 9
COMMAND = [sys.executable, "-m", "nestling"]


def main() -> None:
    with TemporaryDirectory() as folder:
        place = Path(folder)
        image = trained(place)
        commands = {
            "torch": [sys.executable, "-c", "import torch"],
            "predict": [*COMMAND, "predict", str(place / "run"), str(image)],
            "help": [*COMMAND, "--help"],
        }
        for words in commands.values():
            seconds(words)  # writes the bytecode of what it imports
        times = [{name: seconds(words) for name, words in commands.items()} for _ in range(ROUNDS)]
    median = {name: statistics.median(row[name] for row in times) for name in commands}
    print(
        json.dumps(
            {
                "question": "CPU seconds of nestling predict RUN image (mlp), of import torch, and of nestling --help",
                **{name: round(own, 3) for name, own in median.items()},
                "predict / torch": round(statistics.median(row["predict"] / row["torch"] for row in times), 3),
                "least predict / least torch": round(
                    min(row["predict"] for row in times) / min(row["torch"] for row in times), 3
                ),
                "asked": 1.3,
            }
        )
    )


def trained(place: Path) -> Path:
    """A short run on digits, and an image of one."""
    digits = nl.data.load("digits")
    torch.manual_seed(0)
    module = nl.models.build("mlp", in_features=64, num_classes=10)
    nested = nl.nest(module, torch.zeros(2, *digits.input_shape))
    nl.train(nested, digits, nl.Recipe(epochs=1), out=place / "run", quiet=True)
    np.save(place / "image.npy", np.zeros((1, *digits.input_shape), np.float32))
    return place / "image.npy"


def seconds(words: list[str]) -> float:
    """CPU seconds of a process, and of those that it starts."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {name: own for name, own in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL, env=environment | {"OMP_NUM_THREADS": "1"})
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    main()
