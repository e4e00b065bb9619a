"""Prunes a network until it takes half of the time, and runs the files that result."""

import sys
from pathlib import Path

import torch
from torch import nn

import nestling as nl
from nestling.delivery import data_record, save_small, small_record

PRETRAINING = nl.Recipe(epochs=3, batch_size=64, lr=2e-3, kappa=0.0)
PRUNING = nl.Recipe(epochs=6, batch_size=64, lr=1e-3, order_lr=2e-2, kappa=1.0)


def main(folder: Path) -> None:
    """Prune a network of two convolutions on the digits; write it to a folder."""
    torch.manual_seed(0)
    data = nl.data.load("digits")
    net = nn.Sequential(  # or any nn.Module of yours
        *(nn.Conv2d(1, 64, 3, padding=1), nn.ReLU()),
        *(nn.Conv2d(64, 128, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(128 * 16, 10)),
    )
    pruned = nl.prune(
        net,
        torch.zeros(2, 1, 8, 8),
        data,  # or your own (training, validation) loaders
        "vbd",
        pretrain=PRETRAINING,  # leave it out for a network that is trained
        recipe=PRUNING,
        under={"latency_ms": "0.5x"},
        quiet=True,
    )
    print(pruned)

    scores = nl.evaluate(pruned.network, data.batches("test", 500))
    low, high = scores.bounds["accuracy"]
    print(f"\naccuracy {scores.accuracy:.1%} (95 % interval {low:.1%} to {high:.1%})")

    about = small_record(data_record(data), pruned.likelihood)
    small = save_small(pruned.network, ((torch.zeros(2, 1, 8, 8),), {}), folder, about)
    images = data.split("test").inputs[:3]
    print("the file's answers:", small.predict(images).labels.tolist(), "for", len(images), "images")
    pruned.save_program(folder / "network.pt2")  # for torch alone, whose torch.export.load unpickles: only for yourself


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
