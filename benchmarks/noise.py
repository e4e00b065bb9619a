"""What each way of drawing weights costs in gradients and in quality: a network of convolutions on digits.

The noise of a gradient is the root of its variance over draws, for one batch and a network in training, over the norm
of the mean gradient; the quality is that of networks trained with it from the start, on the test images.
"""

import argparse
import statistics
from typing import Any

import torch
from measuring import report
from torch import Tensor, nn

import nestling as nl
from nestling.distributions.options import SAMPLINGS
from nestling.prediction import ClassScores
from nestling.running.layers import VariationalLayer

BATCH, DRAWS, EPOCHS = 64, 300, 20


def network() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(1024, 64), nn.ReLU(), nn.Linear(64, 10)),
    )


def trained(sampling: Any, seed: int, epochs: int) -> tuple[nl.Nested, Any]:  # noqa: ANN401
    torch.manual_seed(seed)
    data = nl.data.load("digits", seed=seed)
    nested = nl.nest(network(), torch.zeros(2, 1, 8, 8), weights="gaussian", num_blocks=8, sampling=sampling)
    nl.train(nested, data, nl.Recipe(epochs=epochs, batch_size=BATCH, seed=seed), quiet=True)
    return nested, data


def gradient_noise(nested: nl.Nested, data: Any, sampling: Any) -> dict[str, float]:  # noqa: ANN401
    """For the means and for the log alphas, at the full width."""
    for part in nested.modules():
        if isinstance(part, VariationalLayer):
            part.sampling = sampling
    nested.train()
    batch, size = next(iter(data.batches("train", BATCH))), len(data.train)
    found = {}
    for name in ("mean", "log_alpha"):
        parameters = [own for path, own in nested.named_parameters() if path.endswith(f"posterior.{name}")]
        torch.manual_seed(0)
        drawn = torch.stack([gradient(nested, batch, size, parameters) for _ in range(DRAWS)])
        found[name] = round(float(drawn.var(0).sum().sqrt() / drawn.mean(0).norm()), 3)
    return found


def gradient(nested: nl.Nested, batch: Any, size: int, parameters: list[nn.Parameter]) -> Tensor:  # noqa: ANN401
    with nested.at(1.0):
        loss = nn.functional.cross_entropy(nested(batch[0]), batch[1])
    return torch.cat([own.flatten() for own in torch.autograd.grad(loss, parameters)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    halfway, data = trained("local", 0, EPOCHS // 4)
    for sampling in SAMPLINGS:
        report(f"noise of gradients over their mean, {sampling}", **gradient_noise(halfway, data, sampling))
    for sampling in SAMPLINGS:
        rows = []
        for seed in range(asked.seeds):
            nested, own = trained(sampling, seed, EPOCHS)
            scores = nl.evaluate(nested, list(own.batches("test", 100)), cut=(0.5, 1.0), samples=20, seed=0)
            rows.append([figure for each in scores if isinstance(each, ClassScores) for figure in figures(each)])
        names = [f"{name}_{cut}" for cut in ("half", "full") for name in ("accuracy", "nll", "ece")]
        columns = dict(zip(names, zip(*rows, strict=True), strict=True))
        shown = {
            name: [round(statistics.mean(own), 4), round(statistics.stdev(own), 4)] for name, own in columns.items()
        }
        report(f"digits, mean and deviation over {asked.seeds} seeds, {sampling}", **shown)


def figures(scores: ClassScores) -> list[float]:
    return [scores.accuracy, scores.nll, scores.ece]


if __name__ == "__main__":
    main()
