"""Transformers of Hugging Face and timm run as modules at any cut: any batch, length, image size, mask and cache."""

import random

import pytest
import torch
from oracle import TOLERANCE, check_cut, outputs, zeroed
from pretrained_kinds import HIDDEN, KINDS, Called, made

import nestling as nl

BATCHES = (3, 1, 5)


def nested_of(name, dropout=0.0, **options):
    module, inputs = made(name, dropout), KINDS[name].inputs
    return module, nl.nest(module, inputs(KINDS[name].sizes[0], 3), num_always=1, **options)


def random_cut(nested, seed):
    generator = random.Random(seed)
    return {group.name: generator.randint(group.num_always, group.num_blocks) for group in nested.groups.free}


def as_oracle(module, inputs):
    return Called(module, tuple(inputs)), tuple(inputs.values())


@pytest.mark.parametrize("name", KINDS)
def test_heads_and_hidden_units_of_every_layer_can_be_cut_and_the_code_itself_runs(name):
    _, nested = nested_of(name, weights=None)
    assert nested.plan is None
    heads = [group.size for group in nested.groups.free if group.kind == "head"]
    hidden = [group.size for group in nested.groups.free if group.size == HIDDEN]
    assert heads == [KINDS[name].heads] * 2
    assert len(hidden) == 2


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", KINDS)
def test_a_random_cut_computes_what_the_oracle_says_for_all_sizes_in_both_modes(name, seed):
    module, nested = nested_of(name, weights=None)
    cut = random_cut(nested, seed)
    small = nl.extract(nested, cut)
    sizes = KINDS[name].sizes
    reference, example = as_oracle(module, KINDS[name].inputs(sizes[0], 3))
    kept = check_cut(reference, as_oracle(small, KINDS[name].inputs(sizes[0], 3))[0], example)
    for size, batch in zip(sizes, BATCHES, strict=True):
        inputs = KINDS[name].inputs(size, batch)
        silenced, example = as_oracle(module, inputs)
        expected = outputs(zeroed(silenced, kept), example)
        for training in (False, True):
            with nested.train(training).at(cut):
                torch.testing.assert_close(nested(**inputs), expected, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("name", KINDS)
def test_in_train_mode_dropout_draws_what_it_draws_in_the_small_network(name):
    _, nested = nested_of(name, 0.3, weights=None)
    cut, inputs = random_cut(nested, 1), KINDS[name].inputs(KINDS[name].sizes[1], 2)
    small = nl.extract(nested, cut).train()
    torch.manual_seed(3)
    expected = small(**inputs)
    torch.manual_seed(3)
    with nested.train().at(cut):
        found = nested(**inputs)
    torch.testing.assert_close(found, expected, rtol=TOLERANCE, atol=TOLERANCE)
    with nested.eval().at(cut):
        assert not torch.allclose(nested(**inputs), expected), "dropout is off in eval mode"


@pytest.mark.parametrize("name", KINDS)
def test_gradients_at_a_cut_are_those_of_the_small_network(name):
    _, nested = nested_of(name, weights=None)
    cut, inputs = random_cut(nested, 2), KINDS[name].inputs(KINDS[name].sizes[0], 3)
    small = nl.extract(nested, cut).train()
    small(**inputs).square().sum().backward()
    with nested.train().at(cut):
        nested(**inputs).square().sum().backward()
    for name_of, parameter in small.named_parameters():
        whole = nested.module.get_parameter(name_of).grad
        values = whole[whole != 0].sort().values
        torch.testing.assert_close(values, parameter.grad[parameter.grad != 0].sort().values, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_a_cache_of_keys_and_values_gives_the_answers_of_the_whole_text_at_a_cut(name, seed):
    from transformers import DynamicCache

    _, nested = nested_of(name, weights=None)
    ids = KINDS[name].inputs(11, 2)["input_ids"]
    cut = random_cut(nested, seed)
    with torch.no_grad(), nested.eval().at(cut):
        expected = nested(input_ids=ids)
        cache = DynamicCache()
        first = nested(input_ids=ids[:, :6], past_key_values=cache, use_cache=True)
        rest = [nested(input_ids=ids[:, place : place + 1], past_key_values=cache) for place in range(6, 11)]
    torch.testing.assert_close(torch.cat([first, *rest], 1), expected, rtol=TOLERANCE, atol=TOLERANCE)
    heads = [group for group in nested.groups.free if group.kind == "head"]
    held = [layer.keys.shape[1] for layer in cache.layers]
    assert held == [cut[group.name] for group in heads], "the cache is as small as the cut"


@pytest.mark.parametrize("name", KINDS)
def test_a_saved_network_knows_the_sizes_in_its_code(name, tmp_path):
    module, nested = nested_of(name, weights=None)
    cut, inputs = random_cut(nested, 4), KINDS[name].inputs(KINDS[name].sizes[1], 2)
    nl.save(nested, tmp_path / "run")
    loaded = nl.load(tmp_path / "run", module=module)
    assert loaded.plan is None
    with nested.eval().at(cut), loaded.eval().at(cut):
        assert torch.equal(loaded(**inputs), nested(**inputs))
