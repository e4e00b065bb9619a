"""Moments as a graph with its own way back: what predictions by moments give, in torch and in the runtimes."""

import numpy as np
import pytest
import torch
from torch import nn
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
from nestling.delivery.moment_graph import moments_graph
from nestling.errors import NestlingError
from nestling.prediction.class_likelihoods import Categorical
from nestling.prediction.likelihood import Likelihood
from nestling.running.moments import moments


def predict_with_noise_of(graph, nested, x, cut, monkeypatch):
    """What ``predict`` gives if its last step draws the fixed noise, and the fixed signs, of a graph."""
    module = graph.module
    tables = iter([module.noise, module.in_common])

    def fixed(like):
        table = next(tables)[:50]
        return table.expand(50, len(like) // 50, *like.shape[1:]).reshape(like.shape)

    monkeypatch.setattr(moments, "normal_noise", fixed)
    for kind in (Likelihood, Categorical):
        signs = lambda like: module.signs.expand(like.shape)  # noqa: E731
        monkeypatch.setattr(kind.direction, "__defaults__", (signs,))
    found = nl.predict(nested, x, cut=cut, by="moments")
    return [getattr(found, name) for name in graph.outputs]


def assert_close(found, right):
    for answer, expected in zip(found, right, strict=True):
        answer, expected = np.asarray(answer), np.asarray(expected)
        assert answer.shape == expected.shape
        # an epistemic uncertainty is a difference of entropies of about 1, which float32 rounds
        assert np.abs(answer - expected).max() < 1e-4 * np.abs(expected).max() + 5e-7


@pytest.mark.parametrize(
    ("name", "weights"),
    [
        ("vgg", "gaussian"),
        ("vgg", "ivon"),
        ("lenet", "gaussian"),
        ("residual", "ivon"),
        ("mask", "gaussian"),
        ("mlp", "ivon"),
        ("numbers", "gaussian"),
    ],
)
def test_agrees_with_predictions_by_moments(name, weights, monkeypatch):
    nested = nested_of(name, weights)
    graph = moments_graph(nested, 0.5)
    for batch in (1, 2, 64):
        x = inputs_of(name, batch)
        with torch.no_grad():
            found = graph.module(x)
        with monkeypatch.context() as patched:
            right = predict_with_noise_of(graph, nested, x, 0.5, patched)
        assert_close(found, right)
        assert right[3].max() > 0.001


def test_files_compute_what_torch_does(tmp_path):
    graph, path = moments_graph(nested_of("vgg"), 0.5), tmp_path / "moments.onnx"
    assert not [operation for operation in operations(write_onnx(graph, path)) if is_random(operation)]
    openvinos = [compiled_by_openvino(path), compiled_by_openvino(path, INFERENCE_NUM_THREADS=1)]
    for batch in (1, 2, 64):
        x = inputs_of("vgg", batch)
        with torch.no_grad():
            expected = graph.module(x)
        assert_close(run_onnx(path, x=x.numpy()), expected)
        for compiled in openvinos:  # on one thread it takes other kernels
            assert_close(compiled({"x": x.numpy()}).to_tuple(), expected)


def test_the_way_back_matters():
    """Without it variances of a deep network are too small: the tests above can tell."""
    graph, x = moments_graph(nested_of("mlp", "ivon"), 0.5), inputs_of("mlp", 4)
    with torch.no_grad():
        run = graph.module.run(x)
        alone = run.forward().variance
        _, variance, together = graph.module.moments(x)
    assert (variance / alone[0]).mean() > 1.1
    assert together.abs().max() > 0.03


def test_fixed_noise_has_mean_zero_and_variance_one():
    module = moments_graph(nested_of("mlp"), 0.5).module
    for table in (module.noise, module.in_common):
        assert table.mean(0).abs().max() < 1e-6
        assert (table.square().mean(0) - 1).abs().max() < 1e-5


def refused(net, x, **options):
    with pytest.raises(NestlingError) as error:
        moments_graph(nl.nest(net, x, weights="gaussian", num_blocks=2, **options), 1.0)
    return str(error.value)


def test_what_has_no_rule_is_refused_by_its_name():
    x = torch.randn(2, 6)
    said = refused(nn.Sequential(nn.Linear(6, 8), nn.Softsign(), nn.Linear(8, 4)), x)
    assert "has no rule" in said
    assert "uncertainty='draws'" in said
    pool = nn.Sequential(nn.Conv2d(1, 4, 3), nn.MaxPool2d(2, padding=1), nn.Flatten(), nn.Linear(64, 4))
    assert "max_pool2d" in refused(pool, torch.randn(2, 1, 8, 8))
    channel = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 4))
    assert "per channel" in refused(channel, torch.randn(2, 1, 8, 8), sampling="channel")
    assert "without variational layers" in refused(nn.Linear(6, 4), x, exclude=["weight"])
