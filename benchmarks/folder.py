"""What an epoch on a folder of images costs beside one on the same images of a named data set, and what loading costs.

The network is small, so that the batches are a large part of an epoch.
"""

import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch
from measuring import in_turns, ratio, report
from PIL import Image

import nestling as nl
from nestling.data import Data

NUM_IMAGES, NUM_VALIDATED = 10_000, 1000
ROUNDS = 5
RECIPE = nl.Recipe(epochs=1, samples=1, cuts=(1.0,))


def main() -> None:
    torch.set_num_threads(1)
    whole = nl.data.load("cifar10", splits=("train",), validation=0).split("train")
    named = part_of(nl.data.load("cifar10", splits=("train", "validation")))
    with tempfile.TemporaryDirectory() as place:
        for number in range(NUM_IMAGES + NUM_VALIDATED):
            folder = Path(place) / "train" / str(int(whole.targets[number]))
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(whole.inputs[number].permute(1, 2, 0).numpy()).save(folder / f"{number}.png")
        start = time.process_time()
        loaded = nl.data.load(place, splits=("train", "validation"), validation=NUM_VALIDATED, augment=named.augment)
        seconds = time.process_time() - start
    of_folder = part_of(loaded)
    times = in_turns({"folder": lambda: epoch(of_folder), "named": lambda: epoch(named)}, ROUNDS)
    report(
        f"an epoch of {NUM_IMAGES:,} images of CIFAR-10 from a folder, beside the named set, crops and mirror images",
        **{"folder / named": ratio(times, "folder", "named"), "s an epoch": round(min(times["folder"]), 2)},
        **{"images / s loaded": round((NUM_IMAGES + NUM_VALIDATED) / seconds)},
    )


def part_of(data: Data) -> Data:
    """As many images of each set for training and validation."""
    train, validation = data.split("train"), data.split("validation")
    chosen = torch.arange(NUM_IMAGES), torch.arange(NUM_VALIDATED)
    return replace(data, train=train.subset(chosen[0]), validation=validation.subset(chosen[1]))


def epoch(data: Data) -> None:
    """Train a new network for one epoch."""
    network = nl.models.build("mlp", hidden=[64], in_features=3072, num_classes=10)
    nested = nl.nest(network, torch.zeros(2, 3, 32, 32), weights=None, num_blocks=8)
    nl.train(nested, data, RECIPE, quiet=True)


if __name__ == "__main__":
    main()
