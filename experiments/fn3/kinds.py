"""FN3's layers, paths, channels and bits on the papers' networks, scaled down: CIFAR-10, trained, searched, extracted.

NESTLING_DATA=folder python experiments/fn3/kinds.py run path 0 --out results.jsonl
python experiments/fn3/kinds.py table results.jsonl
"""

import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

import nestling as nl
from nestling.data import Data
from nestling.network import Cut, Nested
from nestling.prediction import ClassScores

sys.path.append(str(Path(__file__).parents[1]))
from rows import Commands, Row, add, markdown, num_seeds, spread

SHARES = (0.25, 0.5, 0.65, 0.8)
TRAINED, SEARCHED, TESTED = 20_000, 500, 5_000
"""Images to train on, those of the training data that are kept away from it for the search, and test images."""
NUM_KEPT, NUM_CANDIDATES, WINDOW = 3, 10, 0.125


@dataclass(frozen=True)
class Experiment:
    """A network of FN3's, how much smaller it is here, how it is nested, and how its blocks are removed."""

    model: str
    options: dict[str, Any]
    nesting: dict[str, Any]
    strategy: str = "beam"
    searching: dict[str, Any] = field(default_factory=dict)


_BEAM = {"num_kept": NUM_KEPT, "num_candidates": NUM_CANDIDATES, "window": WINDOW}
_RESNEXT = {"base_width": 2, "stream": 0.125}
_MOBILENET = {"width": 0.25}
EXPERIMENTS = {
    "layer": Experiment(
        "resnext_cifar", _RESNEXT, {"kinds": ("layer",), "num_blocks": 9, "num_always": 1}, strategy="greedy"
    ),
    "path": Experiment(
        "resnext_cifar", _RESNEXT, {"kinds": ("path",), "num_blocks": 8, "num_always": 1}, searching=_BEAM
    ),
    "channel": Experiment(
        "mobilenet_v2", _MOBILENET, {"kinds": ("channel",), "num_blocks": 8, "num_always": 3}, strategy="dynamic"
    ),
    "bit": Experiment("mobilenet_v2", _MOBILENET, {"kinds": ("bit",), "bits": nl.Bits(num_groups=7)}, searching=_BEAM),
    "channel and bit": Experiment(
        "mobilenet_v2",
        _MOBILENET,
        {"kinds": ("channel", "bit"), "num_blocks": 8, "num_always": 3, "bits": nl.Bits(num_groups=7)},
        strategy="dynamic",
    ),
}


def run(kind: str, seed: int, epochs: int) -> dict[str, Any]:
    """Train, search on training images that were kept away, and score what was found on the test data."""
    asked = EXPERIMENTS[kind]
    data = images(seed)
    torch.manual_seed(seed)
    module = nl.models.build(asked.model, **asked.options)
    module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    nested = nl.nest(module, torch.zeros(2, 3, 32, 32), order="uniform", weights=None, **asked.nesting)
    start = time.process_time()
    trained = nl.train(
        nested,
        data,
        nl.Recipe(epochs=epochs, seed=seed, cuts=(0.5, 1.0), objective="elbo", draws=2, coupled=0.5, sandwich=0.2),
        quiet=True,
    )
    training = time.process_time() - start
    start = time.process_time()
    batches = data.batches("validation", 500)
    more: dict[str, Any] = {"strategy": asked.strategy, **asked.searching}
    curve = nl.search(nested, batches, cost="bytes", num_points=12, seed=seed, quiet=True, **more)
    searching = time.process_time() - start
    rows = {share: scored(nested, data, best_without(nested, curve, share)) for share in (0.0, *SHARES)}
    smallest = curve.rows[0]
    with tempfile.TemporaryDirectory() as folder:  # what a user would take away
        nl.save(nested, folder)
        small = nl.extract(nl.load(folder), smallest.cut)
    return {
        "kind": kind,
        "seed": seed,
        "epochs": epochs,
        "blocks that can go": removable(nested),
        "cuts scored": curve.num_evaluations,
        "CPU seconds to train": round(training),
        "CPU seconds to search": round(searching),
        "kept epoch": max((line["epoch"] for line in trained.log if line["kept"]), default=0),
        "rows": {str(share): row for share, row in rows.items()},
        "smallest": {"bytes": smallest.bytes, "params": sum(p.numel() for p in small.parameters())},
        "by removed": curve.by_removed(),
    }


def images(seed: int) -> Data:
    """CIFAR-10, less of it: what a core trains and scores in minutes."""
    data = nl.data.load("cifar10", validation=SEARCHED, seed=seed)
    train, test = (data.split(name).subset(torch.arange(n)) for name, n in (("train", TRAINED), ("test", TESTED)))
    return replace(data, train=train, test=test)


def removable(nested: Nested) -> int:
    """How many blocks a search can remove."""
    return sum(group.num_blocks - group.num_always for group in nested.groups.free)


def removed(nested: Nested, cut: Cut) -> float:
    """The share of those that a cut lacks."""
    return sum(group.num_blocks - cut[group.name] for group in nested.groups.free) / removable(nested)


def best_without(nested: Nested, curve: nl.Curve, share: float) -> Cut:
    """The best cut that was scored with such a share of the blocks removed, or as little more as there is."""
    lacking = {own.cut: removed(nested, own.cut) for own in curve.tried}
    least = min(own for own in lacking.values() if own >= share - 1e-9)
    return max((own for own in curve.tried if lacking[own.cut] == least), key=lambda own: own.quality).cut


def scored(nested: Nested, data: Data, cut: Cut) -> dict[str, float]:
    """Test accuracy with norms recalibrated, and what the network of a cut costs."""
    nl.recalibrate(nested, data.batches("train", 128, shuffle=True), cut, num_batches=8)
    scores = nl.evaluate(nested, data.batches("test", 500), cut=cut, samples=0)
    assert isinstance(scores, ClassScores)
    found = nl.cost(nested, cut)
    return {"accuracy": 100 * scores.accuracy, "bytes": found.bytes, "macs": found.macs}


def table(rows: list[Row]) -> str:
    """A row per kind: test accuracy, and bytes as a share of the whole network's, by the share of blocks removed."""
    lines = []
    for kind, asked in EXPERIMENTS.items():
        own = [row for row in rows if row["kind"] == kind]
        if own:
            cells = [_cell([row["rows"] for row in own], str(share)) for share in (0.0, *SHARES)]
            options = ", ".join(f"{name} {value}" for name, value in asked.options.items())
            about = [f"{kind}, {num_seeds(own)}", f"{asked.model} ({options})", str(own[0]["blocks that can go"])]
            lines.append([*about, *cells, f"{statistics.mean(row['cuts scored'] for row in own):.0f}"])
    return markdown(["", "network", "blocks", "whole", *(f"{s:.0%} removed" for s in SHARES), "cuts scored"], lines)


def _cell(rows: list[Row], share: str) -> str:
    size = statistics.mean(row[share]["bytes"] / row["0.0"]["bytes"] for row in rows)
    return f"{spread([row[share]['accuracy'] for row in rows], 1)} ({size:.0%})"


def main() -> None:
    commands = Commands(__doc__, table)
    commands.run.add_argument("kind", choices=EXPERIMENTS)
    commands.run.add_argument("seed", type=int)
    commands.run.add_argument("--epochs", type=int, default=6)
    given = commands.asked()
    if given is None:
        return
    torch.set_num_threads(1)
    add(given.out, run(given.kind, given.seed, given.epochs))


if __name__ == "__main__":
    main()
