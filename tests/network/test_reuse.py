"""Results that are looked up must be those that would be computed, whatever writes to what in between."""

import pytest
import torch
from torch import nn

import nestling as nl
from nestling.network.cut import Cut, full_cut
from nestling.network.reuse import Reuse


class InPlace(nn.Module):
    """Writes over what an earlier layer gave, after another has read it, and adds in place."""

    def __init__(self):
        super().__init__()
        self.first, self.side, self.last = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x):
        x = self.first(x)
        side = self.side(x)
        x = torch.relu_(x)
        x += side
        return self.last(x)


MODULES = {
    "plain": lambda: nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)),
    "in place": InPlace,
    "norms": lambda: nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 5), nn.Linear(5, 3)),
}


def without_grad(module, x):
    with torch.no_grad():
        return module(x)


@pytest.mark.parametrize("name", MODULES)
def test_weights_replaced_anywhere(name):
    """Each layer in turn gets other weights: the answer is that of a fresh run, and earlier layers do not run."""
    torch.manual_seed(0)
    module, x = MODULES[name]().eval(), torch.randn(7, 4)
    memo = Reuse()
    with memo:
        without_grad(module, x)
    counts = []
    for part in module.modules():
        if isinstance(part, nn.Linear):
            weight, part.weight = part.weight, nn.Parameter(torch.randn_like(part.weight))
            memo.place([(part.weight, 3)])
            before, kept = memo.num_run, len(memo._known)
            with memo:
                found = without_grad(module, x)
            counts.append(memo.num_run - before)
            assert len(memo._known) > kept
            memo.drop(3)
            assert name == "in place" or len(memo._known) == kept  # all that depends on that weight, and nothing else
            assert torch.equal(found, without_grad(module, x))
            part.weight = weight
    assert counts == sorted(counts, reverse=True)
    assert name == "in place" or counts[-1] < counts[0]  # what is written over can't be read again


def test_the_same_again_runs_nothing():
    module, x = MODULES["plain"](), torch.randn(7, 4)
    memo = Reuse()
    with memo:
        first = without_grad(module, x)
        num_run = memo.num_run
        second = without_grad(module, x)
    assert torch.equal(first, second)
    assert memo.num_run == num_run
    assert memo.num_reused == num_run


def test_inputs_and_weights_that_were_written_to_are_others():
    module, x = MODULES["plain"](), torch.randn(7, 4)
    memo = Reuse()
    with memo:
        without_grad(module, x)
        x.mul_(2)
        assert torch.equal(without_grad(module, x), without_grad(module, x.clone()))
        with torch.no_grad():
            module[0].weight.mul_(2)
        found = without_grad(module, x)
    assert torch.equal(found, without_grad(module, x))


def test_randomness_is_drawn_each_time():
    memo = Reuse()
    x = torch.zeros(100)
    with memo, torch.no_grad():
        assert not torch.equal(torch.rand_like(x), torch.rand_like(x))
        assert not torch.equal(nn.functional.dropout(x + 1), nn.functional.dropout(x + 1))


@pytest.mark.parametrize("name", ["resnet14", "mobilenet_v2"])
def test_cuts_of_the_papers_networks(name):
    torch.manual_seed(0)
    module = nl.models.build(name, width=0.25)
    nested = nl.nest(module, torch.randn(2, 3, 32, 32), num_blocks=4, num_always=1, weights=None).eval()
    x = torch.randn(2, 3, 32, 32)
    full = full_cut(nested.groups)
    memo, names = Reuse(), [group.name for group in nested.groups.free]
    with torch.no_grad():
        tensors = nested.tensors_at(full)
        with memo:
            nested.run(full, tensors, x)
        for chosen in (names[0], names[len(names) // 2], names[-1]):
            cut = Cut(tuple((own, width - (own == chosen)) for own, width in full.widths))
            smaller = nested.tensors_at(cut)
            before = memo.num_run
            with memo:
                found = nested.run(cut, smaller, x)
            assert torch.equal(found, nested.run(cut, smaller, x))
            assert memo.num_run - before < len(list(nested.module.modules())) * 4
    assert memo.num_reused
