"""Transformers of Hugging Face and timm draw their weights at any cut as ``sampling`` says."""

from copy import deepcopy

import pytest
import torch
from oracle import TOLERANCE
from pretrained_kinds import KINDS, made
from test_pretrained_kinds import random_cut
from torch import nn

import nestling as nl
from nestling.running.layers import variational_layers

LOG_ALPHA = -2.0
NUM_DRAWS = 400


def noisy(name, sampling):
    """A nested network whose weights are equally noisy, and copies of an example of another size."""
    inputs = KINDS[name].inputs
    options = {"weights": "gaussian", "sampling": sampling, "num_always": 1}
    nested = nl.nest(made(name), inputs(KINDS[name].sizes[0], 2), **options).eval()
    for layer in variational_layers(nested.module).values():
        nn.init.constant_(layer.posterior.log_alpha, LOG_ALPHA)
    return nested, lambda copies: repeated(inputs(KINDS[name].sizes[1], 1), copies)


def repeated(inputs, copies):
    return {
        key: value.expand(copies, *value.shape[1:]) if isinstance(value, torch.Tensor) else value
        for key, value in inputs.items()
    }


def drawn_by_hand(nested, cut, inputs, count):
    """Outputs of the small plain network, with weights drawn by the definition theta (1 + root(alpha) noise)."""
    small, generator = nl.extract(nested, cut), torch.Generator().manual_seed(5)
    weights = {path: deepcopy(small.get_submodule(path).weight.detach()) for path in variational_layers(nested.module)}
    alpha, outputs = torch.tensor(LOG_ALPHA).exp(), []
    with torch.no_grad():
        for _ in range(count):
            for path, mean in weights.items():
                noise = torch.randn(mean.shape, generator=generator, dtype=mean.dtype)
                small.get_submodule(path).weight.copy_(mean * (1 + alpha.sqrt() * noise))
            outputs.append(small(**inputs))
    return torch.cat(outputs)


@pytest.mark.parametrize("name", KINDS)
def test_all_layers_draw_but_those_whose_weight_is_tied(name):
    nested, _ = noisy(name, "local")
    linear = [path for path, layer in made(name).named_modules() if type(layer).__name__ in ("Linear", "Conv1D")]
    tied = ["lm_head"] if name == "gpt2" else []
    assert [path for path in linear if path not in variational_layers(nested.module)] == tied


@pytest.mark.parametrize("sampling", ["local", "channel", "shared", "each"])
@pytest.mark.parametrize("name", KINDS)
def test_equal_examples_have_equal_draws_only_if_one_weight_is_shared(name, sampling):
    nested, example = noisy(name, sampling)
    cut = random_cut(nested, 1)
    for training in (False, True):
        with torch.no_grad(), nested.train(training).at(cut), nested.drawing():
            output, again = nested(**example(3)), nested(**example(3))
        assert not torch.allclose(output, again), "each call draws anew"
        same = torch.allclose(output, output[:1].expand_as(output), rtol=TOLERANCE, atol=TOLERANCE)
        assert same is (sampling == "shared")


@pytest.mark.parametrize("sampling", ["shared", "each"])
@pytest.mark.parametrize("name", KINDS)
def test_draws_at_a_cut_have_the_moments_of_draws_by_hand(name, sampling):
    nested, example = noisy(name, sampling)
    cut = random_cut(nested, 2)
    expected = drawn_by_hand(nested, cut, example(1), NUM_DRAWS)
    torch.manual_seed(0)
    with torch.no_grad(), nested.at(cut), nested.drawing():
        calls = [example(NUM_DRAWS)] if sampling == "each" else [example(1)] * NUM_DRAWS
        found = torch.cat([nested(**call) for call in calls])
    error = ((expected.var(0) + found.var(0)) / NUM_DRAWS).sqrt()
    assert ((found.mean(0) - expected.mean(0)) / error).abs().max() < 4.5, "in standard errors, of up to 440 means"
    assert (found.var(0).mean() / expected.var(0).mean()).log().abs() < 0.3
