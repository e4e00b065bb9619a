"""Twins of a module compute what it would with other tensors in its hands, and leave it alone."""

import pickle
import weakref
from copy import deepcopy
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional

import nestling as nl
from nestling.reading.holders import Holders
from nestling.running.twin import Twin, is_separable


class Plain(nn.Module):
    """Calls its layers by name."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x):
        return self.last(self.first(x).relu())


class ByList(Plain):
    """Calls its layers by a list of its own."""

    def __init__(self):
        super().__init__()
        self.order = [self.first, {"last": (self.last,)}]

    def forward(self, x):
        return self.order[1]["last"][0](self.order[0](x).relu())


class ByClosure(Plain):
    """Calls its layers by functions that hold them."""

    def __init__(self):
        super().__init__()
        self.begin = lambda x: self.first(x).relu()
        self.end = partial(self.finish, scale=1.0)

    def finish(self, x, scale):
        return self.last(x) * scale

    def forward(self, x):
        return self.end(self.begin(x))


class Recurrent(nn.Module):
    """A layer that keeps its weights in a list beside their names."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.GRU(4, 6, batch_first=True), nn.Linear(6, 3)

    def forward(self, x):
        return self.last(self.first(x.unsqueeze(1))[0][:, -1])


class Counting(Plain):
    """Writes on itself while it runs."""

    calls, seen = 0, None

    def forward(self, x):
        self.calls += 1
        self.seen = x
        return super().forward(x)


class Elsewhere(Plain):
    """Some object of its own leads back to its layers."""

    class Engine:
        def __init__(self, layer):
            self.layer = layer

    def __init__(self):
        super().__init__()
        self.engine = self.Engine(self.first)


def weight_normed():
    module = Plain()
    nn.utils.parametrizations.weight_norm(module.first)
    return module


KINDS = {"plain": Plain, "list": ByList, "closure": ByClosure, "recurrent": Recurrent, "weight norm": weight_normed}


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
def test_a_twin_computes_what_the_module_would_with_these_tensors(make):
    module, x = make().double(), torch.randn(5, 4, dtype=torch.float64)
    own = Holders(module).tensors()
    others = {name: torch.randn_like(tensor) for name, tensor in own.items()}
    before = {name: tensor.clone() for name, tensor in own.items()}
    expected = torch.func.functional_call(module, others, x)
    assert is_separable(module)
    twin = Twin(module, {id(own[name]): other for name, other in others.items()})
    torch.testing.assert_close(twin(x), expected, rtol=0, atol=1e-12)
    assert all(torch.equal(before[name], tensor) for name, tensor in Holders(module).tensors().items())
    assert all(left is right for left, right in zip(own.values(), Holders(module).tensors().values(), strict=True))


def test_what_its_code_writes_stays_on_the_twin():
    module = Counting()
    twin = Twin(module, {})
    twin(torch.zeros(1, 4)), twin(torch.zeros(1, 4))
    assert (twin.module.calls, module.calls, module.seen) == (2, 0, None)


def test_a_change_of_the_module_makes_a_twin_old():
    module = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
    twin = Twin(module, {})
    assert twin.is_fresh()
    module[1].p = 0.25
    assert not twin.is_fresh()
    twin = Twin(module, {})
    module[1].eval()
    assert not twin.is_fresh()
    twin = Twin(module, {})
    module[1] = nn.ReLU()
    assert not twin.is_fresh()
    twin = Twin(module, {})
    module.append(nn.ReLU())
    assert not twin.is_fresh()


def test_a_change_of_the_module_is_seen_at_a_cut():
    module = nn.Sequential(nn.Linear(4, 8), nn.LeakyReLU(0.1), nn.Linear(8, 2))
    nested, x = nl.nest(module, torch.randn(2, 4), weights=None, num_blocks=4).eval(), torch.randn(3, 4)
    with torch.no_grad(), nested.at(0.5):
        first = nested(x)
        nested.module[1].negative_slope = 0.9
        second = nested(x)
    assert not torch.equal(first, second)
    torch.testing.assert_close(second, nl.extract(nested, 0.5)(x))


@pytest.mark.parametrize("copied", [deepcopy, lambda nested: pickle.loads(pickle.dumps(nested))])
def test_a_network_is_copied_with_its_cuts_in_use(copied):
    """A copy's cuts are of its own tensors."""
    nested, x = nl.nest(Plain(), torch.randn(2, 4), weights=None, num_blocks=3).eval(), torch.randn(3, 4)
    with torch.no_grad(), nested.at(0.5):
        first = nested(x)
        copy = copied(nested)
    with torch.no_grad(), copy.at(0.5):
        assert torch.equal(copy(x), first)
        copy.module.first.weight.zero_()
        assert not torch.equal(copy(x), first)
    with torch.no_grad(), nested.at(0.5):
        assert torch.equal(nested(x), first)


