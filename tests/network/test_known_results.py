"""Results that are looked up must be those that would be computed, whatever writes to what in between."""

import random

import pytest
import torch
from torch import nn

import nestling as nl
from nestling.reading.cut import Cut, full_cut
from nestling.running.known_results import Reuse


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


def num_kept(memo):
    return sum(map(len, memo._results.values()))


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
            before, kept = memo.num_run, num_kept(memo)
            memo.keep = 3
            with memo:
                found = without_grad(module, x)
            counts.append(memo.num_run - before)
            assert name == "in place" or num_kept(memo) == kept  # nothing that depends on that weight
            assert torch.equal(found, without_grad(module, x))
            part.weight = weight
    assert counts == sorted(counts, reverse=True)
    assert name == "in place" or counts[-1] < counts[0]  # what is written over can't be read again


def test_what_lies_deeper_is_forgotten_when_the_run_ends():
    module, x = MODULES["plain"](), torch.randn(7, 4)
    memo = Reuse()
    memo.place((tensor, number) for number, tensor in enumerate(module.parameters()))
    with memo:
        without_grad(module, x)
    num_run = memo.num_run
    memo.keep = 2  # both tensors of the first layer lie above
    with memo:
        without_grad(module, x)
    assert memo.num_run == num_run  # what is known is used to the end
    assert set(memo._results) == {1}
    with memo:
        assert torch.equal(without_grad(module, x), without_grad(module, x))
    assert set(memo._results) == {1}


def test_the_same_again_runs_nothing():
    module, x = MODULES["plain"](), torch.randn(7, 4)
    memo = Reuse()
    with memo:
        first = without_grad(module, x)
    num_run = memo.num_run
    with memo:
        second = without_grad(module, x)
    assert torch.equal(first, second)
    assert memo.num_run == num_run
    assert memo.num_reused == num_run


@pytest.mark.parametrize("make", [lambda x: torch.relu(x), lambda x: torch.zeros(3), lambda x: x.new_ones(3)])
def test_what_a_run_asks_for_twice_are_two(make):
    """Or writing to one would write to the other."""

    def run(x):
        first, second = make(x), make(x)
        first.add_(1)
        return first * 2 + second

    x, memo = torch.randn(3), Reuse()
    for _ in range(3):
        with memo:
            found = run(x)
        assert torch.equal(found, run(x))


def test_numbers_that_are_equal_and_not_the_same():
    x, memo = torch.ones(3, dtype=torch.int64), Reuse()
    for _ in range(2):
        with memo:
            assert (x + 1).dtype == torch.int64
            assert (x + 1.0).dtype == torch.float32
            assert not torch.signbit(x * 0.0).any()
            assert torch.signbit(x * -0.0).all()
            assert (x + True).dtype == torch.int64


def test_inputs_and_weights_that_were_written_to_are_others():
    module, x = MODULES["plain"](), torch.randn(7, 4)
    memo = Reuse()
    with memo:
        without_grad(module, x)
    for write in (lambda: x.mul_(2), lambda: module[0].weight.mul_(2), lambda: module[2].bias.add_(1)):
        with memo, torch.no_grad():
            write()
        with memo:
            found = without_grad(module, x)
        assert torch.equal(found, without_grad(module, x))


def test_randomness_is_drawn_each_time():
    memo = Reuse()
    x = torch.zeros(100)
    with memo, torch.no_grad():
        assert not torch.equal(torch.rand_like(x), torch.rand_like(x))
        assert not torch.equal(nn.functional.dropout(x + 1), nn.functional.dropout(x + 1))


@pytest.fixture(scope="module", params=["resnet14", "mobilenet_v2"])
def nested(request):
    """With batch norms that use the batch, as a search has them."""
    torch.manual_seed(0)
    module = nl.models.build(request.param, width=0.25)
    made = nl.nest(module, torch.randn(2, 3, 32, 32), num_blocks=4, num_always=1, weights=None).eval()
    for part in made.module.modules():
        part.training = isinstance(part, nn.BatchNorm2d)
    return made


def test_cuts_of_the_papers_networks(nested):
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


def test_any_cut_after_any_other(nested):
    """Whatever was kept, and at whatever depth weights are said to lie, a run gives the bits of a fresh one."""
    chance, x = random.Random(0), torch.randn(2, 3, 32, 32)
    groups, memo = nested.groups.free, Reuse()
    cut = full_cut(nested.groups)
    known = {}
    with torch.no_grad():
        for _ in range(12):
            changed = chance.sample([group.name for group in groups], 2)
            cut = Cut(tuple((own, chance.randint(1, 4) if own in changed else width) for own, width in cut.widths))
            tensors = nested.tensors_at(cut)
            smaller = {name: known.setdefault((name, t.shape), t.contiguous()) for name, t in tensors.items()}
            memo.place((tensor, chance.randrange(9)) for tensor in smaller.values())
            memo.keep = chance.randrange(12)
            with memo:
                found = nested.run(cut, smaller, x)
            assert torch.equal(found, nested.run(cut, smaller, x))
    assert memo.num_reused
