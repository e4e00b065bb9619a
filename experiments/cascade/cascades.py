"""Cascades on MNIST and CIFAR-10: how much of the full width's average cost they need, and what they lose.

NESTLING_DATA=folder python experiments/cascade/cascades.py train mnist --epochs 3 --out runs/mnist
NESTLING_DATA=folder PYTHONPATH=experiments/bn3 python experiments/cascade/cascades.py \
    train resnet20 --weights resnet20.safetensors --epochs 1 --precision bfloat16 --out runs/resnet20
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

import nestling as nl
from nestling.data import Data


def mnist(asked: argparse.Namespace) -> tuple[nl.Nested, Data, dict[str, Any]]:
    """The multilayer perceptron 784-512-128-10, of which a sixteenth can be kept."""
    module = nl.models.build("mlp", hidden=[512, 128])
    nested = nl.nest(module, torch.zeros(2, 1, 28, 28), num_blocks=32, num_always=2, weights=asked.posterior)
    return nested, nl.data.load("mnist", seed=asked.seed), {}


def resnet20(asked: argparse.Namespace) -> tuple[nl.Nested, Data, dict[str, Any]]:
    """The pretrained ResNet-20 of experiments/bn3/pretrained.py, nested and fine-tuned as it is there."""
    from pretrained import MEAN, STD, pretrained  # in experiments/bn3, which PYTHONPATH names

    module = nl.models.build("pretrained:ResNet20")
    module.load_state_dict(load_file(asked.weights), strict=False)  # it has no counts of batches
    module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # faster on a CPU
    options = {"num_blocks": 16, "num_always": 2, "sort": "norm", "weights": asked.posterior}
    nested = nl.nest(module.eval(), torch.zeros(2, 3, 32, 32), **options)
    data = replace(nl.data.load("cifar10", seed=asked.seed), mean=MEAN, std=STD)
    return nested, data, {"teacher": pretrained(asked.weights)}


NETWORKS: dict[str, Callable[[argparse.Namespace], tuple[nl.Nested, Data, dict[str, Any]]]] = {
    "mnist": mnist,
    "resnet20": resnet20,
}


def train(asked: argparse.Namespace) -> None:
    torch.manual_seed(asked.seed)
    nested, data, options = NETWORKS[asked.network](asked)
    cuts = (0.25, 0.5, 0.75, 1.0)
    recipe = nl.Recipe(epochs=asked.epochs, seed=asked.seed, cuts=cuts, precision=asked.precision)
    began = time.process_time()
    nl.train(nested, data, recipe, out=asked.out, **options)
    print(f"{asked.out}: {time.process_time() - began:.0f} CPU seconds", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, dest="command")
    training = commands.add_parser("train")
    training.add_argument("network", choices=NETWORKS)
    training.add_argument("--weights", type=Path, help="the pretrained weights of the ResNet-20")
    training.add_argument("--posterior", choices=("ivon", "gaussian"), help="of the weights; plain ones if left out")
    training.add_argument("--seed", type=int, default=0)
    training.add_argument("--epochs", type=int, default=3)
    training.add_argument("--precision", choices=("float32", "bfloat16"), default="float32")
    training.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    train(asked)


if __name__ == "__main__":
    main()
