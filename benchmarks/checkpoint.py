"""What share of an epoch of the MNIST recipe (784-512-128-10, Gaussian weights) goes into writing the run folder."""

import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import nestling as nl
from nestling.data import Data, Split
from nestling.training.folder import RunFolder

EPOCHS = 3
RECIPE = nl.Recipe(epochs=EPOCHS, batch_size=256)


def main() -> None:
    torch.set_num_threads(1)
    nested = nl.nest(nl.models.build("mlp", hidden=[512, 128]), torch.zeros(2, 1, 28, 28), num_always=4)
    seconds = {name: timed(name) for name in ("checkpoint", "keep_best", "log")}
    with tempfile.TemporaryDirectory() as folder:
        start, start_cpu = time.perf_counter(), time.process_time()
        nl.train(nested, images(), RECIPE, out=Path(folder), quiet=True)
        wall, cpu = time.perf_counter() - start, time.process_time() - start_cpu
        size = sum(path.stat().st_size for path in Path(folder).iterdir())
    for clock, total in (("wall", wall), ("CPU", cpu)):
        spent = {name: own[clock] for name, own in seconds.items()}
        print(
            json.dumps(
                {
                    "question": f"share of {clock} time that goes into checkpoints, best weights and the log",
                    "percent of the run": round(100 * sum(spent.values()) / total, 2),
                    "percent for checkpoints": round(100 * spent["checkpoint"] / total, 2),
                    "ms for a checkpoint": round(1000 * spent["checkpoint"] / (EPOCHS + 1), 1),
                    "seconds for an epoch": round(total / EPOCHS, 2),
                    "folder in MB": round(size / 1e6, 1),
                }
            )
        )


def timed(name: str) -> dict[str, float]:
    """Have a method of ``RunFolder`` add its time to what is returned."""
    real: Callable[..., None] = getattr(RunFolder, name)
    spent = {"wall": 0.0, "CPU": 0.0}

    def method(*args: Any) -> None:  # noqa: ANN401
        start, start_cpu = time.perf_counter(), time.process_time()
        real(*args)
        spent["wall"] += time.perf_counter() - start
        spent["CPU"] += time.process_time() - start_cpu

    setattr(RunFolder, name, method)
    return spent


def images() -> Data:
    """As many images of noise as MNIST has to train with: what they show costs no time."""
    noise = torch.Generator().manual_seed(0)

    def split(number: int) -> Split:
        inputs = torch.randint(0, 256, (number, 1, 28, 28), dtype=torch.uint8, generator=noise)
        return Split(inputs, torch.randint(0, 10, (number,), generator=noise))

    return Data(
        name="noise",
        task="classification",
        train=split(54_000),
        validation=split(6_000),
        test=None,
        held_out=None,
        num_outputs=10,
        classes=tuple(map(str, range(10))),
        mean=(0.5,),
        std=(0.29,),
        augment="none",
    )


if __name__ == "__main__":
    main()
