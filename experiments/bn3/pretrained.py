"""A pretrained ResNet-20 for CIFAR-10, nested and fine-tuned: what each width keeps of its 91.7 %.

NESTLING_DATA=folder python experiments/bn3/pretrained.py run weights.safetensors plain bayesian --out pretrained.jsonl
python experiments/bn3/pretrained.py table pretrained.jsonl

The weights are those of Y. Idelbayev's pytorch_resnet_cifar10. The inner channels of each residual block are cut: at
25, 50, 75 and 100 % of them the network has 10.5, 20.5, 30.5 and 40.6 million multiply-adds.
"""

import argparse
import json
import statistics
import time
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F
from widths import DRAWS, WIDTHS, figures_of, scores

import nestling as nl
from nestling.data import Data

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""What the network was trained with."""
BETWEEN = (0.375, 0.625, 0.875)
METHODS: dict[str, dict[str, Any]] = {"plain": {"weights": None}, "bayesian": {"weights": "ivon"}}


class Block(nn.Module):
    """Two convolutions added to the input, which is thinned out and padded with zero channels where a stage begins."""

    def __init__(self, channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, out_channels, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(out_channels)
        self.stride, self.padding = stride, (out_channels - channels) // 2

    def forward(self, x: Tensor) -> Tensor:
        residual: Tensor = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))
        if self.stride > 1:
            x = F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.padding, self.padding))
        return (residual + x).relu()


class ResNet20(nn.Module):
    """The network that the weights fit, by their names."""

    def __init__(self, num_classes: int = 10) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = nn.Sequential(Block(16, 16, 1), Block(16, 16, 1), Block(16, 16, 1))
        self.layer2 = nn.Sequential(Block(16, 32, 2), Block(32, 32, 1), Block(32, 32, 1))
        self.layer3 = nn.Sequential(Block(32, 64, 2), Block(64, 64, 1), Block(64, 64, 1))
        self.linear = nn.Linear(64, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer3(self.layer2(self.layer1(self.bn1(self.conv1(x)).relu())))
        logits: Tensor = self.linear(x.mean((2, 3)))
        return logits


def pretrained(weights: Path) -> nn.Module:
    network = ResNet20()
    network.load_state_dict(load_file(weights), strict=False)  # it has no counts of batches
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # faster on a CPU
    return network.eval()


def data_of(seed: int) -> Data:
    return replace(nl.data.load("cifar10", seed=seed), mean=MEAN, std=STD)


def run(weights: Path, method: str, seed: int, epochs: int, changes: dict[str, Any], precision: str) -> dict[str, Any]:
    torch.manual_seed(seed)
    network, data, example = pretrained(weights), data_of(seed), torch.zeros(2, 3, 32, 32)
    nested = nl.nest(network, example, num_blocks=16, num_always=2, sort="norm", **METHODS[method])
    recipe = nl.Recipe(epochs=max(1, epochs), seed=seed, cuts=WIDTHS).but(**{"precision": precision} | changes)
    began = time.process_time()
    if epochs:
        nl.train(nested, data, recipe, teacher=network, quiet=True)
    seconds = time.process_time() - began
    samples = 0 if METHODS[method]["weights"] is None else DRAWS
    rows = {str(cut): scores(nested, data, recipe, cut, samples) for cut in WIDTHS + BETWEEN}
    row = {"method": method, "seed": seed, "epochs": epochs, "changes": changes, "precision": precision}
    return row | {"seconds": round(seconds, 1), "rows": rows}


def as_it_comes(weights: Path) -> dict[str, Any]:
    """The network itself, with the statistics that it has."""
    found = nl.nest(pretrained(weights), torch.zeros(2, 3, 32, 32), weights=None, sort="none").eval()
    data = data_of(0)
    foreign = nl.data.load("svhn", splits=("test",)).normalised_like(data).batches("test", 500)
    own = figures_of(nl.evaluate(found, data.batches("test", 500), samples=0, ood=foreign))
    row = {"method": "as it comes", "seed": 0, "epochs": 0, "changes": {}, "precision": "float32", "seconds": 0.0}
    return row | {"rows": {"1.0": own}}


def table(path: Path) -> None:
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for line in path.read_text().splitlines():
        row = json.loads(line)
        groups[row["method"], row["epochs"], json.dumps(row["changes"]), row["precision"]].append(row)
    print("| method, epochs | 25 % | 50 % | 75 % | 100 % | CPU s |\n| --- | --- | --- | --- | --- | --- |")
    for (method, epochs, changes, precision), rows in groups.items():
        cells = []
        for width in WIDTHS:
            found = [row["rows"][str(width)] for row in rows if str(width) in row["rows"]]
            keys = ("accuracy", "nll", "ece", "aupr", "auroc")
            means = [statistics.mean(own[key] for own in found) for key in keys] if found else None
            cells.append("-" if means is None else "{:.2f} / {:.3f} / {:.1f} / {:.1f} / {:.1f}".format(*means))
        about = f"{method} ({len(rows)}), {epochs}, {precision}" + ("" if changes == "{}" else f", {changes}")
        print(f"| {about} | {' | '.join(cells)} | {statistics.mean(row['seconds'] for row in rows):.0f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, dest="command")
    running = commands.add_parser("run")
    running.add_argument("weights", type=Path)
    running.add_argument("methods", nargs="+", choices=(*METHODS, "as_it_comes"))
    running.add_argument("--seeds", type=int, nargs="+", default=[0])
    running.add_argument("--epochs", type=int, default=10)
    running.add_argument("--changes", type=json.loads, default={}, help="entries of the recipe, as JSON")
    running.add_argument("--precision", choices=("float32", "bfloat16"), default="float32")
    running.add_argument("--out", type=Path, required=True)
    commands.add_parser("table").add_argument("path", type=Path)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    if asked.command == "table":
        table(asked.path)
        return
    for seed in asked.seeds:
        for method in asked.methods:
            if method == "as_it_comes":
                row = as_it_comes(asked.weights)
            else:
                row = run(asked.weights, method, seed, asked.epochs, asked.changes, asked.precision)
            with asked.out.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
