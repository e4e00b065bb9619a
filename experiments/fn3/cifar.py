"""Nested channels against US-Net and slimmable networks, nested bits against AdaBits: CIFAR-10, a small VGG11.

NESTLING_DATA=folder python experiments/fn3/cifar.py speed
NESTLING_DATA=folder python experiments/fn3/cifar.py run nested 0 --out results.jsonl
python experiments/fn3/cifar.py table results.jsonl channels
"""

import argparse
import statistics
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import nestling as nl
from nestling.data import Data
from nestling.network import Nested
from nestling.prediction import ClassScores, likelihood_named
from nestling.training.kept_state import Memory
from nestling.training.loop import Loop
from nestling.training.run_batches import make_feed

sys.path.append(str(Path(__file__).parents[1]))
from rows import Row, add, changes, grouped, markdown, num_seeds, read, spread

CUTS = (0.25, 0.5, 0.75, 1.0)
WIDTH, NUM_BLOCKS, NUM_ALWAYS = 0.25, 8, 2
LR = 0.0015
"""The best of four for us_net after one epoch, by validation; nested has 0.7 points more with 0.003 after two."""
ROUNDS = 30
"""Steps of each method that ``speed`` measures, the methods taking turns."""


@dataclass(frozen=True)
class Method:
    """How a network is nested, what of the recipe is changed, and as many epochs as the same CPU time allows."""

    epochs: int
    nesting: dict[str, Any] = field(default_factory=dict)
    changes: dict[str, Any] = field(default_factory=dict)


DRAWN = {"objective": "elbo", "draws": 2, "coupled": 0.5, "sandwich": 0.2}
"""Widths drawn for parts of a batch, some of them coupled and some at the extremes."""
BITS: dict[str, Any] = {"kinds": ("bit",)}
METHODS = {
    "nested": Method(5),
    "nested downhill": Method(5, {"order": "downhill"}),
    "us_net": Method(2, changes={"objective": "us_net", "draws": 2}),
    "slimmable": Method(2, {"private": CUTS}, {"objective": "slimmable"}),
    "plain random": Method(5, changes={"objective": "slimmable", "cuts": (1.0,)}),
    **{
        f"apart {cut}": Method(epochs, changes={"objective": "slimmable", "cuts": (cut,)})
        for cut, epochs in ((0.25, 12), (0.5, 9), (0.75, 6))
    },
    "nested bits": Method(7, BITS, {"lr": "auto"}),
    "nested bits sigmoid": Method(5, BITS | {"bits": nl.Bits(how="sigmoid")}, {"lr": "auto"}),
    "adabits": Method(
        3,
        BITS | {"bits": nl.Bits(quantiser="dorefa"), "private": CUTS[1:]},
        {"objective": "slimmable", "cuts": CUTS[1:]},
    ),
}
"""A network that is trained at one width alone is a plain one of that width; ``plain random`` is cut
afterwards. Of bits, the widths are pairs of levels (``nested bits``) or bits (``adabits``)."""


class TimedLoop(Loop):
    """The loop, with the CPU time that its steps took, without validation."""

    seconds = 0.0

    def _step(self, batch: Any) -> tuple[dict[str, float], bool]:  # noqa: ANN401
        began = time.process_time()
        result = super()._step(batch)
        self.seconds += time.process_time() - began
        return result


def prepared(name: str, data: Data, seed: int, changed: dict[str, Any]) -> TimedLoop:
    """The network and the recipe of a method, ready to be trained."""
    method = METHODS[name]
    torch.manual_seed(seed)
    module = nl.models.build("vgg11", width=WIDTH)
    module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # a third faster on a CPU
    options: dict[str, Any] = {"order": "uniform", "weights": None, "num_blocks": NUM_BLOCKS, "num_always": NUM_ALWAYS}
    nested = nl.nest(module, torch.zeros(2, 3, 32, 32), **options | method.nesting)
    recipe = nl.Recipe(epochs=method.epochs, lr=LR, seed=seed, cuts=CUTS).but(**DRAWN | method.changes | changed)
    feed = make_feed(data, recipe)
    return TimedLoop(nested, feed, recipe, likelihood_named("categorical"), Memory(checkpoints=False))


