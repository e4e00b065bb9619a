"""The small GPT: it runs as a module at any cut, length and batch, and its cache changes nothing but the time."""

import random
import sys
from pathlib import Path

import pytest
import torch

import nestling as nl
from nestling.reading import make_cut
from nestling.running import code_at

sys.path.append(str(Path(__file__).parents[1] / "network"))
from oracle import assert_same, check_cut, gradients_agree, outputs, randomise

HEADS, HIDDEN, STREAM, CONTEXT = 4, 6, 8, 10
LAYERS = ("head", "neuron", "layer")


def small(**options):
    sizes = {"vocabulary": 11, "context": CONTEXT, "layers": 2, "stream": STREAM, "heads": HEADS, "hidden": HIDDEN}
    return nl.models.GPT(**(sizes | options))


def tokens(batch, length, seed=0):
    return torch.randint(11, (batch, length), generator=torch.Generator().manual_seed(seed))


def nested_gpt(**options):
    module = randomise(small(layers=options.pop("layers", 2)), torch.Generator().manual_seed(0))
    example = tokens(3, 6)
    nested = nl.nest(module, example, order="uniform", weights=None, num_blocks=8, num_always=1, **options)
    return module, nested.eval()


def random_cut(nested, seed):
    chance = random.Random(seed)
    return {group.name: chance.randint(1, group.num_blocks) for group in nested.groups.free}


def test_heads_and_units_of_each_layer_are_free_and_the_code_runs():
    _, nested = nested_gpt()
    kinds = {group.name: (group.kind, group.size) for group in nested.groups.free}
    expected = {}
    for number in range(2):
        expected |= {f"layers.{number}.attention.qkv": ("head", HEADS)}
        expected |= {f"layers.{number}.feed_forward.up": ("neuron", HIDDEN)}
    assert kinds == expected
    assert nested.plan is None


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("batch", "length"), [(3, 6), (1, 1), (5, 10), (2, 3)])
def test_random_cuts_are_right_at_other_batches_and_lengths(seed, batch, length):
    module, nested = nested_gpt()
    cut, x = random_cut(nested, seed), tokens(batch, length, seed)
    extracted = nl.extract(nested, cut)
    check_cut(module, extracted, (x,))
    with nested.at(cut), torch.no_grad():
        assert_same(outputs(extracted, (x,)), nested(x), "nested at the cut")
    gradients_agree(nested, cut, extracted, (x,))


def test_half_of_it_is_the_network_built_at_half_width():
    _, nested = nested_gpt()
    hand = small(width=0.5).double()
    hand.load_state_dict(nl.extract(nested, 0.5).state_dict())
    with nested.at(0.5), torch.no_grad():
        assert_same(hand(tokens(2, 7)), nested(tokens(2, 7)), "built by hand")


def test_a_cut_of_layers_is_the_network_of_fewer_layers():
    module, nested = nested_gpt(kinds=LAYERS, layers=4)
    assert nested.plan is not None
    cut = {"layers": 4}
    hand = small(layers=2).double()
    hand.load_state_dict({name: tensor for name, tensor in module.state_dict().items() if name in hand.state_dict()})
    x = tokens(3, 6)
    with torch.no_grad():
        assert_same(code_at(nested, make_cut(nested.groups, cut))(x), hand(x), "code")
        with nested.at(cut):
            assert_same(nested(x), hand(x), "graph")


@pytest.mark.parametrize("kinds", [None, LAYERS])
@pytest.mark.parametrize("seed", range(3))
def test_the_code_at_a_cut_takes_a_cache_and_views_of_the_weights(kinds, seed):
    _, nested = nested_gpt(kinds=kinds, layers=3)
    cut, x = make_cut(nested.groups, random_cut(nested, seed)), tokens(2, 9, seed)
    code, cache = code_at(nested, cut), nl.models.KeyValueCache(CONTEXT)
    with torch.no_grad():
        parts = torch.cat([code(part, cache) for part in x.split((4, 1, 3, 1), 1)], 2)
        with nested.at(cut):
            assert_same(parts, nested(x), "with a cache")
    storages = {tensor.untyped_storage().data_ptr() for tensor in nested.parameters()}
    assert {tensor.untyped_storage().data_ptr() for tensor in code.module.parameters()} <= storages


@pytest.mark.parametrize("weights", ["gaussian", "ivon"])
def test_variational_weights_run_at_their_means(weights):
    nested = nl.nest(small(), tokens(2, 6), weights=weights, num_blocks=4, num_always=1, kinds=LAYERS).eval()
    cut = make_cut(nested.groups, 0.5)
    with torch.no_grad(), nested.at(cut):
        torch.testing.assert_close(code_at(nested, cut)(tokens(2, 6)), nested(tokens(2, 6)))


