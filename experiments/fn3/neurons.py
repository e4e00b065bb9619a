"""FN3's neurons on MNIST's 784-512-128-10: accuracy against the share of neurons removed, beside plain training.

NESTLING_DATA=folder python experiments/fn3/neurons.py run fn3 0 --out results.jsonl
python experiments/fn3/neurons.py table results.jsonl
python experiments/fn3/neurons.py figure results.jsonl --out fn3.png
"""

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

import nestling as nl
from nestling.network import Cut, Nested
from nestling.prediction import ClassScores

sys.path.append(str(Path(__file__).parents[1]))
from rows import Row, add, grouped, markdown, num_seeds, read, spread

NUM_BLOCKS, NUM_ALWAYS = 32, 4
SHARES = (0.25, 0.5, 0.65, 0.75, 0.85)
METHODS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "fn3": ({"order": "uniform", "weights": None}, {"coupled": 0.0, "sandwich": 0.0}, "beam"),
    "fn3 dynamic": ({"order": "uniform", "weights": None}, {"coupled": 0.0, "sandwich": 0.0}, "dynamic"),
    "fn3 our draws": ({"order": "uniform", "weights": None}, {}, "beam"),
    "plain random": ({"order": "full", "weights": None}, {"coupled": 0.0, "sandwich": 0.0, "explore": 0.0}, "random"),
}
"""How each is nested, what of the recipe it changes, and how its cuts are chosen."""


def run(method: str, seed: int, epochs: int) -> dict[str, Any]:
    """Train, search on the validation data, and score what was found on the test data."""
    nesting, changes, strategy = METHODS[method]
    data = nl.data.load("mnist")
    torch.manual_seed(seed)
    module = nl.models.build("mlp", hidden=[512, 128], in_features=784, num_classes=10)
    nested = nl.nest(module, torch.zeros(2, 1, 28, 28), num_blocks=NUM_BLOCKS, num_always=NUM_ALWAYS, **nesting)
    recipe = nl.Recipe(epochs=epochs, batch_size=256, seed=seed, objective="elbo", draws=2).but(**changes)
    start = time.perf_counter()
    nl.train(nested, data, recipe, quiet=True)
    trained = time.perf_counter() - start
    start = time.perf_counter()
    curve = nl.search(
        nested,
        data.batches("validation", 1000),
        cost=lambda own, cut: float(num_neurons(own, cut)),
        strategy=strategy,
        num_points=60,
        seed=seed,
    )
    searched = time.perf_counter() - start
    test, points = data.batches("test", 1000), []
    for row in curve.rows:
        scores = nl.evaluate(nested, test, cut=row.cut, samples=0)
        assert isinstance(scores, ClassScores)
        points.append([1 - num_neurons(nested, row.cut) / 640, 100 * scores.accuracy])
    return {
        "method": method,
        "seed": seed,
        "points": points,
        "evaluations": curve.num_evaluations,
        "seconds to train": round(trained),
        "seconds to search": round(searched, 1),
    }


def num_neurons(nested: Nested, cut: Cut) -> int:
    """How many hidden neurons a cut keeps."""
    return sum(group.units(cut[group.name]) for group in nested.groups.free)


def at_share(line: dict[str, Any], share: float) -> float:
    """The accuracy of the largest network with at least such a share of its neurons removed."""
    fitting = [point for point in line["points"] if point[0] >= share - 1e-9]
    return float(min(fitting)[1])


def table(rows: list[Row]) -> str:
    """A row per method: mean and spread over seeds of the test accuracy, by the share of neurons removed."""
    lines = []
    for (method,), own in grouped(rows, "method").items():
        cells = [spread([at_share(row, share) for row in own], 2) for share in (0.0, *SHARES)]
        scored = statistics.mean(row["evaluations"] for row in own)
        lines.append([f"{method}, {num_seeds(own)}", *cells, f"{scored:.0f}"])
    return markdown(["", "whole", *(f"{share:.0%} removed" for share in SHARES), "cuts scored"], lines)


def figure(lines: list[dict[str, Any]], path: Path) -> None:
    """Accuracy against the share removed, a line for each run."""
    picture = Figure(figsize=(6.4, 4.2), layout="constrained")
    FigureCanvasAgg(picture)
    axes = picture.subplots()
    colours = dict(zip(METHODS, ("#1b6ca8", "#3c8d5a", "#8a5aa8", "#d1495b"), strict=True))
    for method, colour in colours.items():
        for number, line in enumerate(own for own in lines if own["method"] == method):
            removed, accuracy = zip(*sorted(line["points"]), strict=True)
            share = [100 * own for own in removed]
            axes.plot(share, accuracy, color=colour, linewidth=1.3, label=method if not number else None)
    axes.set_xlabel("neurons removed, percent")
    axes.set_ylabel("test accuracy, percent")
    axes.set_ylim(bottom=80)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    picture.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("run")
    one.add_argument("method", choices=METHODS)
    one.add_argument("seed", type=int)
    one.add_argument("--epochs", type=int, default=30)
    one.add_argument("--out", type=Path, required=True)
    for name in ("table", "figure"):
        shown = commands.add_parser(name)
        shown.add_argument("results", type=Path)
        if name == "figure":
            shown.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    if given.command == "run":
        torch.set_num_threads(1)
        add(given.out, run(given.method, given.seed, given.epochs))
        return
    lines = read(given.results)
    if given.command == "table":
        print(table(lines))
    else:
        figure(lines, given.out)


if __name__ == "__main__":
    main()
