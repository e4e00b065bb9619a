"""Every width of one nested network against a network trained alone for it: CIFAR-10, SVHN out of distribution.

NESTLING_DATA=folder python experiments/bn3/widths.py run alone nested_plain nested --seeds 0 1 2 --out widths.jsonl
python experiments/bn3/widths.py table widths.jsonl
NESTLING_DATA=folder python experiments/bn3/widths.py cost nested_plain nested --out cost.jsonl

Each row is one training run; rows that the file has already are not made again. CPU seconds are those of training, with
its validation, on one thread. They are comparable only between runs of one machine; ``cost`` says what a run of each
method takes beside the four networks trained alone, all on the machine that it runs on.
"""

import argparse
import json
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

import nestling as nl
from nestling.data import Data
from nestling.prediction import ClassScores
from nestling.training.run_batches import make_feed

WIDTHS = (0.25, 0.5, 0.75, 1.0)
BETWEEN = tuple(number / 16 for number in (5, 6, 7, 9, 10, 11, 13, 14, 15))
"""The uniform widths of 16 blocks that lie between the four."""
SEARCHED = (6 / 16, 10 / 16, 14 / 16)
"""Uniform widths whose multiply-adds are the budgets of searched cuts."""
NETWORKS: dict[str, dict[str, Any]] = {
    "vgg11": {"width": 0.25},
    "mobilenet_v2": {"width": 0.25},
    "resnext_cifar": {"width": 0.125, "base_width": 32, "stream": 0.25},  # 8 paths of 4 to 16 channels
}
DRAWS = 6


@dataclass(frozen=True)
class Method:
    """How a network is nested, what of the default recipe is changed, and how many epochs stand for 12 plain ones."""

    nesting: dict[str, Any] = field(default_factory=dict)
    changes: dict[str, Any] = field(default_factory=dict)
    epochs: float = 1.0

    def recipe(self, **options: Any) -> nl.Recipe:  # noqa: ANN401
        """Its recipe, for the four widths unless it has others."""
        return nl.Recipe().but(**{"cuts": WIDTHS} | options | self.changes)


DRAWN = {"objective": "elbo", "explore": 0.5, "coupled": 0.5, "sandwich": 0.2, "draws": 2}
PLAIN: dict[str, Any] = {"weights": None}
METHODS = {
    "alone": Method(PLAIN | {"order": "full"}, {"cuts": (1.0,)}),
    "alone_bayesian": Method({"weights": "ivon", "order": "full"}, {"cuts": (1.0,)}),
    "nested_plain": Method(PLAIN, {"anchors": 1}, epochs=1.35),
    "nested_plain_two": Method(PLAIN, {"anchors": 2}, epochs=1.2),
    "nested_plain_uniform": Method(PLAIN | {"order": "uniform"}, epochs=1.35),
    "nested": Method({"weights": "ivon"}, epochs=1.4),
    "nested_log_uniform": Method({"weights": "gaussian"}, {"kappa": 0.001}, epochs=1.2),
    "fn3": Method(
        PLAIN | {"order": "uniform"}, DRAWN | {"coupled": 0.0, "sandwich": 0.0, "explore": 0.0, "draws": 1}, epochs=2.4
    ),
    "bn3_drawn": Method({"weights": "gaussian"}, DRAWN),
    "us_net": Method(PLAIN, {"objective": "us_net"}, epochs=1.2),
    "slimmable": Method(PLAIN, {"objective": "slimmable"}),
}


def module_of(network: str, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    module = nl.models.build(network, **NETWORKS[network])
    return module.to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]  # faster on a CPU


def nested_of(module: nn.Module, **options: Any) -> nl.Nested:  # noqa: ANN401
    return nl.nest(module, torch.zeros(2, 3, 32, 32), num_blocks=16, num_always=2, **options)


def alone_at(network: str, seed: int, width: float) -> nn.Module:
    """A fresh plain network with just the sizes that the nested one has at a width."""
    small = nl.extract(nested_of(module_of(network, seed), weights=None), width)
    torch.manual_seed(seed)
    for part in small.modules():
        if callable(reset := getattr(part, "reset_parameters", None)):
            reset()
    small.train().requires_grad_(True)
    return small.to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


