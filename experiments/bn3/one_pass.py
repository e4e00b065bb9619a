"""The one-pass distribution beside 100 samples, trained on MNIST: accuracy, ECE, AUPR against Fashion-MNIST.

NESTLING_DATA=folder python experiments/bn3/one_pass.py 0 --out one_pass.jsonl
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch

import nestling as nl
from nestling.prediction import ClassScores

CUTS = (0.25, 0.5, 1.0)
SAMPLES = 100


def run(seed: int, network: str, epochs: int) -> list[dict[str, Any]]:
    torch.manual_seed(seed)
    data, strange = nl.data.load("mnist", seed=seed), nl.data.load("fashion_mnist", seed=seed)
    nested = nl.nest(nl.models.build(network), torch.zeros(2, 1, 28, 28), num_blocks=16)
    nl.train(nested, data, nl.Recipe(epochs=epochs, batch_size=256, seed=seed))
    test, ood = list(data.batches("test", 500)), list(strange.batches("test", 500))
    found = []
    for by in ("draws", "moments"):
        for cut, scores in zip(CUTS, nl.evaluate(nested, test, cut=CUTS, samples=SAMPLES, ood=ood, by=by), strict=True):
            assert isinstance(scores, ClassScores)
            figures = {"accuracy": 100 * scores.accuracy, "nll": scores.nll, "ece": 100 * scores.ece}
            assert scores.aupr is not None
            figures["aupr"] = 100 * scores.aupr
            found.append({"network": network, "seed": seed, "epochs": epochs, "by": by, "cut": cut, **figures})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seed", type=int)
    parser.add_argument("--network", default="lenet_300_100")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    for record in run(asked.seed, asked.network, asked.epochs):
        with asked.out.open("a") as file:
            file.write(json.dumps(record) + "\n")
        print(json.dumps(record))


if __name__ == "__main__":
    main()
