"""MNIST with shuffled labels: sparse VD should prune (nearly) everything, binary dropout memorises them.

NESTLING_DATA=folder python experiments/sparse_vd/random_labels.py run sparse_vd 0 --out labels.jsonl
python experiments/sparse_vd/random_labels.py table labels.jsonl
"""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import nestling as nl
from nestling.prediction import ClassScores
from nestling.pruning.gated import without_widths
from nestling.pruning.methods import METHODS, pruning_recipe
from nestling.pruning.regularisers import regularised, regulariser_recipe
from nestling.pruning.weights import kept_weights, with_noise

sys.path.append(str(Path(__file__).parents[1]))
from rows import Commands, Row, add, grouped, markdown, num_seeds, spread

THRESHOLD = 3.0


def shuffled(data: nl.data.Data, number: int, seed: int) -> nl.data.Data:
    """The first ``number`` training examples with their labels in random order."""
    train = data.split("train")
    order = torch.randperm(number, generator=torch.Generator().manual_seed(seed))
    return replace(data, train=replace(train, inputs=train.inputs[:number], targets=train.targets[:number][order]))


def run(method: str, seed: int, epochs: int, number: int) -> dict[str, Any]:
    torch.manual_seed(seed)
    data = replace(nl.data.load("mnist", seed=seed), mean=(0.0,), std=(1.0,))
    data = shuffled(data, number, seed)
    example = torch.zeros(2, 1, 28, 28)
    network = nl.models.build("lenet_300_100")
    recipe = nl.Recipe(epochs=epochs, batch_size=100, seed=seed, lr=1e-3, order_lr=1e-2, lr_warm_up=0.0, keep="last")
    sparsity = None
    if method == "sparse_vd":
        nested = with_noise(network, example)
        chosen = pruning_recipe(METHODS["sparse_vd"], recipe.but(kappa=1.0, kl_warm_up=0.1))
    elif method == "bernoulli":
        nested, chosen = regularised(network, example, "bernoulli"), regulariser_recipe("bernoulli", recipe)
    else:
        nested, chosen = without_widths(network, example), regulariser_recipe("none", recipe)
    nl.train(nested, data, chosen)
    if method == "sparse_vd":
        kept = kept_weights(nested, THRESHOLD)
        left, total = sum(int(own.sum()) for own in kept.values()), sum(own.numel() for own in kept.values())
        sparsity = 100 * (1 - left / total)
    on_train, on_test = (accuracy(nested, data, split) for split in ("train", "test"))
    return {
        "method": method,
        "seed": seed,
        "examples": number,
        "epochs": epochs,
        "train_accuracy": 100 * on_train,
        "test_accuracy": 100 * on_test,
        "sparsity": sparsity,
    }


def accuracy(nested: nl.Nested, data: nl.data.Data, split: str) -> float:
    scores = nl.evaluate(nested, list(data.batches(split, 1000)), samples=0)
    assert isinstance(scores, ClassScores)
    return scores.accuracy


def table(rows: list[Row]) -> str:
    """A row per method and number of images: what of the labels it learned, and what it removed."""
    lines = []
    for (method, examples, epochs), own in grouped(rows, "method", "examples", "epochs").items():
        found = [spread([row[key] for row in own], 1) for key in ("train_accuracy", "test_accuracy")]
        sparsity = [row["sparsity"] for row in own if row["sparsity"] is not None]
        about = [f"{method}, {num_seeds(own)}", f"{examples:,}", str(epochs)]
        lines.append([*about, *found, spread(sparsity, 1) if sparsity else "-"])
    head = ["", "images", "epochs", "right on the shuffled training labels, %", "right on the test labels, %"]
    return markdown([*head, "weights removed, %"], lines)


def main() -> None:
    commands = Commands(__doc__, table)
    commands.run.add_argument("method", choices=("sparse_vd", "bernoulli", "none"))
    commands.run.add_argument("seed", type=int)
    commands.run.add_argument("--epochs", type=int, default=100)
    commands.run.add_argument("--examples", type=int, default=10_000)
    given = commands.asked()
    if given is None:
        return
    torch.set_num_threads(1)
    add(given.out, run(given.method, given.seed, given.epochs, given.examples))


if __name__ == "__main__":
    main()
