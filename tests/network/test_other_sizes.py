"""Networks whose code takes another path for inputs of other sizes: right answers, or an error that says so."""

import pytest
import torch
from torch import nn

import nestling as nl
from nestling.network.check import other_sizes


class Attention(nn.Module):
    """A transformer, which runs as a graph, with a branch on the sizes of its input."""

    def __init__(self, doubles):
        super().__init__()
        self.doubles = doubles
        self.embed, self.head = nn.Linear(8, 16), nn.Linear(16, 3)
        self.layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True)

    def forward(self, x):
        y = self.embed(x)
        if self.doubles(*x.shape[:2]):
            y = 2 * y
        return self.head(self.layer(y).sum(1) / x.shape[1])


class Residual(nn.Module):
    """A convolutional network whose layers are dropped, so that it runs as a graph; it computes with its sides."""

    def __init__(self, doubles=lambda side: False):
        super().__init__()
        self.doubles = doubles
        self.first, self.head = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(8, 3)
        self.layers = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1) for _ in range(3))

    def forward(self, x):
        y = self.first(x)
        if self.doubles(x.shape[-1]):
            y = 2 * y
        for layer in self.layers:
            y = y + layer(y.relu())
        return self.head(y.sum((2, 3)) / (y.shape[2] * y.shape[3]))


class Flipped(nn.Module):
    """A network that couples its channels for small images only."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 4, 3)

    def forward(self, x):
        y = self.first(x).relu()
        return self.second(y.flip(1) if x.shape[-1] < 12 else y).mean((2, 3))


def nested_of(net, *shape, **options):
    torch.manual_seed(0)
    return nl.nest(net, torch.randn(shape), weights=None, **options).eval()


def right_or_refused(nested, net, *shape):
    """Whether the network and the one taken out of it refuse an input of this shape; if not, both must be right."""
    x, refusals = torch.randn(shape), []
    for own, error in ((nested, nl.NestlingError), (nl.extract(nested, 1.0), RuntimeError)):
        try:
            found = own(x)
        except error as fault:
            refusals.append("another path" in str(fault))
        else:
            torch.testing.assert_close(found, net.eval()(x), rtol=1e-4, atol=1e-5)
            refusals.append(False)
    assert len(set(refusals)) == 1
    return refusals[0]


BRANCHES = {
    "none": lambda batch, length: False,
    "length": lambda batch, length: length > 16,
    "batch": lambda batch, length: batch >= 3,
    "parity": lambda batch, length: length % 2 == 0,
    "both": lambda batch, length: length > 5 * batch,
    "one example": lambda batch, length: batch == 1,
}


@pytest.mark.parametrize("name", BRANCHES)
def test_a_graph_gives_no_wrong_answer_for_other_batches_and_lengths(name):
    doubles = BRANCHES[name]
    net = Attention(doubles)
    nested = nested_of(net, 2, 6, 8)
    assert (nested.plan is None) is (name == "one example"), (
        "torch takes one for a constant; then the module's code runs"
    )
    for sizes in ((2, 6), (1, 6), (5, 6), (5, 20), (1, 17), (2, 1)):
        refused = right_or_refused(nested, net, *sizes, 8)
        assert not (refused and name in ("none", "one example"))
        assert refused or nested.plan is None or doubles(*sizes) == doubles(2, 6)


def test_the_error_names_the_size_and_cuts_refuse_too(tmp_path):
    nested = nested_of(Attention(lambda batch, length: length > 16), 2, 6, 8)
    x = torch.randn(2, 20, 8)
    with pytest.raises(nl.NestlingError, match=r"shape\[1\] <= 16. Nest it with such an example"):
        nested(x)
    with nested.at(0.5), pytest.raises(nl.NestlingError, match=r"shape\[1\] <= 16"):
        nested(x)
    nl.save(nested, tmp_path / "run")
    loaded = nl.load(tmp_path / "run", Attention(lambda batch, length: length > 16))
    with pytest.raises(nl.NestlingError, match=r"shape\[1\] <= 16"):
        loaded(x)


def test_an_example_of_one_leaves_the_batch_size_open():
    net = Attention(lambda batch, length: False)
    nested = nested_of(net, 1, 6, 8)
    assert nested.plan is not None
    assert not any(right_or_refused(nested, net, *sizes, 8) for sizes in ((1, 6), (5, 6), (2, 20)))


@pytest.mark.parametrize("branches", [False, True])
def test_sides_of_images_are_no_constants(branches):
    net = Residual(lambda side: branches and side > 16)
    nested = nested_of(net, 2, 3, 8, 8, kinds=("channel", "layer"))
    assert nested.plan is not None
    assert not any(right_or_refused(nested, net, *sizes) for sizes in ((2, 3, 8, 8), (5, 3, 12, 12), (1, 3, 3, 10)))
    assert right_or_refused(nested, net, 2, 3, 32, 32) is branches


def test_groups_hold_for_other_sizes_too():
    """The channels are coupled in the path of small images only: no cut may be wrong there without an error."""
    net = Flipped()
    nested = nested_of(net, 2, 3, 16, 16)
    cut, x = 0.5, torch.randn(2, 3, 8, 8)
    masks = {group.name: torch.arange(group.num_blocks) < group.num_blocks // 2 for group in nested.groups.free}
    with nested.at(cut):
        try:
            found = nested(x)
        except nl.NestlingError:
            return
    expected = nested.run_masked({name: mask.float() for name, mask in masks.items()}, x)
    torch.testing.assert_close(found, expected)


def test_the_other_sizes_are_those_the_network_runs_on():
    x = torch.randn(4, 3, 8, 6)
    first, second = other_sizes(nn.Conv2d(3, 2, 1), ((x,), {}))
    assert first[0][0].shape == (1, 3, 8, 6)
    assert second[0][0].shape == (4, 3, 4, 3)
    (only,) = other_sizes(nn.Linear(3, 2), ((torch.randn(1, 3),), {}))
    assert only[0][0].shape == (2, 3)
