"""What each strategy of a search finds, on networks that are trained here, beside the number of cuts that it scores."""

import argparse
import json
import statistics
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import nestling as nl
from nestling.data import Data
from nestling.network import Cut, Nested
from nestling.prediction import ClassScores

BUDGETS = (0.1, 0.2, 0.35, 0.5, 0.7)
"""Shares of the whole network's multiply-adds."""
SMALLER_BEAMS = ((3, 6), (2, 6), (2, 4), (2, 3), (2, 2), (1, 3), (1, 2), (1, 1))
"""(num_kept, num_candidates) of beams, from which the first is taken that scores no more cuts than ``dynamic``."""


def mlp() -> nn.Module:
    return nl.models.build("mlp", hidden=[512, 128], in_features=784, num_classes=10)


def vgg() -> nn.Module:
    return nl.models.build("vgg11", width=0.25).to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


NETWORKS: dict[str, tuple[Callable[[], nn.Module], str, tuple[int, ...], int, int]] = {
    "mlp": (mlp, "mnist", (1, 28, 28), 16, 3),
    "vgg11": (vgg, "cifar10", (3, 32, 32), 8, 4),
}
"""The network, its data and the shape of an example, its number of blocks and its epochs."""
VALIDATED = 2000
"""Images that cuts are scored on."""


def trained(name: str) -> tuple[Nested, Data]:
    make, source, shape, num_blocks, epochs = NETWORKS[name]
    torch.manual_seed(0)
    data = nl.data.load(source, validation=VALIDATED)
    options: dict[str, Any] = {"order": "uniform", "weights": None, "num_blocks": num_blocks, "num_always": 1}
    nested = nl.nest(make(), torch.zeros(2, *shape), **options)
    nl.train(nested, data, nl.Recipe(epochs=epochs, batch_size=256), quiet=True)
    return nested, data


def found(nested: Nested, data: Data, strategy: str, seed: int, **options: Any) -> dict[str, Any]:  # noqa: ANN401
    """The curve of a strategy: validation and test accuracy, in percent, at each budget, and the cuts it scored."""
    more: dict[str, Any] = {"strategy": strategy, **options}
    curve = nl.search(nested, data.batches("validation", 1000), "macs", seed=seed, num_points=40, **more)
    whole = max(row.macs for row in curve.rows)
    rows = [curve.row_under(macs=share * whole) for share in BUDGETS]
    accuracy = [tested(nested, data, row.cut) for row in rows]
    return {"cuts": curve.num_evaluations, "validation": [100 * row.score for row in rows], "test": accuracy}


def tested(nested: Nested, data: Data, cut: Cut) -> float:
    """Test accuracy of a cut in percent, its norms recalibrated."""
    nl.recalibrate(nested, data.batches("train", 128, shuffle=True), cut, num_batches=8)
    scores = nl.evaluate(nested, data.batches("test", 1000), cut=cut, samples=0)
    assert isinstance(scores, ClassScores)
    return 100 * scores.accuracy


def compared(name: str, seeds: int) -> dict[str, list[dict[str, Any]]]:
    """Each strategy on one network, those that draw with several seeds."""
    nested, data = trained(name)
    results = {"dynamic": [found(nested, data, "dynamic", 0)]}
    most = results["dynamic"][0]["cuts"]
    for kept, candidates in SMALLER_BEAMS:
        sizes = {"num_kept": kept, "num_candidates": candidates}
        one = found(nested, data, "beam", 0, **sizes)
        if one["cuts"] <= most or (kept, candidates) == SMALLER_BEAMS[-1]:
            rest = [found(nested, data, "beam", seed, **sizes) for seed in range(1, seeds)]
            results[f"beam {kept} x {candidates}"] = [one, *rest]
            break
    results["beam 3 x 10"] = [found(nested, data, "beam", seed) for seed in range(seeds)]
    results["greedy"] = [found(nested, data, "greedy", 0)]
    results["uniform"] = [found(nested, data, "uniform", 0)]
    results["random"] = [found(nested, data, "random", seed) for seed in range(seeds)]
    return results


def table(name: str, results: dict[str, list[dict[str, Any]]]) -> str:
    """A row a strategy: validation / test accuracy at each budget, mean over the seeds."""
    rows = [f"| {name} | cuts scored | " + " | ".join(f"{share:.0%} of the MACs" for share in BUDGETS) + " |"]
    rows.append("| --- |" + " --- |" * (len(BUDGETS) + 1))
    for strategy, runs in results.items():
        means = {
            key: [statistics.mean(column) for column in zip(*(run[key] for run in runs), strict=True)]
            for key in ("validation", "test")
        }
        cells = [f"{seen:.2f} / {test:.2f}" for seen, test in zip(means["validation"], means["test"], strict=True)]
        scored = statistics.mean(run["cuts"] for run in runs)
        rows.append(f"| {strategy} | {scored:.0f} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("networks", nargs="*", default=list(NETWORKS), help="NESTLING_DATA says where the data is")
    parser.add_argument("--seeds", type=int, default=3)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    for name in asked.networks:
        results = compared(name, asked.seeds)
        print(table(name, results), flush=True)
        print(json.dumps({"question": f"quality at equal numbers of cuts on {name}", "results": results}), flush=True)


if __name__ == "__main__":
    main()
