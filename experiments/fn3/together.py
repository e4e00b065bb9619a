"""Channels and bits nested together, with one search over both: accuracy by bytes, beside either of them alone.

NESTLING_DATA=folder python experiments/fn3/together.py run units bits both --out together.jsonl
python experiments/fn3/together.py table together.jsonl

FN3 names this as future work. LeNet-5-Caffe on 20,000 MNIST images; widths are uniform. ``units`` are channels and
neurons with weights of 32 bits, ``bits`` is the whole network with weights of 2 to 4 bits, and ``both`` has both. The
search has 1,000 validation images; budgets are shares of the bytes of the whole network in 32 bits.
"""

import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import nestling as nl
from nestling.prediction import ClassScores
from nestling.reading import Kind

sys.path.append(str(Path(__file__).parents[1]))
from rows import Commands, Row, add, grouped, made, markdown, num_seeds, spread

TRAINED, SEARCHED, TESTED = 20_000, 1_000, 10_000
BUDGETS = (1.0, 0.25, 0.12, 0.08, 0.05, 0.03, 0.02)
KINDS: dict[str, tuple[Kind, ...]] = {
    "units": ("channel", "neuron"),
    "bits": ("bit",),
    "both": ("channel", "neuron", "bit"),
}
DRAWN = {"objective": "elbo", "draws": 2, "coupled": 0.5, "sandwich": 0.2}


def run(kind: str, seed: int, epochs: int) -> Row:
    torch.manual_seed(seed)
    data = nl.data.load("mnist", seed=seed, validation=SEARCHED)
    data = replace(data, train=data.split("train").drawn(TRAINED), test=data.split("test").drawn(TESTED))
    options: dict[str, Any] = {"order": "uniform", "weights": None, "num_blocks": 10, "num_always": 2}
    module = nl.models.build("lenet_5_caffe")
    module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # faster on a CPU
    nested = nl.nest(module, torch.zeros(2, 1, 28, 28), kinds=KINDS[kind], **options)
    whole = nl.cost(nl.nest(module, torch.zeros(2, 1, 28, 28), weights=None), 1.0).bytes
    began = time.process_time()
    nl.train(nested, data, nl.Recipe(epochs=epochs, seed=seed, cuts=(0.5, 1.0)).but(**DRAWN), quiet=True)
    trained = time.process_time() - began
    batches = list(data.batches("validation", 500))
    curve = nl.search(nested, batches, cost="bytes", strategy="dynamic", num_points=20, seed=seed, quiet=True)
    points = []
    for row in curve.rows:
        scores = nl.evaluate(nested, data.batches("test", 500), cut=row.cut, samples=0)
        assert isinstance(scores, ClassScores)
        own = {"bytes": row.bytes, "validation": 100 * row.score, "accuracy": 100 * scores.accuracy}
        points.append(own | {"cut": row.cut.as_dict()})
    about = {"kind": kind, "seed": seed, "epochs": epochs, "whole": whole, "cuts scored": curve.num_evaluations}
    seconds = {
        "CPU seconds": round(trained, 1),
        "CPU seconds to search": round(time.process_time() - began - trained, 1),
    }
    return about | seconds | {"points": points}


def under(row: Row, share: float) -> dict[str, Any] | None:
    """The point that validated best within a share of the whole network's bytes."""
    fitting = [point for point in row["points"] if point["bytes"] <= share * row["whole"]]
    return max(fitting, key=lambda point: point["validation"], default=None)


def table(rows: list[Row]) -> str:
    """Test accuracy of the network that validates best within each budget."""
    lines = []
    for (kind, epochs), own in grouped(rows, "kind", "epochs").items():
        cells = []
        for share in BUDGETS:
            found = [point["accuracy"] for row in own if (point := under(row, share)) is not None]
            cells.append(spread(found, 2) if len(found) == len(own) else "-")
        seconds = statistics.mean(row["CPU seconds"] + row["CPU seconds to search"] for row in own)
        scored = statistics.mean(row["cuts scored"] for row in own)
        lines.append([f"{kind}, {num_seeds(own)}, {epochs} epochs", *cells, f"{scored:.0f}", f"{seconds:.0f}"])
    head = ["within so many of the bytes", *(f"{share:.0%}" for share in BUDGETS), "cuts scored", "CPU s"]
    return markdown(head, lines)


def main() -> None:
    commands = Commands(__doc__, table)
    commands.run.add_argument("kinds", nargs="+", choices=tuple(KINDS))
    commands.run.add_argument("--seeds", type=int, nargs="+", default=[0])
    commands.run.add_argument("--epochs", type=int, default=6)
    asked = commands.asked()
    if asked is None:
        return
    torch.set_num_threads(1)
    for seed in asked.seeds:
        for kind in asked.kinds:
            if not made(asked.out, kind=kind, seed=seed, epochs=asked.epochs):
                add(asked.out, run(kind, seed, asked.epochs))


if __name__ == "__main__":
    main()
