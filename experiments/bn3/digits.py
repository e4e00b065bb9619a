"""The default recipe on scikit-learn's digits against a plain network with the same budget, over several seeds.

python experiments/bn3/digits.py --seeds 5
"""

import argparse
import sys
from pathlib import Path
from typing import Any

import torch

import nestling as nl
from nestling.prediction import ClassScores

sys.path.append(str(Path(__file__).parents[1]))
from rows import changes, markdown, spread

CUTS = (0.125, 0.25, 0.5, 1.0)


def run(seed: int, changed: dict[str, Any], **options: Any) -> dict[str, list[float]]:  # noqa: ANN401
    """Accuracy and ECE, in percent, at each cut."""
    torch.manual_seed(seed)
    data = nl.data.load("digits", seed=seed)
    net = nl.models.build("mlp", **nl.models.options_for("mlp", data.input_shape, data.num_outputs))
    nested = nl.nest(net, torch.zeros(2, *data.input_shape), **options)
    nl.train(nested, data, nl.Recipe(seed=seed).but(**changed), quiet=True)
    found: dict[str, list[float]] = {"accuracy": [], "ece": []}
    for cut in CUTS:
        scores = nl.evaluate(nested, data.batches("test", 500), cut=cut)
        assert isinstance(scores, ClassScores)
        found["accuracy"].append(100 * scores.accuracy)
        found["ece"].append(100 * scores.ece)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=JSON", help="entries of the recipe to change")
    asked = parser.parse_args()
    changed = changes(asked.set)
    nested = [run(seed, changed) for seed in range(asked.seeds)]
    alone = changed | {"cuts": (1.0,)}
    plain = [run(seed, alone, order="full", weights=None) for seed in range(asked.seeds)]
    first = ["nested, Bayesian", *(_cell(nested, place) for place in range(len(CUTS)))]
    second = ["plain, full width", *"-" * (len(CUTS) - 1), _cell(plain, len(CUTS) - 1)]
    print(markdown(["", *(f"{cut:.1%}" for cut in CUTS)], [first, second]))


def _cell(runs: list[dict[str, list[float]]], place: int) -> str:
    return " / ".join(spread([own[key][place] for own in runs], 2) for key in ("accuracy", "ece"))


if __name__ == "__main__":
    main()
