"""Recurrent layers: hidden units cut in every gate, against layers that are made by hand from the kept rows."""

import threading

import pytest
import torch
from torch import nn

import nestling as nl

HIDDEN = 16
LAYERS = {
    "lstm": (nn.LSTM, {"batch_first": True}),
    "gru": (nn.GRU, {"batch_first": True, "bias": False}),
    "tanh": (nn.RNN, {"bidirectional": True, "batch_first": True}),
    "relu": (nn.RNN, {"nonlinearity": "relu"}),
    "deep lstm": (nn.LSTM, {"num_layers": 2, "bidirectional": True, "dropout": 0.1}),
    "deep gru": (nn.GRU, {"num_layers": 3, "bidirectional": True, "batch_first": True}),
}


class Reader(nn.Module):
    """A classifier of sequences, by the last outputs or by the last state."""

    def __init__(self, kind, by_state=False, **options):
        super().__init__()
        self.by_state, self.batch_first = by_state, options.get("batch_first", False)
        self.embed, self.recurrent = nn.Linear(6, 12), kind(12, HIDDEN, **options)
        width = options.get("proj_size") or HIDDEN
        self.head = nn.Linear(width * (1 if by_state or not options.get("bidirectional") else 2), 3)

    def forward(self, x, state=None):
        outputs, last = self.recurrent(self.embed(x), state)
        if self.by_state:
            return self.head((last[0] if isinstance(last, tuple) else last)[-1])
        return self.head(outputs[:, -1] if self.batch_first else outputs[-1])


def by_hand(net, kept):
    """The network with the kept rows of each gate, and the columns that read them."""
    small = Reader(type(net.recurrent), net.by_state, **options_of(net.recurrent)).eval()
    layer = net.recurrent
    cut = type(layer)(12, len(kept), **options_of(layer))
    ends = 2 if layer.bidirectional else 1
    with torch.no_grad():
        for name, weight in layer.named_parameters():
            rows = torch.cat([kept + gate * HIDDEN for gate in range(len(weight) // HIDDEN)])
            weight = weight[rows]
            if name.startswith("weight_hh"):
                weight = weight[:, kept]
            elif name.startswith("weight_ih") and "_l0" not in name:
                weight = weight[:, torch.cat([kept + end * HIDDEN for end in range(ends)])]
            getattr(cut, name).copy_(weight)
        read = torch.cat([kept + end * HIDDEN for end in range(net.head.in_features // HIDDEN)])
        small.embed, small.recurrent, small.head = net.embed, cut, nn.Linear(len(read), 3)
        small.head.weight.copy_(net.head.weight[:, read])
        small.head.bias.copy_(net.head.bias)
    return small.eval()


def options_of(layer):
    names = ("num_layers", "bidirectional", "bias", "batch_first", "dropout")
    options = {name: getattr(layer, name) for name in names}
    return options | ({"nonlinearity": layer.nonlinearity} if type(layer) is nn.RNN else {})


def nested_of(net, **options):
    torch.manual_seed(1)
    with torch.no_grad():
        for tensor in net.parameters():
            tensor.add_(torch.randn_like(tensor), alpha=0.1)
    return nl.nest(net, torch.randn(4, 5, 6), weights=None, num_blocks=8, num_always=1, **options).eval()


@pytest.mark.parametrize("by_state", [False, True])
@pytest.mark.parametrize("name", LAYERS)
def test_a_cut_is_the_layer_made_by_hand(name, by_state):
    kind, options = LAYERS[name]
    torch.manual_seed(0)
    net = Reader(kind, by_state, **options).eval()
    nested, x = nested_of(net), torch.randn(3, 7, 6)
    assert nested.plan is None
    (group,) = (own for own in nested.groups.free if own.name == "recurrent")
    assert (group.size, group.exact) == (HIDDEN, True)
    for blocks in (8, 5, 1):
        cut = {"recurrent": blocks}
        expected = by_hand(net, torch.arange(2 * blocks))(x)
        small = nl.extract(nested, cut)
        assert type(small.recurrent) is kind
        assert small.recurrent.hidden_size == 2 * blocks
        torch.testing.assert_close(small(x), expected)
        with nested.at(cut):
            torch.testing.assert_close(nested(x), expected)
            with torch.no_grad():
                torch.testing.assert_close(nested(x), expected)
        masks = {own.name: torch.ones(own.num_blocks) for own in nested.groups.free}
        masks["recurrent"][blocks:] = 0
        torch.testing.assert_close(nested.run_masked(masks, x), expected)
    torch.testing.assert_close(nested(x), net(x))


@pytest.mark.parametrize("name", ["lstm", "deep gru"])
def test_gradients_of_a_cut_are_those_of_the_layer_made_by_hand(name):
    kind, options = LAYERS[name]
    torch.manual_seed(0)
    net = Reader(kind, **options).eval()
    nested, x = nested_of(net), torch.randn(3, 7, 6)
    nested.train()
    small = by_hand(net, torch.arange(8)).train()
    with nested.at({"recurrent": 4}):
        nested(x).square().sum().backward()
    small(x).square().sum().backward()
    found = nested.module.recurrent.weight_hh_l0.grad
    expected = small.recurrent.weight_hh_l0.grad
    gates = torch.cat([torch.arange(8) + gate * HIDDEN for gate in range(len(found) // HIDDEN)])
    torch.testing.assert_close(found[gates][:, :8], expected)
    assert float(found.abs().sum()) == pytest.approx(float(expected.abs().sum()))
    assert nested.eval()(x).shape == (3, 3)


def test_a_run_is_saved_sorted_and_loaded(tmp_path):
    torch.manual_seed(0)
    nested, x = nested_of(Reader(nn.LSTM, batch_first=True), sort="norm"), torch.randn(3, 7, 6)
    nl.save(nested, tmp_path / "run")
    loaded = nl.load(tmp_path / "run", Reader(nn.LSTM, batch_first=True)).eval()
    for cut in (1.0, 0.5):
        with nested.at(cut), loaded.at(cut):
            torch.testing.assert_close(loaded(x), nested(x))


def test_threads_share_a_recurrent_network():
    nested, x = nested_of(Reader(nn.LSTM, batch_first=True)), torch.randn(3, 7, 6)
    cuts = [{"recurrent": width} for width in (1, 3, 5, 8)]
    expected = [nl.extract(nested, cut)(x) for cut in cuts]
    wrong = []

    def call(number):
        for _ in range(20):
            with nested.at(cuts[number]), torch.no_grad():
                wrong.append(not torch.allclose(nested(x), expected[number], atol=1e-6))

    threads = [threading.Thread(target=call, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(wrong) == 80
    assert not any(wrong)


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
def test_what_is_not_cut_says_so():
    projected = nested_of(Reader(nn.LSTM, proj_size=5))
    given = nl.nest(Reader(nn.GRU), (torch.randn(4, 5, 6), torch.randn(1, 5, HIDDEN)), weights=None)
    for nested in (projected, given):
        assert not any(group.name.startswith("recurrent") for group in nested.groups.free)
        assert any("projected, or given by the caller" in group.frozen_because for group in nested.groups.frozen)
