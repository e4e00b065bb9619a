"""VBD's dropout table: MNIST with three hidden layers of one width, seven regularisers: one JSON line a run; the table.

NESTLING_DATA=folder python experiments/vbd/dropout.py run vbd 340 0 --out dropout.jsonl
python experiments/vbd/dropout.py table dropout.jsonl
"""

import argparse
import json
import statistics
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import torch

import nestling as nl
from nestling.prediction import ClassScores
from nestling.pruning.regularisers import Regulariser, regularised, regulariser_recipe

WIDTHS = (100, 340, 580, 820, 1060)
PAPER = {
    "none": (1.80, 1.77, 1.78, 1.78, 1.71),
    "bernoulli": (1.69, 1.68, 1.67, 1.67, 1.63),
    "gaussian": (1.70, 1.66, 1.68, 1.69, 1.62),
    "gaussian_local": (1.66, 1.64, 1.71, 1.65, 1.64),
    "concrete": (2.39, 1.61, 1.55, 1.54, 1.51),
    "variational": (1.69, 1.62, 1.67, 1.62, 1.63),
    "vbd": (1.56, 1.53, 1.53, 1.52, 1.45),
}


def recipe(seed: int, epochs: int, noise_lr: float, kappa: Any, precision: Any) -> nl.Recipe:  # noqa: ANN401
    """The paper's 50 epochs of batches of 1,000 with Adam at 1e-3; kappa is for a learned noise."""
    own = nl.Recipe(epochs=epochs, batch_size=1000, seed=seed, lr=1e-3, lr_warm_up=0.0, keep="last")
    return own.but(order_lr=noise_lr, kappa=kappa, precision=precision)


def run(name: Any, width: int, seed: int, **options: Any) -> dict[str, Any]:  # noqa: ANN401
    torch.manual_seed(seed)
    data = replace(nl.data.load("mnist", seed=seed), mean=(0.0,), std=(1.0,))
    network = nl.models.build("mlp", hidden=[width] * 3)
    nested = regularised(network, torch.zeros(2, 1, 28, 28), name)
    nl.train(nested, data, regulariser_recipe(name, recipe(seed, **options)))
    found = {"name": name, "width": width, "seed": seed, **options}
    for split, key in (("test", "error"), ("validation", "validation_error")):
        scores = nl.evaluate(nested, list(data.batches(split, 1000)), samples=0)
        assert isinstance(scores, ClassScores)
        found[key] = round(100 * (1 - scores.accuracy), 2)
    learned = [own for own in nested.parameters() if own.ndim == 0]
    return found | {"noise": [round(float(own.detach()), 2) for own in learned]}


def table(path: Path) -> None:
    rows = defaultdict(list)
    for line in path.read_text().splitlines():
        own = json.loads(line)
        rows[own["width"], own["name"], str(own.get("kappa", "auto"))].append(own)
    print(
        "| width | method | kappa | paper, error % | ours, mean | each seed | log alpha (concrete: logit p), one seed |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for (width, name, kappa), runs in sorted(rows.items(), key=lambda row: (row[0][0], list(PAPER).index(row[0][1]))):
        errors, noise = [own["error"] for own in runs], [str(own) for own in runs[0].get("noise", [])]
        each, weighed = ", ".join(f"{error:.2f}" for error in errors), kappa if noise else "-"
        paper = PAPER[name][WIDTHS.index(width)]
        print(
            f"| {width} | {name} | {weighed} | {paper} | {statistics.mean(errors):.2f} | {each} | {', '.join(noise)} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(required=True, dest="command")
    running = commands.add_parser("run")
    running.add_argument("name", choices=get_args(Regulariser))
    running.add_argument("width", type=int, choices=WIDTHS)
    running.add_argument("seed", type=int)
    running.add_argument("--epochs", type=int, default=50)
    running.add_argument("--noise-lr", type=float, default=1e-2, help="learning rate of a learned noise's log alpha")
    running.add_argument("--kappa", type=float, help="weight of a learned noise's divergence; automatic")
    running.add_argument("--precision", choices=("float32", "bfloat16"), default="float32", help="of training")
    running.add_argument("--out", type=Path, required=True)
    commands.add_parser("table").add_argument("path", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.command == "table":
        table(given.path)
        return
    options = {
        "epochs": given.epochs,
        "noise_lr": given.noise_lr,
        "kappa": "auto" if given.kappa is None else given.kappa,
        "precision": given.precision,
    }
    found = run(given.name, given.width, given.seed, **options)
    with given.out.open("a") as file:
        file.write(json.dumps(found) + "\n")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
