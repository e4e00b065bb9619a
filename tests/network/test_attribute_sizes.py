"""Attributes that hold sizes: which of them a cut changes, on networks whose attributes have equal values."""

import pytest
import torch
from oracle import TOLERANCE, check_cut, randomise
from torch import nn

import nestling as nl

SIZE, HEADS, LENGTH = 4, 4, 5


class Attention(nn.Module):
    """Attention with as many heads as elements per head; subclasses say how their code counts heads."""

    def __init__(self):
        super().__init__()
        self.heads, self.size, self.width, self.count = HEADS, SIZE, HEADS * SIZE, 3 * HEADS
        self.stem, self.head = nn.Linear(6, HEADS * SIZE), nn.Linear(HEADS * SIZE, 3)
        self.qkv, self.out = nn.Linear(HEADS * SIZE, 3 * HEADS * SIZE), nn.Linear(HEADS * SIZE, HEADS * SIZE)

    def parts(self, x):
        return self.qkv(x).reshape(*x.shape[:2], 3, self.heads, self.size).permute(2, 0, 3, 1, 4)

    def joined(self, x):
        return x.transpose(1, 2).reshape(x.shape[0], -1, self.heads * self.size)

    def forward(self, x):
        x = self.stem(x)
        weights = torch.softmax(self.parts(x)[0] @ self.parts(x)[1].mT, -1)
        return self.head(x + self.out(self.joined(weights @ self.parts(x)[2])))


class BySplit(Attention):
    def parts(self, x):
        shape = (*x.shape[:2], -1, self.size)
        return [part.view(shape).transpose(1, 2) for part in self.qkv(x).split(self.width, 2)]

    def joined(self, x):
        return x.transpose(1, 2).flatten(2)


class ByMultiple(Attention):
    """The number of heads is known only as three times the number, and as a part of the width."""

    def parts(self, x):
        return self.qkv(x).view(*x.shape[:2], self.count, self.size).unflatten(2, (3, -1)).permute(2, 0, 3, 1, 4)

    def joined(self, x):
        return x.transpose(1, 2).flatten(2)


class OneForTwo(Attention):
    """One attribute is the width of the stream, which stays, and of all heads together."""

    def joined(self, x):
        return x.transpose(1, 2).reshape(x.shape[0], -1, self.width)

    def forward(self, x):
        return super().forward(x.view(*x.shape[:2], 6)) + self.head(torch.ones(1, 1, self.width, dtype=x.dtype))


class Computed(Attention):
    """The number of heads is computed from tensors and other numbers by the code: no attribute holds it."""

    def parts(self, x):
        heads = x.shape[-1] // self.size
        return self.qkv(x).reshape(*x.shape[:2], 3, heads, self.size).permute(2, 0, 3, 1, 4)


@pytest.mark.parametrize(
    ("kind", "changing"),
    [
        (Attention, {"heads": 1}),
        (BySplit, {"width": SIZE}),
        (ByMultiple, {"count": 3}),
    ],
)
def test_the_attributes_that_count_heads_follow_the_cut_and_no_others(kind, changing):
    module = randomise(kind(), torch.Generator().manual_seed(0)).eval()
    x = torch.randn(2, LENGTH, 6, dtype=torch.float64)
    nested = nl.nest(module, x, weights=None, num_always=1, kinds=("head",))
    assert nested.plan is None
    assert {size.attribute for size in nested.attribute_sizes} == set(changing)
    for kept in range(1, HEADS + 1):
        small = nl.extract(nested, {"qkv": kept})
        check_cut(module, small, (x,))
        for name, each in changing.items():
            assert getattr(small, name) == kept * each
        assert small.size == SIZE
        with nested.eval().at({"qkv": kept}):
            other = torch.randn(3, LENGTH + 2, 6, dtype=torch.float64)
            torch.testing.assert_close(nested(other), small(other), rtol=TOLERANCE, atol=TOLERANCE)
    assert type(nested.module.heads) is int, "the export gave the attributes back"


@pytest.mark.parametrize("kind", [OneForTwo, Computed])
def test_code_whose_sizes_no_attribute_holds_runs_as_its_graph(kind):
    module = randomise(kind(), torch.Generator().manual_seed(0)).eval()
    x = torch.randn(2, LENGTH, 6, dtype=torch.float64)
    nested = nl.nest(module, x, weights=None, num_always=1, kinds=("head",))
    assert nested.plan is not None
    check_cut(module, nl.extract(nested, {"qkv": 2}), (x,))


class ComparesSizes(nn.Module):
    """Its code compares attributes with sizes of the input, and computes with both."""

    def __init__(self):
        super().__init__()
        self.longest, self.shortest, self.word = 64, 2, nn.Embedding(9, 6)
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(4))

    def forward(self, words):
        length = words.shape[1]
        if length > self.longest or self.shortest > length or length == self.longest:
            raise ValueError(f"between {self.shortest} and {self.longest} words")
        x = self.word(words) * ((self.longest - length) + (length - self.shortest)) / self.longest
        for layer in self.layers:
            x = x + layer(x).relu()
        return x.reshape(length * self.shortest, -1) if self.shortest != 2 else x


def test_attributes_may_meet_sizes_that_are_open():
    """A graph with open sizes is needed to drop layers."""
    nested = nl.nest(
        ComparesSizes(), torch.zeros(3, 6, dtype=torch.int64), weights=None, kinds=("layer",), num_always=1
    ).eval()
    assert [group.name for group in nested.groups.free] == ["layers"]
    for batch, length in ((3, 6), (1, 9)):
        words = torch.arange(batch * length).view(batch, length) % 9
        torch.testing.assert_close(nested(words), nested.module(words))