class Odd(nn.Module):
    """A buffer that may come later, and activations in a plain list."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 2)
        self.register_buffer("shift", None)
        self.acts = [nn.LeakyReLU(0.1)]

    def forward(self, x):
        x = self.acts[0](self.first(x))
        return self.last(x if self.shift is None else x + self.shift)


def set_shift(module):
    module.shift = torch.ones(())


def set_slope(module):
    module.acts[0].negative_slope = 0.9


def set_item(module):
    module.acts[0] = nn.Tanh()


@pytest.mark.parametrize("change", [set_shift, set_slope, set_item])
def test_changes_of_what_is_no_attribute_are_seen_at_a_cut(change):
    torch.manual_seed(0)
    nested, x = nl.nest(Odd(), torch.randn(2, 4), weights=None, num_blocks=4).eval(), torch.randn(3, 4)
    with torch.no_grad(), nested.at(0.5):
        first = nested(x)
        change(nested.module)
        second = nested(x)
    with nested.at(0.5), torch.enable_grad():  # made for this call alone
        torch.testing.assert_close(second, nested(x).detach())
    assert not torch.allclose(first, second)


class Hooked(nn.Module):
    """A hook that reads a parameter of the module it belongs to."""

    def __init__(self):
        super().__init__()
        self.first, self.last, self.gain = nn.Linear(4, 8), nn.Linear(8, 2), nn.Parameter(torch.rand(8))
        self.first.register_forward_hook(self.scale)

    def scale(self, part, args, output):
        return output * self.gain

    def forward(self, x):
        return self.last(self.first(x))


class Child(nn.Module):
    """A part that knows its parent by a weak reference."""

    def __init__(self, parent):
        super().__init__()
        object.__setattr__(self, "parent", weakref.ref(parent))

    def forward(self, x):
        return self.parent().first(x)


class Parent(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 2)
        self.child = Child(self)

    def __deepcopy__(self, memo):
        copy = Parent()
        copy.load_state_dict(self.state_dict())
        return copy

    def forward(self, x):
        return self.last(self.child(x).relu())


@pytest.mark.parametrize("make", [Hooked, Parent])
def test_hooks_and_weak_references_to_the_module_see_the_tensors_of_the_cut(make):
    torch.manual_seed(0)
    module = make()
    assert not is_separable(module)
    nested, x = nl.nest(module, torch.randn(2, 4), weights=None, num_blocks=4).eval(), torch.randn(3, 4)
    with torch.no_grad(), nested.at(0.5):
        found = nested(x)
    half = {name: own[..., :4] if own.shape[-1] == 8 else own for name, own in module.state_dict().items()}
    half |= {name: own[:4] for name, own in half.items() if len(own) == 8}
    expected = functional.linear(x, half["first.weight"], half["first.bias"])
    expected = expected * half["gain"] if "gain" in half else expected.relu()
    torch.testing.assert_close(found, functional.linear(expected, half["last.weight"], half["last.bias"]))


def test_hooks_run_whenever_they_were_added():
    module = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    nested, x, seen = nl.nest(module, torch.randn(2, 4), weights=None, num_blocks=4).eval(), torch.randn(3, 4), []
    with torch.no_grad(), nested.at(0.5):
        nested(x)
        handle = nested.module[0].register_forward_hook(lambda part, args, output: seen.append(output.shape))
        nested(x)
        handle.remove()
        nested(x)
    assert seen == [(3, 4)]


def test_a_module_that_an_object_of_its_own_leads_to_has_no_twin():
    assert not is_separable(Elsewhere())
    assert is_separable(Plain())


class Tied(nn.Module):
    """Reads words by the matrix that it writes them by."""

    def __init__(self):
        super().__init__()
        self.words, self.first, self.last = nn.Embedding(11, 8), nn.Linear(8, 8), nn.Linear(8, 11, bias=False)
        self.last.weight = self.words.weight

    def forward(self, x):
        return self.last(self.first(self.words(x)).relu())


def test_assigned_tensors_stay_tied():
    torch.manual_seed(0)
    x = torch.arange(6).view(2, 3)
    own, other = (nl.nest(Tied(), x, weights=None, num_blocks=4, where="all").eval() for _ in range(2))
    own.load_state_dict(other.state_dict(), assign=True)
    assert own.module.words.weight is own.module.last.weight
    with torch.no_grad(), own.at(0.5), other.at(0.5):
        assert torch.equal(own(x), other(x))
