"""The one-pass distribution beside 100 samples of a network trained here: accuracy, ECE, AUPR against other images.

Draws are made in several sets, since two sets of 100 draws differ too; the first of them sees
out-of-distribution images as well.

NESTLING_DATA=folder python experiments/bn3/one_pass.py run lenet_300_100 0 --out one_pass.jsonl
NESTLING_DATA=folder python experiments/bn3/one_pass.py run vgg11 0 --epochs 30 --out one_pass.jsonl
python experiments/bn3/one_pass.py table one_pass.jsonl
"""

import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch

import nestling as nl
from nestling.prediction import ClassScores
from nestling.prediction.forward_passes import By, passes
from nestling.prediction.likelihoods import Categorical

sys.path.append(str(Path(__file__).parents[1]))
from rows import Commands, Row, add, grouped, markdown

CUTS = (0.25, 0.5, 1.0)
SAMPLES, BATCH = 100, 250
NETWORKS: dict[str, dict[str, Any]] = {
    "lenet_300_100": {"data": "mnist", "ood": "fashion_mnist"},
    "lenet_5_caffe": {"data": "mnist", "ood": "fashion_mnist"},
    "vgg11": {"data": "cifar10", "ood": "svhn", "width": 0.25},
}
"""What each is trained on, what it is shown that it does not know, and its size."""


def run(
    network: str,
    seed: int,
    epochs: int,
    images: int,
    precision: Any,  # noqa: ANN401
    folder: Path | None,
    ways: Sequence[By],
    sets: int,
) -> Iterator[dict[str, Any]]:
    torch.manual_seed(seed)
    own = NETWORKS[network]
    data = nl.data.load(own["data"], seed=seed)
    foreign = nl.data.load(own["ood"], splits=("test",)).normalised_like(data)
    module = nl.models.build(network, width=own.get("width", 1.0)).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    nested = nl.nest(module, torch.zeros(2, *nl.models.example_shape(network)), weights="gaussian", num_blocks=16)
    recipe = nl.Recipe(epochs=epochs, batch_size=256, seed=seed, cuts=CUTS, precision=precision)
    nl.train(nested, data, recipe, out=folder)
    test, ood = (list(islice(part.batches("test", BATCH), images // BATCH)) for part in (data, foreign))
    about = {"network": network, "seed": seed, "epochs": epochs}
    yield about | {"variance_kept": variance_kept(nested, test[0][0])}
    for by in ways:
        for number in range(sets if by == "draws" else 1):
            shown = ood if number == 0 else None
            rows = nl.evaluate(nested, test, cut=CUTS, samples=SAMPLES, ood=shown, by=by, seed=number)
            for cut, scores in zip(CUTS, rows, strict=True):
                assert isinstance(scores, ClassScores)
                figures = {"accuracy": 100 * scores.accuracy, "nll": scores.nll, "ece": 100 * scores.ece}
                if scores.aupr is not None:
                    figures["aupr"] = 100 * scores.aupr
                yield about | {"images": images, "by": by, "set": number, "cut": cut} | figures


def variance_kept(nested: nl.Nested, x: torch.Tensor) -> list[float]:
    """At each cut, the variance in one pass over that under draws, of the log-odds that decide, to first order."""
    found = []
    for cut in CUTS:
        with passes(nested, cut, SAMPLES, 0, Categorical()) as run:
            drawn = run(x, 0)
        with passes(nested, cut, SAMPLES, 0, Categorical(), "moments") as run:
            carried = run(x, 0)
        direction = Categorical().direction(drawn.mean(0)).weights
        along, exact = ((own * direction).sum(-1).var(0).sum() for own in (carried, drawn))
        found.append(round(float(along / exact), 3))
    return found


def table(rows: list[Row]) -> str:
    """By draws (their first set) / in one pass."""
    lines = []
    for (network, epochs, seed, cut), own in grouped(rows, "network", "epochs", "seed", "cut").items():
        ways = [row for row in own if row.get("set") == 0]
        if len(ways) == 2:
            figures = [
                " / ".join(f"{row[key]:.{digits}f}" for row in ways)
                for key, digits in (("accuracy", 2), ("nll", 4), ("ece", 2), ("aupr", 1))
            ]
            lines.append([f"{network}, {epochs} epochs, seed {seed}", f"{cut:.0%}", *figures])
    return markdown(["network", "width", "accuracy %", "NLL", "ECE %", "AUPR %"], lines)


def main() -> None:
    commands = Commands(__doc__, table)
    commands.run.add_argument("network", choices=tuple(NETWORKS))
    commands.run.add_argument("seed", type=int)
    commands.run.add_argument("--epochs", type=int, default=5)
    commands.run.add_argument("--images", type=int, default=10_000, help="of the test set, and as many of other data")
    commands.run.add_argument("--precision", choices=("float32", "bfloat16"), default="float32", help="of training")
    commands.run.add_argument("--by", nargs="+", choices=("draws", "moments"), default=("draws", "moments"))
    commands.run.add_argument("--sets", type=int, default=2, help="of 100 draws")
    commands.run.add_argument("--folder", type=Path, help="where to keep the run, or to find it")
    asked = commands.asked()
    if asked is None:
        return
    torch.set_num_threads(1)
    how = asked.epochs, asked.images, asked.precision, asked.folder, asked.by, asked.sets
    for record in run(asked.network, asked.seed, *how):
        add(asked.out, record)


if __name__ == "__main__":
    main()
