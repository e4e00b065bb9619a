"""Networks of the zoo, and networks whose frozen axes hold rows of other groups, saved and loaded."""

import pytest
import torch
import zoo
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import nestling as nl
from effort import SOAK
from nestling.errors import RunError
from nestling.storage.files import read_tensors, write_tensors

CASES = zoo.CASES if SOAK else zoo.CASES[::9]
CUTS = (0.1, 0.5, 1.0)
SMALL = {"num_blocks": 3, "num_always": 1}
IMAGE = torch.randn(3, 1, 8, 8, generator=torch.Generator().manual_seed(0))
WHERE = ("inner", "all")


class PaddedOnBothSides(nn.Module):
    """A residual stream that a shortcut thins out and sets between channels of zeros, twice."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3, padding=1)
        self.conv1, self.conv2 = nn.Conv2d(4, 6, 3, 2, 1), nn.Conv2d(6, 8, 3, 1, 1)
        self.conv3, self.conv4 = nn.Conv2d(8, 6, 3, 2, 1), nn.Conv2d(6, 12, 3, 1, 1)
        self.norm, self.head = nn.BatchNorm2d(8), nn.Linear(12, 10)

    def forward(self, x):
        x = self.stem(x).relu()
        x = self.norm(self.conv2(self.conv1(x).relu()) + self.shortcut(x)).relu()
        x = self.conv4(self.conv3(x).relu()) + self.shortcut(x)
        return self.head(x.relu().mean((2, 3)))

    def shortcut(self, x):
        return F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 2, 2))


class JoinedWithFrozen(nn.Module):
    """Channels that can be cut between channels that can't, under one norm."""

    def __init__(self):
        super().__init__()
        self.left, self.middle, self.right = nn.Conv2d(1, 3, 3), nn.Conv2d(1, 4, 3), nn.Conv2d(1, 3, 3)
        self.norm, self.head = nn.BatchNorm2d(10), nn.Linear(10, 10)

    def forward(self, x):
        outer = self.left(x).softmax(1), self.right(x).cumsum(1)
        return self.head(self.norm(torch.cat([outer[0], self.middle(x), outer[1]], 1)).relu().mean((2, 3)))


SHARING = {"padded": PaddedOnBothSides, "joined": JoinedWithFrozen}


def has_rows_of_two_groups(nested):
    """Whether two groups list the same row of the same axis of a tensor."""
    rows = [(p.tensor, p.axis, row) for g in nested.groups for p in g.slices for row in p.rows.flatten().tolist()]
    return len(set(rows)) < len(rows)


def assert_same(loaded, nested, call):
    """Groups with all their rows, and outputs at every cut, are the same."""
    assert repr(loaded.groups) == repr(nested.groups)
    for own, other in zip(loaded.groups, nested.groups, strict=True):
        for piece, like in zip(own.slices, other.slices, strict=True):
            assert (piece.tensor, piece.axis, piece.reads) == (like.tensor, like.axis, like.reads)
            assert torch.equal(piece.rows, like.rows)
    for cut in CUTS:
        with torch.no_grad(), loaded.at(cut), nested.at(cut):
            torch.testing.assert_close(loaded(*call), nested(*call), rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore:the network takes its path from the data")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_network_of_the_zoo_comes_back(case, tmp_path):
    nested = nl.nest(case.full().eval(), case.example(), weights=None, where="all", **SMALL)
    nl.save(nested, tmp_path)
    assert_same(nl.load(tmp_path, case.full().eval()), nested, case.example())


@pytest.mark.parametrize("weights", [None, "ivon"])
@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("make", SHARING.values(), ids=SHARING)
def test_rows_of_a_frozen_axis_can_be_those_of_another_group(make, where, weights, tmp_path):
    nested = nl.nest(make(), IMAGE, weights=weights, where=where, **SMALL).eval()
    assert has_rows_of_two_groups(nested)
    nl.save(nested, tmp_path)
    assert_same(nl.load(tmp_path, make()), nested, (IMAGE,))


def test_a_run_with_padded_shortcuts_opens(tmp_path):
    nested = nl.nest(PaddedOnBothSides(), IMAGE, weights=None, **SMALL)
    data = TensorDataset(torch.rand(24, 1, 8, 8), torch.arange(24) % 10)
    recipe = nl.Recipe(epochs=1, batch_size=8, samples=1, cuts=(0.5, 1.0))
    run = nl.train(nested, (data, data), recipe, out=tmp_path / "run", quiet=True)
    assert_same(nl.open_run(tmp_path / "run", PaddedOnBothSides()).nested.eval(), run.nested.eval(), (IMAGE,))


def of_frozen(change):
    """A change of the frozen group that lists rows of another group."""
    return lambda groups: [change(own) if own["name"] == "conv2" else own for own in groups]


FORGED = {
    "rows three times in a frozen group": of_frozen(lambda own: own | {"slices": own["slices"] * 3}),
    "a frozen group three times": lambda groups: [*groups, groups[-1] | {"name": "x"}, groups[-1] | {"name": "y"}],
    "a free group twice": lambda groups: [*groups, groups[0] | {"name": "other"}],
    "a frozen group that is free": of_frozen(lambda own: own | {"frozen_because": None, "free": True}),
    "rows beyond the end": of_frozen(
        lambda own: own | {"slices": [own["slices"][0] | {"rows": [1, [8, 1]]}, *own["slices"][1:]]}
    ),
}


@pytest.mark.parametrize("forge", FORGED.values(), ids=FORGED)
def test_rows_that_no_network_has_are_refused(forge, tmp_path):
    nl.save(nl.nest(PaddedOnBothSides(), IMAGE, weights=None, where="all", **SMALL), tmp_path)
    tensors, record = read_tensors(tmp_path / "model.safetensors")
    write_tensors(tmp_path / "model.safetensors", tensors, record | {"groups": forge(record["groups"])})
    with pytest.raises(RunError, match="slices: got") as caught:
        nl.load(tmp_path, PaddedOnBothSides())
    assert "\n" not in str(caught.value)
