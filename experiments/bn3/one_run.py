"""One nested run against four plain networks of 25, 50, 75 and 100 % width, trained to the accuracy of its cuts.

python experiments/bn3/one_run.py run digits 0 --out one_run.jsonl
NESTLING_DATA=folder python experiments/bn3/one_run.py run mnist 0 --out one_run.jsonl
python experiments/bn3/one_run.py table one_run.jsonl

A plain network is trained for 1, 2, 3, 5, ... epochs, each time from the start with a schedule of that length, until
its validation accuracy is that of the nested network's cut; only the run that reaches it is counted. That favours the
plain networks: nobody knows the right number of epochs beforehand.
"""

import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

import nestling as nl
from nestling.data import Data
from nestling.prediction import ClassScores

sys.path.append(str(Path(__file__).parents[1]))
from rows import Commands, Row, add, grouped, markdown

WIDTHS = (0.25, 0.5, 0.75, 1.0)
HIDDEN = {"digits": (256, 128), "mnist": (512, 128)}
SHAPES = {"digits": (1, 8, 8), "mnist": (1, 28, 28)}
NESTED_EPOCHS = {"digits": 30, "mnist": 10}
EPOCHS = (1, 2, 3, 5, 8, 12, 20, 30)
DRAWN = {"cuts": WIDTHS, "objective": "elbo", "coupled": 0.5, "sandwich": 0.2}
METHODS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "bn3": ({"num_always": 1, "weights": "gaussian"}, DRAWN | {"draws": 2}),
    "bn3_one_draw": ({"num_always": 1, "weights": "gaussian"}, DRAWN | {"draws": 1}),
    "fn3": (
        {"num_always": 1, "order": "uniform", "weights": None},
        {"cuts": WIDTHS, "objective": "elbo", "explore": 0.0, "coupled": 0.0, "draws": 1},
    ),
    "plain": (
        {"order": "full", "weights": None},
        {"cuts": (1.0,)},
    ),
}
"""How each is nested, and what its recipe says of widths."""
NESTED = tuple(name for name in METHODS if name != "plain")


def build(name: str, width: float) -> torch.nn.Module:
    hidden = [round(width * own) for own in HIDDEN[name]]
    return nl.models.build("mlp", hidden=hidden, in_features=SHAPES[name][-1] ** 2)


def accuracies(nested: nl.Nested, data: Data, part: Any, cuts: tuple[float, ...], samples: int) -> list[float]:  # noqa: ANN401
    scores = nl.evaluate(nested, list(data.batches(part, 500)), cut=cuts, samples=samples)
    return [100 * own.accuracy for own in scores if isinstance(own, ClassScores)]


def trained(name: str, seed: int, width: float, epochs: int, method: str) -> tuple[nl.Nested, Data, float]:
    """A network, its data, and the CPU seconds that its training took."""
    torch.manual_seed(seed)
    data = nl.data.load(name, seed=seed)
    options, widths = METHODS[method]
    nested = nl.nest(build(name, width), torch.zeros(2, *SHAPES[name]), num_blocks=32, **options)
    began = time.process_time()
    nl.train(nested, data, nl.Recipe(epochs=epochs, batch_size=128, seed=seed).but(**widths), quiet=True)
    return nested, data, time.process_time() - began


def plain(name: str, seed: int, width: float, target: float) -> dict[str, Any]:
    """The shortest training of a plain network whose validation accuracy is at least the target."""
    for epochs in EPOCHS:
        nested, data, seconds = trained(name, seed, width, epochs, "plain")
        (reached,) = accuracies(nested, data, "validation", (1.0,), 0)
        if reached >= target:
            break
    (test,) = accuracies(nested, data, "test", (1.0,), 0)
    return {"width": width, "epochs": epochs, "seconds": seconds, "reached": reached >= target, "test": test}


def run(name: str, seed: int, methods: Sequence[str]) -> Iterator[dict[str, Any]]:
    for method in methods:
        samples = 0 if method == "fn3" else 20
        nested, data, seconds = trained(name, seed, 1.0, NESTED_EPOCHS[name], method)
        targets = accuracies(nested, data, "validation", WIDTHS, samples)
        record = {"data": name, "seed": seed, "method": method, "epochs": NESTED_EPOCHS[name], "seconds": seconds}
        record |= {"validation": targets, "test": accuracies(nested, data, "test", WIDTHS, samples)}
        record["plain"] = [plain(name, seed, width, target) for width, target in zip(WIDTHS, targets, strict=True)]
        yield record


def table(rows: list[Row]) -> str:
    """What it cost, and below it how accurate the networks are."""
    costs, accurate = [], []
    for (name, method), runs in grouped(rows, "data", "method").items():
        ours = statistics.mean(own["seconds"] for own in runs)
        theirs = statistics.mean(sum(each["seconds"] for each in own["plain"]) for own in runs)
        epochs = ", ".join(
            "-".join(f"{each['epochs']}{'' if each['reached'] else ' (not reached)'}" for each in own["plain"])
            for own in runs
        )
        costs.append([f"{name}, {method}", f"{ours:.0f}", f"{theirs:.0f}", f"{runs[0]['epochs']}; {epochs}"])
        columns = list(zip(*(own["test"] for own in runs), strict=True))
        alone = [[each["plain"][place]["test"] for each in runs] for place in range(len(WIDTHS))]
        shown = (" / ".join(f"{statistics.mean(column):.2f}" for column in own) for own in (columns, alone))
        accurate.append([f"{name}, {method}", *shown])
    head = ["data, method", "one nested run, CPU s", "four plain networks, CPU s"]
    first = markdown([*head, "epochs: nested; plain of each width"], costs)
    return f"{first}\n\n{markdown([head[0], 'test accuracy at 25, 50, 75, 100 %: nested', 'plain'], accurate)}"


def main() -> None:
    commands = Commands(__doc__, table)
    commands.run.add_argument("data", choices=tuple(HIDDEN))
    commands.run.add_argument("seed", type=int)
    commands.run.add_argument("--methods", nargs="+", choices=NESTED, default=NESTED)
    asked = commands.asked()
    if asked is None:
        return
    torch.set_num_threads(1)
    for record in run(asked.data, asked.seed, asked.methods):
        add(asked.out, record)


if __name__ == "__main__":
    main()
