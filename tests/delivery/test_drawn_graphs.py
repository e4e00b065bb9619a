"""Draws as a graph with noise as an input: the law of its draws, and the same in torch and in the runtimes."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from uncertain_networks import (
    compiled_by_openvino,
    inputs_of,
    is_random,
    nested_of,
    operations,
    run_onnx,
    write_onnx,
)

import nestling as nl
from nestling.delivery.drawn import drawn_graph
from nestling.errors import NestlingError
from nestling.prediction.forward_passes import passes
from nestling.prediction.likelihoods import likelihood_for
from nestling.running.layers import VariationalLayer
from nestling.runtime import noise_for


def noise_of(graph, batch, samples, seed=0):
    return torch.from_numpy(noise_for(graph.about["noise"], seed, batch, samples))


def closeness(found, drawn):
    """How far means (in standard errors) and variances (as a factor) of draws (S, B, ...) are from each other."""
    difference = (found.mean(0) - drawn.mean(0)).abs()
    error = ((found.var(0) + drawn.var(0)) / len(found)).sqrt()
    return float((difference / error).max()), float(found.var(0).mean() / drawn.var(0).mean())


@pytest.mark.parametrize(
    ("name", "weights", "by"),
    [("mlp", "gaussian", "draws"), ("mlp", "ivon", "draws"), ("vgg", "gaussian", "fast_draws")],
)
def test_draws_have_the_mean_and_variance_of_predictions(name, weights, by):
    nested, x, samples = nested_of(name, weights), inputs_of(name, 2), 2000
    graph = drawn_graph(nested, 0.5)
    with torch.no_grad():
        found = graph.module.outputs(x, noise_of(graph, 2, samples))
    with passes(nested, 0.5, samples, 1, likelihood_for(nested), by) as run:
        drawn = run(x, 0)
    errors, factor = closeness(found, drawn)
    assert errors < 4.5
    assert 0.9 < factor < 1.1
    with torch.no_grad():
        weaker = graph.module.outputs(x, 0.9 * noise_of(graph, 2, samples))
    assert closeness(weaker, drawn)[1] < 0.9  # so the test can fail


LAYERS = {
    "conv": (lambda: nn.Conv2d(6, 8, 3, stride=2, padding=1), (6, 9, 9)),
    "drawn itself": (lambda: nn.Conv2d(3, 8, 3, stride=2, padding=1), (3, 9, 9)),
    "depthwise": (lambda: nn.Conv2d(8, 8, 3, padding=1, groups=8), (8, 7, 7)),
    "grouped": (lambda: nn.Conv1d(8, 6, 3, groups=2), (8, 15)),
    "transposed": (lambda: nn.ConvTranspose2d(6, 8, 2, stride=2), (6, 7, 7)),
    "tokens": (lambda: nn.Linear(6, 8), (10, 6)),
}


class Pooled(nn.Module):
    """The mean of a layer's outputs over all positions."""

    def __init__(self, layer):
        super().__init__()
        self.layer, self.units_last = layer, isinstance(layer, nn.Linear)

    def forward(self, x):
        return self.layer(x).mean(1 if self.units_last else tuple(range(2, x.ndim)))


@pytest.mark.parametrize("name", LAYERS)
def test_draws_of_one_weight_for_all_positions_have_the_variance_of_the_closed_form(name):
    torch.manual_seed(1)
    make, size = LAYERS[name]
    x = torch.randn(16, *size) + 0.3
    nested = nl.nest(Pooled(make()), x[:2], weights="ivon").eval()
    (drawn,) = (layer for layer in nested.modules() if isinstance(layer, VariationalLayer))
    drawn.posterior.scale.data += torch.rand_like(drawn.posterior.scale)
    graph = drawn_graph(nested, 1.0)
    with torch.no_grad():
        found = graph.module.outputs(x, noise_of(graph, 16, 1500)).var(0)
    plain, variance = nl.extract(nested, 1.0), drawn.posterior.variance().detach()

    def outputs(weight, example):
        return torch.func.functional_call(plain, {"layer.weight": weight}, (example[None],))[0]

    slopes = torch.func.vmap(torch.func.jacrev(outputs), (None, 0))(plain.layer.weight.detach(), x)
    exact = (slopes.square() * variance).flatten(2).sum(-1)  # since outputs are linear in the weight
    assert 0.87 < float(found.sum() / exact.sum()) < 1.13
    assert float((found.mean(1) / exact.mean(1) - 1).square().mean().sqrt()) < 0.25  # of each example
    alike_everywhere = torch.func.functional_call(
        plain, {"layer.weight": variance, "layer.bias": 0 * plain.layer.bias}, (x**2,)
    )
    assert alike_everywhere.mean() > 3 * exact.mean()  # what noise that is the same at all positions would have


