"""Residual streams under LayerNorm and RMSNorm: each width has its own statistics, and may have its own weights."""

import pytest
import torch
from oracle import TOLERANCE, check_cut
from pretrained_kinds import KINDS, made
from test_pretrained_kinds import as_oracle, random_cut
from torch import nn

import nestling as nl

STREAM = {"where": "all", "num_blocks": 8, "num_always": 1, "weights": None}


def streaming(name, **options):
    """A network whose stream is cut; norms of a class that the oracle does not know are torch's, with their weights."""
    module = made(name)
    for path, norm in list(module.named_modules()):
        if type(norm).__name__ == "LlamaRMSNorm":
            known = nn.RMSNorm(norm.weight.shape[0], norm.variance_epsilon)
            known.weight = norm.weight
            module.set_submodule(path, known)
    inputs = KINDS[name].inputs(KINDS[name].sizes[0], 3)
    return module, nl.nest(module, inputs, **STREAM, **options), inputs


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", KINDS)
def test_a_narrower_stream_has_statistics_over_its_own_units(name, seed):
    module, nested, inputs = streaming(name)
    (stream,) = [group for group in nested.groups.free if not group.exact]
    assert stream.size == 24
    assert nested.plan is None
    cut = {**random_cut(nested, seed), stream.name: 3 + 2 * seed}
    small = nl.extract(nested, cut)
    reference, example = as_oracle(module, inputs)
    check_cut(reference, as_oracle(small, inputs)[0], example, norms_over_kept=True)
    for size, batch in zip(KINDS[name].sizes, (2, 1, 4), strict=True):
        other = KINDS[name].inputs(size, batch)
        for training in (False, True):
            with nested.train(training).at(cut):
                torch.testing.assert_close(nested(**other), small(**other), rtol=TOLERANCE, atol=TOLERANCE)


def test_the_norms_of_llama_itself_do_the_same():
    module, inputs = made("llama"), KINDS["llama"].inputs(7, 3)
    nested, (_, by_torch, _) = nl.nest(module, inputs, **STREAM), streaming("llama")
    assert {group.name: group.exact for group in nested.groups} == {g.name: g.exact for g in by_torch.groups}
    with nested.eval().at(0.5), by_torch.eval().at(0.5):
        torch.testing.assert_close(nested(**inputs), by_torch(**inputs), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["bert", "llama", "timm"])
def test_norms_of_a_stream_learn_weights_for_one_width(name):
    module = made(name)
    inputs = KINDS[name].inputs(KINDS[name].sizes[0], 3)
    nested = nl.nest(module, inputs, **STREAM, private=(0.5,))
    norms = [path for path, norm in module.named_modules() if "Norm" in type(norm).__name__]
    assert {own.rpartition(".")[0] for own in nested.private.names} == set(norms)
    with nested.train().at(0.5):
        nested(**inputs).square().sum().backward()
    assert all(own.grad is not None and own.grad.any() for own in nested.private.parameters())
    assert all(nested.module.get_parameter(own).grad is None for own in nested.private.names)
    nested.eval()
    with torch.no_grad(), nested.at(0.5):
        before, others = nested(**inputs), nested.private.names
        for own in nested.private.parameters():
            own.mul_(1.1)
        assert not torch.allclose(nested(**inputs), before)
        small = nl.extract(nested, 0.5)
        torch.testing.assert_close(small(**inputs), nested(**inputs), rtol=TOLERANCE, atol=TOLERANCE)
    assert others
    with torch.no_grad():
        whole = module(**inputs)
    torch.testing.assert_close(nested(**inputs), getattr(whole, "logits", whole), rtol=TOLERANCE, atol=TOLERANCE)
