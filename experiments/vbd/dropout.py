"""VBD's dropout table: MNIST with three hidden layers of one width, seven regularisers: one JSON line a run; the table.

NESTLING_DATA=folder python experiments/vbd/dropout.py run vbd 340 0 --out dropout.jsonl
python experiments/vbd/dropout.py table dropout.jsonl
"""

import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import torch

import nestling as nl
from nestling.distributions.gates import ConcreteGate, Gate, GaussianGate, gates_of
from nestling.prediction import ClassScores
from nestling.pruning.regularisers import Regulariser, regularised, regulariser_recipe

sys.path.append(str(Path(__file__).parents[1]))
from rows import Commands, Row, add, each, grouped, markdown, spread

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


def recipe(
    seed: int,
    epochs: int,
    noise_lr: float,
    kappa: float,
    precision: Any,  # noqa: ANN401
    schedule: Any,  # noqa: ANN401
) -> nl.Recipe:
    """The paper's 50 epochs of batches of 1,000 with Adam at 1e-3; kappa is for a learned noise, 1 the bound."""
    own = nl.Recipe(epochs=epochs, batch_size=1000, seed=seed, lr=1e-3, lr_warm_up=0.0, keep="last")
    return own.but(order_lr=noise_lr, kappa=kappa, kl_warm_up=0.0, precision=precision, schedule=schedule)


def run(name: Any, width: int, seed: int, **options: Any) -> dict[str, Any]:  # noqa: ANN401
    torch.manual_seed(seed)
    data = replace(nl.data.load("mnist", seed=seed), mean=(0.0,), std=(1.0,))
    network = nl.models.build("mlp", hidden=[width] * 3)
    nested = regularised(network, torch.zeros(2, 1, 28, 28), name)
    began = time.process_time()
    nl.train(nested, data, regulariser_recipe(name, recipe(seed, **options)), quiet=True)
    found = {"name": name, "width": width, "seed": seed, **options, "CPU seconds": round(time.process_time() - began)}
    for split, key in (("test", "error"), ("validation", "validation_error")):
        scores = nl.evaluate(nested, list(data.batches(split, 1000)), samples=0)
        assert isinstance(scores, ClassScores)
        found[key] = round(100 * (1 - scores.accuracy), 2)
    return found | {"noise": [round(own, 2) for gate in gates_of(nested).values() for own in learned_noise(gate)]}


def learned_noise(gate: Gate) -> list[float]:
    """The median log alpha of a layer's units, or the logit of its drop rate; nothing for noise that is given."""
    if isinstance(gate, GaussianGate):
        return [float(gate.posterior.bounded_log_alpha().detach().median())]
    return [float(gate.drop_logit.detach())] if isinstance(gate, ConcreteGate) else []


def table(rows: list[Row]) -> str:
    lines = []
    rows = sorted(rows, key=lambda row: (row["width"], row.get("schedule", "cosine") != "cosine", _place(row)))
    whole = [row | {"schedule": row.get("schedule", "cosine")} for row in rows]
    for (width, schedule, epochs, name), own in grouped(whole, "width", "schedule", "epochs", "name").items():
        errors = [row["error"] for row in sorted(own, key=lambda row: row["seed"])]
        paper, about = PAPER[name][WIDTHS.index(width)], f"{epochs} epochs, {schedule}, {own[0]['precision']}"
        found = [f"{paper:.2f}", spread(errors, 2), each(errors, 2), about, each(own[0]["noise"], 2)]
        lines.append([str(width), name, *found])
    head = ["width", "method", "paper, error %", "ours, mean", "each seed", "training", "learned noise, one seed"]
    return markdown(head, lines)


def _place(row: Row) -> int:
    return list(PAPER).index(row["name"])


def main() -> None:
    commands = Commands(__doc__, table)
    commands.run.add_argument("name", choices=get_args(Regulariser))
    commands.run.add_argument("width", type=int, choices=WIDTHS)
    commands.run.add_argument("seed", type=int)
    commands.run.add_argument("--epochs", type=int, default=50)
    commands.run.add_argument("--noise-lr", type=float, default=1e-2, help="learning rate of a learned noise")
    commands.run.add_argument("--kappa", type=float, default=1.0, help="weight of a learned noise's divergence")
    commands.run.add_argument("--precision", choices=("float32", "bfloat16"), default="float32", help="of training")
    commands.run.add_argument(
        "--schedule", choices=("cosine", "constant"), default="cosine", help="of the learning rate"
    )
    given = commands.asked()
    if given is None:
        return
    torch.set_num_threads(1)
    options = {
        "epochs": given.epochs,
        "noise_lr": given.noise_lr,
        "kappa": given.kappa,
        "precision": given.precision,
        "schedule": given.schedule,
    }
    add(given.out, run(given.name, given.width, given.seed, **options))


if __name__ == "__main__":
    main()
