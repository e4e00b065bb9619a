"""BN3 against FN3 on MNIST's 784-512-128-10, with KMNIST out of distribution: one JSON line per run, then the table.

NESTLING_DATA=folder python experiments/bn3/mnist.py run bn3 0 --out results.jsonl
python experiments/bn3/mnist.py table results.jsonl
"""

import sys
import time
from pathlib import Path
from typing import Any

import torch

import nestling as nl
from nestling.prediction import ClassScores

sys.path.append(str(Path(__file__).parents[1]))
from rows import Commands, Row, add, changes, grouped, markdown, num_seeds, spread

WIDTHS = (4, 6, 8, 12, 16, 24, 32)
NUM_BLOCKS, NUM_ALWAYS = 32, 4


DRAWN = {"objective": "elbo", "draws": 2, "coupled": 0.5, "sandwich": 0.2}
"""Widths drawn for parts of a batch, some of them coupled and some at the extremes."""


def recipe(seed: int, **changes: Any) -> nl.Recipe:  # noqa: ANN401
    """The defaults, with 30 epochs of batches of 256."""
    return nl.Recipe(epochs=30, batch_size=256, seed=seed, **changes)


def nested(seed: int) -> tuple[dict[str, Any], nl.Recipe]:
    """The defaults: learned orders, Bayesian weights, every width in each step."""
    return {}, recipe(seed)


def nested_plain(seed: int) -> tuple[dict[str, Any], nl.Recipe]:
    """The defaults with plain weights."""
    return {"weights": None}, recipe(seed)


def bn3(seed: int) -> tuple[dict[str, Any], nl.Recipe]:
    """BN3 with drawn widths: learned orders, Gaussian weights under a log-uniform prior."""
    return {"order": "downhill", "weights": "gaussian"}, recipe(seed, **DRAWN)


def fn3(seed: int) -> tuple[dict[str, Any], nl.Recipe]:
    """FN3 as it is published: uniform widths, drawn for each layer apart, plain weights; otherwise the same recipe."""
    return {"order": "uniform", "weights": None}, recipe(seed, objective="elbo", draws=2, coupled=0.0)


def fn3_our_draws(seed: int) -> tuple[dict[str, Any], nl.Recipe]:
    """FN3 with this library's draws of widths: some coupled, some at the extremes."""
    return {"order": "uniform", "weights": None}, recipe(seed, **DRAWN)


def plain(seed: int) -> tuple[dict[str, Any], nl.Recipe]:
    """An ordinary network, always at full width."""
    return {"order": "full", "weights": None}, recipe(seed, cuts=(1.0,))


METHODS = {method.__name__: method for method in (nested, nested_plain, bn3, fn3, fn3_our_draws, plain)}


def run(name: str, seed: int, changed: dict[str, Any]) -> Row:
    options, chosen = METHODS[name](seed)
    chosen = chosen.but(**changed)
    torch.manual_seed(seed)
    data = nl.data.load("mnist", seed=seed)
    foreign = nl.data.load("kmnist", splits=("test",)).normalised_like(data)
    network = nl.nest(
        nl.models.build("mlp"), torch.zeros(2, 1, 28, 28), num_blocks=NUM_BLOCKS, num_always=NUM_ALWAYS, **options
    )
    began = time.monotonic()
    found = nl.train(network, data, chosen, quiet=True)
    seconds = time.monotonic() - began
    cuts = [width / NUM_BLOCKS for width in (WIDTHS if name != "plain" else WIDTHS[-1:])]
    rows = {}
    for cut in cuts:
        scores = nl.evaluate(network, data.batches("test", 500), cut=cut, ood=foreign.batches("test", 500))
        assert isinstance(scores, ClassScores)
        calibration = found.calibration(cut)
        rows[str(round(cut * NUM_BLOCKS))] = {
            "accuracy": scores.accuracy,
            "nll": scores.nll,
            "ece": scores.ece,
            "aupr": scores.aupr,
            "auroc": scores.auroc,
            "temperature": None if calibration is None else calibration.temperature,
        }
    keep = {key: [round(float(k), 3) for k in order.keep_probs().detach()] for key, order in network.orders.items()}
    return {"method": name, "seed": seed, "changes": changed, "seconds": round(seconds), "rows": rows, "keep": keep}


def table(rows: list[Row]) -> str:
    lines = []
    for own in grouped(rows, "method", "changes").values():
        label = " ".join([own[0]["method"], *(f"{name}={value}" for name, value in own[0]["changes"].items())])
        cells = [_cell([row["rows"][str(width)] for row in own if str(width) in row["rows"]]) for width in WIDTHS]
        lines.append([f"{label} ({num_seeds(own)})", *cells])
    return markdown([f"blocks kept of {NUM_BLOCKS}", *map(str, WIDTHS)], lines)


def _cell(rows: list[Row]) -> str:
    figures = (("accuracy", 2), ("ece", 2), ("aupr", 1))
    return " / ".join(spread([100 * row[key] for row in rows], digits) for key, digits in figures) if rows else "-"


def main() -> None:
    commands = Commands(__doc__, table)
    commands.run.add_argument("method", choices=METHODS)
    commands.run.add_argument("seed", type=int)
    commands.run.add_argument(
        "--set", nargs="*", default=[], metavar="NAME=JSON", help="entries of the recipe to change"
    )
    asked = commands.asked()
    if asked is None:
        return
    add(asked.out, run(asked.method, asked.seed, changes(asked.set)))


if __name__ == "__main__":
    main()
