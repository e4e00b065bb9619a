"""How close the uncertainty of exported graphs is to that of ``predict``: a small convolution network on digits.

Draws: the variance of logits and the mutual information of a graph's draws, and of noise for each position by itself,
over those of one weight for all positions, which ``predict`` draws. Moments: the mutual information with the fixed
noise of the last step, over that with very many samples.
"""

import argparse

import torch
from measuring import report
from torch import Tensor, nn

import nestling as nl
from nestling.delivery import drawn_graph, moments_graph
from nestling.prediction.forward_passes import passes
from nestling.prediction.likelihoods import likelihood_for
from nestling.running.layers import VariationalLayer
from nestling.running.moments import drawn_outputs
from nestling.runtime import noise_for


def network() -> nn.Module:
    """Two convolutions and a linear layer, for images of 8 x 8."""
    layers: list[nn.Module] = []
    for before, after in ((1, 16), (16, 32)):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(128, 10))


def figures_of(outputs: Tensor) -> dict[str, float]:
    """The mean variance of logits (S, B, C), and the mean mutual information."""
    prediction = nl.prediction.ClassPrediction.from_logits(outputs, thresholds={})
    return {"variance": float(outputs.var(0).mean()), "information": float(prediction.epistemic.mean())}


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--samples", type=int, default=500)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    data = nl.data.load("digits")
    nested = nl.nest(network(), torch.zeros(2, 1, 8, 8), weights="ivon", num_blocks=4)
    with torch.enable_grad():
        nl.train(nested, data, nl.Recipe(epochs=asked.epochs, batch_size=64), quiet=True)
    nested.eval()
    images = next(iter(data.batches("test", 200)))[0]
    graph = drawn_graph(nested, 0.5)
    noise = torch.from_numpy(noise_for(graph.about["noise"], 0, len(images), asked.samples))
    found = {"graph": figures_of(graph.module.outputs(images, noise))}  # type: ignore[operator]
    for sampling in ("shared", "local"):
        for layer in (layer for layer in nested.modules() if isinstance(layer, VariationalLayer)):
            layer.sampling = sampling
        with passes(nested, 0.5, asked.samples, 0, likelihood_for(nested)) as run:
            found[sampling] = figures_of(run(images, 0))
    for name in ("graph", "local"):
        ratios = {key: round(value / found["shared"][key], 3) for key, value in found[name].items()}
        report(f"draws over those of one weight for all positions: {name}", **ratios)
    module = moments_graph(nested, 0.5).module
    mean, variance, together = module.moments(images)  # type: ignore[operator]
    many = drawn_outputs(mean, variance, together, torch.randn(10_000, *mean.shape), torch.randn(10_000, len(mean), 1))
    exact = nl.prediction.ClassPrediction.from_logits(many, thresholds={}).epistemic
    fixed = module(images)[3]
    certain = exact > exact.median()
    report(
        "mutual information with the fixed noise of a file over that with 10,000 samples",
        mean=round(float(fixed.mean() / exact.mean()), 3),
        off_by_example=round(float((fixed / exact - 1)[certain].square().mean().sqrt()), 3),
    )


if __name__ == "__main__":
    main()