def test_draws_of_one_weight_for_all_positions_have_the_variance_of_predictions():
    net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1))
    net = nn.Sequential(net, nn.Flatten(), nn.Linear(8, 4))
    nested = nl.nest(net, torch.randn(2, 1, 10, 10), weights="ivon", num_blocks=2).eval()
    x, samples = inputs_of("lenet", 8)[:, :, :10, :10], 1000
    graph = drawn_graph(nested, 1.0)
    variances = {}
    with torch.no_grad():
        variances["file"] = graph.module.outputs(x, noise_of(graph, 8, samples)).var(0).mean()
    for sampling in ("shared", "local"):
        for layer in (layer for layer in nested.modules() if isinstance(layer, VariationalLayer)):
            layer.sampling = sampling
        with passes(nested, 1.0, samples, 1, likelihood_for(nested)) as run:
            variances[sampling] = run(x, 0).var(0).mean()
    assert 0.9 < variances["file"] / variances["shared"] < 1.1
    assert variances["local"] / variances["shared"] < 0.8  # noise of each position by itself averages out


@pytest.mark.parametrize(("name", "weights"), [("vgg", "gaussian"), ("vgg", "ivon")])
def test_files_compute_what_torch_does_with_the_same_noise(name, weights, tmp_path):
    graph = drawn_graph(nested_of(name, weights), 0.5)
    model = write_onnx(graph, tmp_path / "draws.onnx")
    assert not [operation for operation in operations(model) if is_random(operation)]
    openvinos = compiled_by_openvino(tmp_path / "draws.onnx") if weights == "ivon" else None
    for batch, samples in ((1, 6), (2, 3), (64, 6)):
        x, noise = inputs_of(name, batch), noise_of(graph, batch, samples, seed=batch)
        with torch.no_grad():
            expected = graph.module(x, noise)
        arrays = {"x": x.numpy(), "noise": noise.numpy()}
        assert graph.outputs == ("probs", "entropy", "aleatoric", "epistemic")
        assert expected[3].max() > 0.0003
        found = [run_onnx(tmp_path / "draws.onnx", **arrays)]
        found += [] if openvinos is None else [openvinos(arrays).to_tuple()]
        for answers in found:
            for answer, right in zip(answers, expected, strict=True):
                assert np.abs(answer - right.numpy()).max() < 1e-4 * np.abs(right.numpy()).max() + 5e-7


def test_draws_of_a_shared_weight_are_the_same_for_all_examples():
    for weights, same in (("ivon", True), ("gaussian", False)):
        graph = drawn_graph(nested_of("vgg", weights), 0.5)
        twice = inputs_of("vgg", 1).repeat(2, 1, 1, 1)
        with torch.no_grad():
            first, second = graph.module.outputs(twice, noise_of(graph, 2, 4)).unbind(1)
        assert torch.allclose(first, second, atol=1e-5) == same
        assert graph.about["noise"]["axes"] == (["samples"] if same else ["samples", "batch"])


def test_averages_are_those_of_the_likelihood():
    for name, outputs in (("numbers", ("mean", "std", "aleatoric", "epistemic")), ("mask", ("probs", "entropy"))):
        nested, x = nested_of(name), inputs_of(name, 3)
        graph = drawn_graph(nested, 0.5, temperature=1.5)
        assert graph.outputs[: len(outputs)] == outputs
        noise = noise_of(graph, 3, 5)
        with torch.no_grad():
            found = dict(zip(graph.outputs, graph.module(x, noise), strict=True))
            right = likelihood_for(nested).predictive(graph.module.outputs(x, noise), temperature=1.5)
        assert all(torch.equal(found[key], getattr(right, key)) for key in found)
        assert found["epistemic"].shape == ((3, 2) if name == "numbers" else (3, 6, 6))


def test_what_no_draw_reaches_runs_once():
    net = nn.Sequential(nn.Linear(6, 50), nn.ReLU(), nn.Linear(50, 40), nn.ReLU(), nn.Linear(40, 4))
    nested = nl.nest(net, torch.randn(2, 6), weights="gaussian", exclude=["0.weight"], num_blocks=2).eval()
    graph = drawn_graph(nested, 1.0)
    assert [path for path, _ in graph.about["noise"]["layers"]] == ["2", "4"]
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        graph.module(torch.randn(1, 6), noise_of(graph, 1, 10))
    assert counter.get_total_flops() == 2 * (6 * 50 + 2 * 50 * 40 + 10 * 2 * 40 * 4)  # mean and variance of each


class Centred(nn.Module):
    """A network whose examples see each other."""

    def __init__(self):
        super().__init__()
        self.layer, self.last = nn.Linear(6, 8), nn.Linear(8, 4)

    def forward(self, x):
        x = torch.relu(self.layer(x))
        return self.last(x - x.mean(0) + x.std(0))


def test_what_has_no_draws_is_refused():
    plain = nl.nest(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4)), torch.randn(2, 6), weights=None)
    with pytest.raises(NestlingError, match="without variational layers"):
        drawn_graph(plain, 0.5)
    with pytest.raises(NestlingError, match="see each other"):
        drawn_graph(nl.nest(Centred(), torch.randn(4, 6), weights="gaussian"), 1.0)
    two = nl.nest(nn.Bilinear(3, 3, 4), (torch.randn(2, 3), torch.randn(2, 3)))
    with pytest.raises(NestlingError, match="several inputs"):
        drawn_graph(two, 1.0)
