"""A pretrained sentence transformer, nested and fine-tuned on SST-2: what each width keeps, and how sure it is.

NESTLING_DATA=folder python experiments/transformers/sentences.py run model plain nested --seeds 0 --out sentences.jsonl
python experiments/transformers/sentences.py table sentences.jsonl

``model`` is the folder of a pretrained network of Hugging Face's, such as MiniLM-L6. Heads and feed-forward units are
sorted by norm, in four blocks each, of which the first is never cut. It learns 6,000 of SST-2's training phrases;
another 1,000 are for validation, and the 872 development sentences are the test. AG News is out of distribution. Each
method has as many epochs as take about the CPU time of five at full width.
"""

import argparse
import json
import statistics
import time
from collections import defaultdict
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import nestling as nl
from nestling.data import Data
from nestling.prediction import ClassScores

CUTS = (0.25, 0.5, 0.75, 1.0)
EXAMPLES, VALIDATION, FOREIGN = 6000, 1000, 2000
LENGTH, DRAWS = 64, 6


@dataclass(frozen=True)
class Method:
    """How the network is nested, what of the recipe is changed, and its epochs."""

    epochs: int
    nesting: dict[str, Any] = field(default_factory=dict)
    changes: dict[str, Any] = field(default_factory=dict)


PLAIN: dict[str, Any] = {"weights": None}
METHODS = {
    "plain": Method(5, PLAIN | {"order": "full"}, {"cuts": (1.0,)}),
    "nested": Method(3, PLAIN),
    "nested_bayesian": Method(3, {"weights": "ivon"}),
    # MatFormer's recipe: one of the fixed sizes in each step, by chance
    "matformer": Method(8, PLAIN | {"order": "uniform"}, {"objective": "elbo", "coupled": 1.0, "draws": 1}),
}


def sentences(tokenizer: Any, seed: int) -> Data:  # noqa: ANN401
    """The fixed subset, which does not depend on the seed."""
    data = nl.data.load("sst2", tokenizer=tokenizer, max_length=LENGTH, validation=VALIDATION, seed=0)
    assert data.train is not None
    return replace(data, train=data.train.drawn(EXAMPLES))


def nested_of(module: nn.Module, data: Data, **nesting: Any) -> nl.Nested:  # noqa: ANN401
    example, _ = next(iter(data.batches("train", 2)))
    return nl.nest(module, example, num_blocks=4, num_always=1, sort="norm", **nesting)


def run(model: Path, name: str, seed: int, lr: float) -> dict[str, Any]:
    """One row: the scores at each cut of a network that was trained by a method."""
    torch.manual_seed(seed)  # of the new head
    method, tokenizer = METHODS[name], AutoTokenizer.from_pretrained(model)
    data = sentences(tokenizer, seed)
    module = AutoModelForSequenceClassification.from_pretrained(model, num_labels=data.num_outputs)
    nested = nested_of(module, data, **method.nesting)
    recipe = nl.Recipe(epochs=method.epochs, seed=seed, batch_size=32, optimiser="adamw", lr=lr, cuts=CUTS)
    recipe = recipe.but(**method.changes)
    began = time.process_time()
    nl.train(nested, data, recipe, quiet=True)
    seconds = time.process_time() - began
    if name == "plain":  # cut by norm, without training at any cut
        nested = nested_of(nl.extract(nested, 1.0), data, weights=None)
    foreign = nl.data.load("ag_news", tokenizer=tokenizer, max_length=LENGTH, splits=("test",))
    samples = 0 if method.nesting["weights"] is None else DRAWS
    rows = {}
    for cut in CUTS:
        ood = foreign.batches("test", 100, limit=FOREIGN)
        found = nl.evaluate(nested, data.batches("test", 100), cut=cut, samples=samples, ood=ood)
        assert isinstance(found, ClassScores)
        figures = {"accuracy": 100 * found.accuracy, "nll": found.nll, "ece": 100 * found.ece}
        figures |= {"auroc": 100 * (found.auroc or 0.0), "macs": nl.cost(nested, cut).macs}
        rows[str(cut)] = {key: round(value, 4) for key, value in figures.items()}
    row = {"method": name, "seed": seed, "epochs": recipe.epochs, "lr": lr, "seconds": round(seconds, 1)}
    return row | {"rows": rows}


def table(path: Path) -> None:
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for line in path.read_text().splitlines():
        row = json.loads(line)
        groups[row["method"], row["epochs"], row["lr"]].append(row)
    print("| method (seeds), epochs, learning rate | 25 % | 50 % | 75 % | 100 % | CPU s |")
    print("| --- | --- | --- | --- | --- | --- |")
    for (method, epochs, lr), rows in groups.items():
        cells = []
        for cut in CUTS:
            of_cut = [row["rows"][str(cut)] for row in rows]
            means = [statistics.mean(cell[key] for cell in of_cut) for key in ("accuracy", "nll", "ece", "auroc")]
            cells.append("{:.1f} / {:.3f} / {:.1f} / {:.1f}".format(*means))
        seconds = statistics.mean(row["seconds"] for row in rows)
        print(f"| {method} ({len(rows)}), {epochs}, {lr:g} | {' | '.join(cells)} | {seconds:.0f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, dest="command")
    running = commands.add_parser("run")
    running.add_argument("model", type=Path)
    running.add_argument("methods", nargs="+", choices=tuple(METHODS))
    running.add_argument("--seeds", type=int, nargs="+", default=[0])
    running.add_argument("--lr", type=float, default=1e-4)
    running.add_argument("--out", type=Path, required=True)
    commands.add_parser("table").add_argument("path", type=Path)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    if asked.command == "table":
        table(asked.path)
        return
    made = [json.loads(line) for line in asked.out.read_text().splitlines()] if asked.out.exists() else []
    done = {(row["method"], row["seed"], row["lr"]) for row in made}
    for seed in asked.seeds:
        for name in asked.methods:
            if (name, seed, asked.lr) not in done:
                row = run(asked.model, name, seed, asked.lr)
                with asked.out.open("a") as file:
                    file.write(json.dumps(row) + "\n")
                print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