def run(name: str, seed: int, changed: dict[str, Any]) -> Row:
    """Train, recalibrate at every cut, and score on the test data."""
    data = nl.data.load("cifar10", seed=seed)
    loop = prepared(name, data, seed, changed)
    loop.run(quiet=True)
    cuts = CUTS if name == "plain random" else loop.recipe.cuts
    return {
        "method": name,
        "seed": seed,
        "changes": changed,
        "epochs": loop.recipe.epochs,
        "CPU seconds": round(loop.seconds, 1),
        "kept epoch": loop.state.kept_epoch,
        "rows": {str(cut): scores_at(loop.nested, loop, data, cut) for cut in cuts},
        "log": [
            {"loss": round(line["loss"], 4)} | {cut: own["accuracy"] for cut, own in line["validation"].items()}
            for line in loop.keeper.lines
        ],
    }


def scores_at(nested: Nested, loop: Loop, data: Data, cut: float) -> dict[str, float]:
    nl.recalibrate(nested, loop.feed.recalibration, cut)
    scores = nl.evaluate(nested, data.batches("test", 500), cut=cut, samples=0)
    assert isinstance(scores, ClassScores)
    found = nl.cost(nested, cut)
    return {
        "accuracy": scores.accuracy,
        "nll": scores.nll,
        "ece": scores.ece,
        "macs": found.macs,
        "params": found.params,
        "bytes": found.bytes,
    }


def speed() -> dict[str, float]:
    """CPU seconds of an epoch of each method, from steps that they take in turns."""
    data = nl.data.load("cifar10")
    loops = {name: prepared(name, data, 0, {}) for name in METHODS}
    streams = {name: iter(loop.feed.train) for name, loop in loops.items()}
    for number in range(ROUNDS + 3):
        for name, loop in loops.items():
            loop.nested.train()
            loop._step(next(streams[name]))
            loop.state.step += 1
            if number == 2:  # what is made once is made
                loop.seconds = 0.0
    return {name: loop.seconds / ROUNDS * len(loop.feed.train) for name, loop in loops.items()}


def table(rows: list[Row], what: str) -> str:
    """A row per method: accuracy / NLL / ECE at each width, mean and spread over seeds."""
    lines = []
    of_kind = [row | {"label": _label(row)} for row in rows if ("bits" in row["method"]) == (what == "bits")]
    for label, own in grouped(of_kind, "label").items():
        cells = [_cell([row["rows"][str(cut)] for row in own if str(cut) in row["rows"]]) for cut in CUTS]
        epochs = ", ".join(str(number) for number in sorted({row["epochs"] for row in own}))
        seconds = statistics.mean(row["CPU seconds"] for row in own)
        lines.append([f"{label[0]}, {num_seeds(own)}", *cells, epochs, f"{seconds:.0f}"])
    return markdown(["", *(f"{cut:.0%}" for cut in CUTS), "epochs", "CPU seconds"], lines)


def _label(row: Row) -> str:
    """The method with what was changed of it; networks trained apart, one per width, are one row."""
    if row["method"].startswith("apart") and not row["changes"]:
        return "apart"
    return " ".join([row["method"], *(f"{name}={value}" for name, value in row["changes"].items())])


def _cell(rows: list[Row]) -> str:
    if not rows:
        return "-"
    nll, ece = (statistics.mean(row[key] for row in rows) for key in ("nll", "ece"))
    return f"{spread([100 * row['accuracy'] for row in rows], 2)} / {nll:.3f} / {100 * ece:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, dest="command")
    runs = commands.add_parser("run")
    runs.add_argument("method", choices=METHODS)
    runs.add_argument("seed", type=int)
    runs.add_argument("--out", type=Path, required=True)
    runs.add_argument("--set", nargs="*", default=[], metavar="NAME=JSON", help="entries of the recipe to change")
    commands.add_parser("speed")
    showing = commands.add_parser("table")
    showing.add_argument("path", type=Path)
    showing.add_argument("what", choices=("channels", "bits"))
    asked = parser.parse_args()
    if asked.command == "table":
        print(table(read(asked.path), asked.what))
        return
    torch.set_num_threads(1)
    if asked.command == "speed":
        for name, seconds in speed().items():
            print(f"{name}: {seconds:.1f} CPU seconds an epoch, {METHODS[name].epochs} epochs")
        return
    add(asked.out, run(asked.method, asked.seed, changes(asked.set)))


if __name__ == "__main__":
    main()