def run(network: str, name: str, seed: int, epochs: int, width: float | None, precision: str) -> dict[str, Any]:
    """One row: a method trained on all widths, or a network trained alone at one."""
    method, data = METHODS[name], nl.data.load("cifar10", seed=seed)
    module = module_of(network, seed) if width is None else alone_at(network, seed, width)
    nested = nested_of(module, **method.nesting)
    recipe = method.recipe(seed=seed, precision=precision, epochs=max(1, round(epochs * method.epochs)))
    began = time.process_time()
    trained = nl.train(nested, data, recipe, quiet=True)
    seconds = time.process_time() - began
    samples = 0 if method.nesting.get("weights") is None else DRAWS
    cuts = WIDTHS + BETWEEN if width is None else (1.0,)
    rows = {str(cut if width is None else width): scores(nested, data, recipe, cut, samples) for cut in cuts}
    row = {"network": network, "method": name, "seed": seed, "budget": epochs, "width": width, "precision": precision}
    row |= {"epochs": recipe.epochs, "seconds": round(seconds, 1), "rows": rows}
    row["validation"] = {cut: own["accuracy"] for cut, own in trained.log[-1]["validation"].items()}
    if width is None:
        row["orders"] = {group: round(float(own.expected_width().detach()), 2) for group, own in nested.orders.items()}
        row["searched"] = searched(nested, data, recipe, samples)
    return row


def scores(nested: nl.Nested, data: Data, recipe: nl.Recipe, cut: Any, samples: int) -> dict[str, float]:  # noqa: ANN401
    """Figures on the test images at a cut whose norms are recalibrated first, as the network answers by itself."""
    nl.recalibrate(nested, make_feed(data, recipe).recalibration, cut)
    foreign = nl.data.load("svhn", splits=("test",)).normalised_like(data).batches("test", 500)
    found = nl.evaluate(nested, data.batches("test", 500), cut=cut, samples=samples, ood=foreign)
    return figures_of(found) | {"macs": nl.cost(nested, cut).macs}


def figures_of(found: nl.Scores) -> dict[str, float]:
    """Accuracy, NLL, ECE, AUPR and AUROC, all but the second in percent."""
    assert isinstance(found, ClassScores)
    figures = {"accuracy": 100 * found.accuracy, "nll": found.nll, "ece": 100 * found.ece}
    figures |= {"aupr": 100 * (found.aupr or 0.0), "auroc": 100 * (found.auroc or 0.0)}
    return {name: round(value, 4) for name, value in figures.items()}


def searched(nested: nl.Nested, data: Data, recipe: nl.Recipe, samples: int) -> list[dict[str, float]]:
    """Scores of the cuts that a search finds within the multiply-adds of three uniform widths."""
    feed = make_feed(data, recipe)
    curve = nl.search(nested, list(data.batches("validation", 500))[:4], recalibration=feed.recalibration)
    budgets = [nl.cost(nested, cut).macs for cut in SEARCHED]
    return [scores(nested, data, recipe, curve.under(macs=budget), samples) for budget in budgets]


def runs(asked: argparse.Namespace) -> Iterator[tuple[str, int, float | None]]:
    for seed in asked.seeds:
        for name in asked.methods:
            for width in WIDTHS if name.startswith("alone") else (None,):
                yield name, seed, width


def cost(network: str, methods: Sequence[str], epochs: int, precision: str) -> dict[str, Any]:
    """CPU seconds of a whole run of each method, and of the four networks trained alone for ``epochs`` epochs.

    They are worked out from runs of one and of two epochs, since the beginning and the end of a run cost as much
    whatever its length.
    """
    data = nl.data.load("cifar10", seed=0)
    parts = {f"alone {width}": ("alone", width) for width in WIDTHS} | {name: (name, None) for name in methods}
    seconds = {}
    for label, (name, width) in parts.items():
        one, two = (_seconds(network, METHODS[name], width, number, data, precision) for number in (1, 2))
        seconds[label] = one + (max(1, round(epochs * METHODS[name].epochs)) - 1) * (two - one)
    alone = sum(seconds[f"alone {width}"] for width in WIDTHS)
    ratios = {name: round(seconds[name] / alone, 3) for name in methods}
    rounded = {label: round(value, 1) for label, value in seconds.items()}
    about = {"network": network, "precision": precision, "budget": epochs}
    return about | {"seconds": rounded, "alone": round(alone, 1), "of four alone": ratios}


def _seconds(network: str, method: Method, width: float | None, epochs: int, data: Data, precision: str) -> float:
    """CPU seconds of one run."""
    module = module_of(network, 0) if width is None else alone_at(network, 0, width)
    nested = nested_of(module, **method.nesting)
    began = time.process_time()
    nl.train(nested, data, method.recipe(epochs=epochs, precision=precision), quiet=True)
    return time.process_time() - began


def done(path: Path) -> set[tuple[Any, ...]]:
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return {tuple(row[key] for key in ("network", "method", "seed", "budget", "width", "precision")) for row in rows}


