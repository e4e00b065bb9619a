"""Whether scaling by keep probabilities at test time helps: nested networks on digits, with and without."""

import json
import statistics

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

import nestling as nl

SEEDS = (0, 1, 2)
WIDTHS = (0.125, 0.25, 0.5, 1.0)
STEPS = 1500


def main() -> None:
    for norm in (False, True):
        for order in ("uniform", "geometric"):
            scores = [run(order, norm, seed) for seed in SEEDS]
            print(
                json.dumps({"question": "rescale at test time", "order": order, "batch norm": norm} | averaged(scores))
            )


def run(order: str, norm: bool, seed: int) -> dict[str, dict[str, float]]:
    """Train one network and score it at each width, plain and rescaled: errors in percent and nats."""
    torch.manual_seed(seed)
    x, y, test_x, test_y = digits(seed)
    layers = [[nn.Linear(a, b), *([nn.BatchNorm1d(b)] if norm else []), nn.ReLU()] for a, b in ((64, 128), (128, 64))]
    net = nn.Sequential(*(part for layer in layers for part in layer), nn.Linear(64, 10))
    nested = nl.nest(net, x[:4], order=order, weights=None, num_blocks=16, num_always=2)
    optimiser = torch.optim.Adam(nested.parameters(), lr=3e-3)
    for _ in range(STEPS):
        chosen = torch.randint(len(x), (64,))
        optimiser.zero_grad()
        F.cross_entropy(nested(x[chosen]), y[chosen]).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    nested.eval()
    return {str(width): score(nested, width, x, test_x, test_y) for width in WIDTHS}


@torch.no_grad()
def score(nested: nl.Nested, width: float, train_x: Tensor, x: Tensor, y: Tensor) -> dict[str, float]:
    found = {}
    for rescale in (False, True):
        nested.rescale = rescale
        nl.recalibrate(nested, [train_x], width)
        with nested.at(width):
            logits = nested(x)
        name = "rescaled" if rescale else "plain"
        found[f"{name} error %"] = 100 * float((logits.argmax(-1) != y).double().mean())
        found[f"{name} nll"] = float(F.cross_entropy(logits, y))
    return found


def digits(seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    train, test = order[:1200], order[1200:]
    return x[train], y[train], x[test], y[test]


def averaged(scores: list[dict[str, dict[str, float]]]) -> dict[str, dict[str, float]]:
    return {
        width: {key: round(statistics.mean(s[width][key] for s in scores), 3) for key in scores[0][width]}
        for width in scores[0]
    }


if __name__ == "__main__":
    main()