def test_the_cache_has_the_heads_of_the_cut():
    _, nested = nested_gpt()
    cut = {"layers.0.attention.qkv": 1, "layers.1.attention.qkv": 3}
    cache = nl.models.KeyValueCache(CONTEXT)
    with torch.no_grad():
        code_at(nested, make_cut(nested.groups, cut))(tokens(2, 4), cache)
        assert [tuple(cache.extended(n, *[torch.zeros(2, h, 1, 2)] * 2)[0].shape) for n, h in ((0, 1), (1, 3))] == [
            (2, 1, 5, 2),
            (2, 3, 5, 2),
        ]
        with pytest.raises(nl.ShapeError, match="Take a new cache for another cut"):
            nested(tokens(2, 4), cache)


def test_forgotten_tokens_leave_nothing_behind():
    net, x, y = small().eval(), tokens(1, 5), tokens(1, 5, 1)
    cache = nl.models.KeyValueCache(CONTEXT)
    with torch.no_grad():
        net(torch.cat((x[:, :3], y[:, :2]), 1), cache)
        cache.length = 3
        torch.testing.assert_close(net(x[:, 3:], cache), net(x)[:, :, 3:])


def test_each_position_sees_only_what_is_before_it():
    net, x = small().eval(), tokens(1, 8)
    changed = x.clone()
    changed[0, 5:] = (x[0, 5:] + 1) % 11
    with torch.no_grad():
        before, after = net(x), net(changed)
    torch.testing.assert_close(before[:, :, :5], after[:, :, :5])
    assert not torch.allclose(before[:, :, 5], after[:, :, 5])


def test_errors():
    with pytest.raises(nl.ArgumentError, match="multiple of the number of heads, 4"):
        small(stream=10)
    with pytest.raises(nl.ShapeError, match="11 of them, but it must be at most 10, the context"):
        small()(tokens(1, 11))


def test_layers_that_are_no_submodules_are_refused():
    class Inline(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.word, self.layers = torch.nn.Embedding(5, 4), torch.nn.ModuleList()
            for _ in range(4):
                self.layers.append(torch.nn.Linear(4, 4))
                self.layers.append(torch.nn.LayerNorm(4))

        def forward(self, x):
            x = self.word(x)
            for linear, norm in zip(self.layers[::2], self.layers[1::2], strict=True):
                x = x + linear(norm(x)).relu()
            return x

    nested = nl.nest(Inline(), torch.zeros(2, 3, dtype=torch.int64), weights=None, kinds=("layer",), num_always=1)
    with pytest.raises(nl.ArgumentError, match="submodules of their own"):
        code_at(nested, make_cut(nested.groups, 0.5))


class OwnSizes(torch.nn.Module):
    """Its code has the number of heads of the whole network."""

    context, vocabulary = CONTEXT, 11

    def __init__(self):
        super().__init__()
        self.word, self.qkv = torch.nn.Embedding(11, 8), torch.nn.Linear(8, 24)
        self.out, self.head = torch.nn.Linear(8, 8), torch.nn.Linear(8, 11)

    def forward(self, words, cache=None):
        x = self.word(words)
        query, key, value = self.qkv(x).view(*words.shape, 4, 3, 2).transpose(1, 2).unbind(3)
        y = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.head(x + self.out(y.transpose(1, 2).reshape(*words.shape, -1))).transpose(1, 2)


def test_a_network_whose_code_has_sizes_of_its_own_is_refused():
    nested = nl.nest(OwnSizes(), tokens(2, 5), weights=None, num_always=1)
    assert nested.plan is not None
    with pytest.raises(nl.NestlingError, match="take all sizes from its weights"):
        nl.generate(nested, torch.tensor([1]), length=1, cut=0.5)


def test_it_is_built_by_its_name_and_loaded_without_it(tmp_path):
    net = nl.models.build("gpt", vocabulary=11, context=CONTEXT, layers=2, stream=STREAM, heads=HEADS)
    for kinds in (None, LAYERS):
        nested = nl.nest(net, tokens(2, 5), weights=None, num_blocks=4, num_always=1, kinds=kinds).eval()
        nl.save(nested, tmp_path / str(kinds))
        loaded = nl.load(tmp_path / str(kinds))
        prompt = torch.tensor([3, 1])
        texts = [nl.generate(n, prompt, length=6, cut=0.5, draft=0.25, seed=1) for n in (nested, loaded)]
        assert torch.equal(texts[0].tokens, texts[1].tokens)
    options = nl.models.options_for("gpt", (CONTEXT,), 11)
    assert (options, nl.models.example_shape("gpt")) == ({"vocabulary": 11, "context": CONTEXT}, (128,))