def table(path: Path) -> None:
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for line in path.read_text().splitlines():
        row = json.loads(line)
        groups[row["network"], row["budget"], row["precision"], row["method"]].append(row)
    print("| network, budget | method (seeds) | 25 % | 50 % | 75 % | 100 % | holes | CPU s |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for (network, budget, precision, method), rows in groups.items():
        seeds = {row["seed"] for row in rows}
        cells = [_cell([row["rows"][str(width)] for row in rows if str(width) in row["rows"]]) for width in WIDTHS]
        whole = [row for row in rows if row["width"] is None]
        seconds = sum(row["seconds"] for row in rows) / len(seeds)
        gap = _holes(whole) if whole else "-"
        about = f"{network}, {budget} epochs, {precision}"
        print(f"| {about} | {method} ({len(seeds)}) | {' | '.join(cells)} | {gap} | {seconds:.0f} |")


def _cell(found: Sequence[dict[str, float]]) -> str:
    """Accuracy, NLL, ECE, AUPR and AUROC: mean over seeds, with the spread of accuracy."""
    if not found:
        return "-"
    columns = {key: [row[key] for row in found] for key in ("accuracy", "nll", "ece", "aupr", "auroc")}
    means = {key: statistics.mean(values) for key, values in columns.items()}
    spread = f" ±{statistics.stdev(columns['accuracy']):.1f}" if len(found) > 1 else ""
    return (
        f"{means['accuracy']:.1f}{spread} / {means['nll']:.3f} / {means['ece']:.1f}"
        f" / {means['aupr']:.1f} / {means['auroc']:.1f}"
    )


def _holes(whole: Sequence[dict[str, Any]]) -> str:
    """How far accuracy is below the line between its neighbours of the table, at the worst width between them.

    Three figures: at a uniform width, of the mean over seeds and of any seed; and at a searched cut of any seed.
    Uniform widths lie on the axis of widths, searched ones on that of multiply-adds.
    """
    seeds = [[_uniform_gap(row["rows"], width) for width in BETWEEN] for row in whole]
    mean = max(statistics.mean(gaps) for gaps in zip(*seeds, strict=True))
    searched = max((_searched_gap(row["rows"], cell) for row in whole for cell in row["searched"]), default=0.0)
    return f"{mean:.1f} / {max(map(max, seeds)):.1f} / {searched:.1f}"


def _uniform_gap(known: dict[str, Any], width: float) -> float:
    (low, left), (high, right) = _around([(own, known[str(own)]) for own in WIDTHS], width)
    return _below(width, low, high, left, right, known[str(width)])


def _searched_gap(known: dict[str, Any], cell: dict[str, float]) -> float:
    by_cost = [(known[str(width)]["macs"], known[str(width)]) for width in WIDTHS]
    (low, left), (high, right) = _around(by_cost, min(cell["macs"], by_cost[-1][0]))
    return _below(cell["macs"], low, high, left, right, cell)


def _around(places: Sequence[tuple[float, dict[str, float]]], place: float) -> tuple[Any, Any]:
    number = next((n for n, own in enumerate(places) if own[0] >= place), len(places) - 1)
    return places[max(0, number - 1)], places[max(1, number)]


def _below(
    place: float, low: float, high: float, left: dict[str, float], right: dict[str, float], here: dict[str, float]
) -> float:
    share = (place - low) / (high - low)
    return (1 - share) * left["accuracy"] + share * right["accuracy"] - here["accuracy"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, dest="command")
    running, costing = commands.add_parser("run"), commands.add_parser("cost")
    for each in (running, costing):
        each.add_argument("methods", nargs="+", choices=tuple(METHODS))
        each.add_argument("--network", choices=tuple(NETWORKS), default="vgg11")
        each.add_argument("--precision", choices=("float32", "bfloat16"), default="float32")
        each.add_argument("--epochs", type=int, default=12, help="epochs of a network trained alone")
        each.add_argument("--out", type=Path, required=True)
    running.add_argument("--seeds", type=int, nargs="+", default=[0])
    commands.add_parser("table").add_argument("path", type=Path)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    if asked.command == "table":
        table(asked.path)
        return
    if asked.command == "cost":
        write(asked.out, cost(asked.network, asked.methods, asked.epochs, asked.precision))
        return
    for name, seed, width in runs(asked):
        if (asked.network, name, seed, asked.epochs, width, asked.precision) in done(asked.out):
            continue
        write(asked.out, run(asked.network, name, seed, asked.epochs, width, asked.precision))


def write(path: Path, row: dict[str, Any]) -> None:
    with path.open("a") as file:
        file.write(json.dumps(row) + "\n")
    print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
