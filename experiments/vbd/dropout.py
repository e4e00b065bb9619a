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
from nestling.distributions.gates import ConcreteGate, Gate, GaussianGate, gates_of
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


def recipe(seed: int, epochs: int, noise_lr: float, kappa: float, precision: Any) -> nl.Recipe:  # noqa: ANN401
    """The paper's 50 epochs of batches of 1,000 with Adam at 1e-3; kappa is for a learned noise, 1 the bound."""
    own = nl.Recipe(epochs=epochs, batch_size=1000, seed=seed, lr=1e-3, lr_warm_up=0.0, keep="last")
    return own.but(order_lr=noise_lr, kappa=kappa, kl_warm_up=0.0, precision=precision)


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
    return found | {"noise": [round(own, 2) for gate in gates_of(nested).values() for own in learned_noise(gate)]}


def learned_noise(gate: Gate) -> list[float]:
    """The median log alpha of a layer's units, or the logit of its drop rate; nothing for noise that is given."""
    if isinstance(gate, GaussianGate):
        return [float(gate.posterior.bounded_log_alpha().median())]
    return [float(gate.drop_logit.detach())] if isinstance(gate, ConcreteGate) else []


def table(path: Path) -> None:
    rows = defaultdict(list)
    for line in path.read_text().splitlines():
        own = json.loads(line)
        rows[own["width"], own["name"]].append(own)
    print("| width | method | paper, error % | ours, mean | each seed | precision | learned noise, one seed |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for (width, name), runs in sorted(rows.items(), key=lambda row: (row[0][0], list(PAPER).index(row[0][1]))):
        errors = [own["error"] for own in sorted(runs, key=lambda own: own["seed"])]
        noise = ", ".join(map(str, runs[0]["noise"]))
        each, precision = ", ".join(f"{error:.2f}" for error in errors), runs[0]["precision"]
        paper = PAPER[name][WIDTHS.index(width)]
        print(f"| {width} | {name} | {paper} | {statistics.mean(errors):.2f} | {each} | {precision} | {noise} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(required=True, dest="command")
    running = commands.add_parser("run")
    running.add_argument("name", choices=get_args(Regulariser))
    running.add_argument("width", type=int, choices=WIDTHS)
    running.add_argument("seed", type=int)
    running.add_argument("--epochs", type=int, default=50)
    running.add_argument("--noise-lr", type=float, default=1e-2, help="learning rate of a learned noise")
    running.add_argument("--kappa", type=float, default=1.0, help="weight of a learned noise's divergence")
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
        "kappa": given.kappa,
        "precision": given.precision,
    }
    found = run(given.name, given.width, given.seed, **options)
    with given.out.open("a") as file:
        file.write(json.dumps(found) + "\n")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
