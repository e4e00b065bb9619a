"""What nest and at say to wrong arguments, that nothing changes then, and what the right ones choose."""

import logging
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from copy import deepcopy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from nestling import ArgumentError, Cut, NestlingError, cost, extract, models, nest
from nestling.distributions import Geometric, Uniform
from nestling.errors import DtypeError, NonFiniteError, RangeError, ShapeError, TraceError
from nestling.reading.rules import Call, elementwise


class Small(nn.Module):
    """A residual block with a norm, and a head."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, padding=1)
        self.block = nn.Sequential(nn.Conv2d(6, 10, 1), nn.BatchNorm2d(10), nn.ReLU(), nn.Conv2d(10, 6, 1))
        self.hidden, self.head = nn.Linear(6, 7), nn.Linear(7, 4)

    def forward(self, x):
        x = F.relu(self.stem(x))
        x = x + self.block(x)
        return self.head(torch.tanh(self.hidden(x.mean((2, 3)))))


IMAGES = torch.randn(2, 3, 5, 5, generator=torch.Generator().manual_seed(0))


@contextmanager
def unchanged(module):
    """Inside the block the values and modes of a module stay as they are."""
    before, modes = deepcopy(module.state_dict()), [part.training for part in module.modules()]
    yield module
    now = module.state_dict()
    assert now.keys() == before.keys()
    assert all(torch.allclose(now[key], value, rtol=0, atol=0, equal_nan=True) for key, value in before.items())
    assert [part.training for part in module.modules()] == modes


def small():
    torch.manual_seed(0)
    module = Small()
    module.block[1].eval()
    return module


@pytest.fixture
def module():
    """A network in train mode with one part in eval mode, which must be the same when the test is over."""
    with unchanged(small()) as found:
        yield found


@pytest.fixture(scope="module")
def nested():
    torch.manual_seed(0)
    return nest(Small(), IMAGES, weights=None, num_blocks=4, num_always=2).eval()


def free(nested):
    return [group.name for group in nested.groups.free]


# The table

TABLE = """\
group    kind     units  blocks  always  tensors  note
------------------------------------------------------
block.0  channel     10       4       2        7
hidden   neuron       7       4       2        3
stem     channel      6       -       -        6  frozen: a residual stream, which where='all' cuts too
head     neuron       4       -       -        2  frozen: returned to the caller"""


def test_the_groups_print_as_a_table(nested):
    rows = str(nested.groups).splitlines()
    assert sorted(rows) == sorted(TABLE.splitlines())
    assert rows[:2] == TABLE.splitlines()[:2]
    assert repr(nested.groups) == str(nested.groups)
    assert all(line == line.rstrip() for line in rows)


def test_a_group_over_a_norm_says_so():
    module = nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.Linear(6, 2))
    (group,) = nest(module, torch.randn(2, 4), weights=None).groups.free
    assert not group.exact
    assert re.search(r"^0 .* inexact: a norm runs over it$", str(nest(module, torch.randn(2, 4)).groups), re.MULTILINE)


def test_groups_by_name_and_by_position(nested):
    groups = nested.groups
    assert groups["hidden"].size == 7
    assert groups[0] is next(iter(groups))
    assert len(groups) == len(groups.free) + len(groups.frozen)
    with pytest.raises(ArgumentError, match=r"'nope'.*\(block\.0, hidden\).*Print nested\.groups"):
        groups["nope"]


# Wrong examples


@pytest.mark.parametrize(
    ("example", "said"),
    [
        (torch.randn(2, 4, 5, 5), "3 channels, but got 4 channels"),
        (torch.randn(2, 3), "input of size: [2, 3]"),
        (IMAGES.double(), "double"),
        ((IMAGES, IMAGES), "positional arguments"),
        ({"y": IMAGES}, "'y'"),
        ((), "'x'"),
        (None, "NoneType"),
    ],
    ids=["channels", "axes", "dtype", "too_many", "wrong_name", "too_few", "none"],
)
def test_a_wrong_example_is_refused(module, example, said):
    with pytest.raises(TraceError) as caught:
        nest(module, example)
    assert said in str(caught.value)
    assert "does not run on the example" in str(caught.value)
    assert "Pass what the network is called with" in str(caught.value)
    assert len(str(caught.value)) < 600


def test_a_wrong_example_is_blamed_on_the_line_where_it_fails(module):
    with pytest.raises(TraceError, match=r"test_nest_arguments\.py:\d+ \(x = F\.relu\(self\.stem\(x\)\)\)"):
        nest(module, torch.randn(2, 4, 5, 5))


def test_a_wrong_example_is_blamed_on_the_module_that_refuses_it():
    module = nn.Sequential(nn.Linear(4, 6), nn.Sequential(nn.ReLU(), nn.Linear(5, 2)))
    with pytest.raises(TraceError, match=r"\b1\.1\b"):
        nest(module, torch.randn(2, 4))


def test_a_wrong_call_is_not_blamed_on_nestling(module):
    with pytest.raises(TraceError) as caught:
        nest(module, (IMAGES, IMAGES))
    assert "discovery.py" not in str(caught.value)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["block.3.weight", "hidden.bias"])
def test_weights_that_are_not_finite_are_named(name, value):
    module = small()
    with torch.no_grad():
        module.get_parameter(name).view(-1)[1] = value
    with (
        unchanged(module),
        pytest.raises(NonFiniteError, match=rf"^{re.escape(name)}: got 1 of \d+ entries NaN or infinite"),
    ):
        nest(module, IMAGES)


@pytest.mark.parametrize("where", ["block.1.running_var", "example"])
def test_buffers_and_examples_that_are_not_finite_are_named(where):
    module, example = small(), IMAGES.clone()
    (example if where == "example" else module.get_buffer(where)).view(-1)[1] = float("nan")
    with pytest.raises(NonFiniteError, match=where):
        nest(module, example)


def test_a_parameter_of_whole_numbers_is_no_reason_to_refuse():
    class Reordered(nn.Module):
        def __init__(self):
            super().__init__()
            self.places = nn.Parameter(torch.tensor([2, 0, 1, 3]), requires_grad=False)
            self.first, self.second = nn.Linear(4, 6), nn.Linear(6, 2)

        def forward(self, x):
            return self.second(F.relu(self.first(x[:, self.places])))

    assert free(nest(Reordered(), torch.randn(2, 4))) == ["first"]


# Wrong cuts


@pytest.mark.parametrize(
    ("cut", "error", "said"),
    [
        ({"blok.0": 2}, ArgumentError, r"'blok\.0'.*\(block\.0, hidden\).*Print nested\.groups"),
        (Cut((("blok.0", 2),)), ArgumentError, r"'blok\.0'"),
        ({"head": 1}, RangeError, r"^head: .*left out.*not cut: returned to the caller"),
        ({"stem": 1}, RangeError, r"^stem: .*where='all'"),
        ({"hidden": 0}, RangeError, r"^hidden: got width 0, .*between 2 and 4 blocks"),
        ({"hidden": 1}, RangeError, r"^hidden: got width 1, .*between 2 and 4 blocks"),
        ({"hidden": 5}, RangeError, r"^hidden: got width 5, .*between 2 and 4 blocks"),
        ({"hidden": -1}, RangeError, r"^hidden: got width -1"),
        ({"hidden": 2.5}, DtypeError, r"^hidden: got 2\.5, .*whole number of blocks"),
        ({"hidden": 0.5}, DtypeError, r"^hidden: got 0\.5, .*whole number of blocks"),
        ({"hidden": "2"}, DtypeError, r"^hidden: got '2'"),
        ({"hidden": True}, DtypeError, r"^hidden: got True"),
        (0.0, RangeError, r"^cut: got 0\.0, .*within \(0, 1\]"),
        (-0.5, RangeError, r"within \(0, 1\]"),
        (1.01, RangeError, r"within \(0, 1\].*widths by name"),
        (2, RangeError, r"within \(0, 1\]"),
        (float("nan"), RangeError, r"within \(0, 1\]"),
        (float("inf"), RangeError, r"within \(0, 1\]"),
        (True, DtypeError, r"^cut: got True"),
        ("half", DtypeError, r"^cut: got 'half'.*For half of every group pass 0\.5"),
        (None, DtypeError, r"^cut: got None"),
        ([0.5], DtypeError, r"^cut: got \[0\.5\]"),
    ],
    ids=str,
)
def test_a_wrong_cut_is_refused(nested, cut, error, said):
    before = nested.cut
    with pytest.raises(error, match=said), nested.at(cut):
        pytest.fail("the block was entered")
    assert nested.cut == before
    with pytest.raises(error, match=said):
        extract(nested, cut)


def test_a_wrong_cut_is_refused_after_a_right_one_too(nested):
    with nested.at({"hidden": 2}):
        pass
    with pytest.raises(DtypeError, match="whole number"), nested.at({"hidden": 2.0}):
        pass


def test_a_fraction_is_the_nearest_width_and_never_less_than_what_is_always_kept(nested):
    expected = {1: 4, 0.9: 4, 0.87: 3, 0.63: 3, 0.62: 2, 0.5: 2, 0.01: 2}
    for fraction, width in expected.items():
        with nested.at(fraction):
            assert nested.cut.as_dict() == {"block.0": width, "hidden": width}


def test_groups_that_a_cut_does_not_name_stay_whole(nested):
    with nested.at({"hidden": 2}):
        assert nested.cut.as_dict() == {"block.0": 4, "hidden": 2}
    with nested.at({}):
        assert nested.cut.as_dict() == {"block.0": 4, "hidden": 4}


# What an exception leaves behind


class Stumbles(nn.Module):
    """Depthwise convolution, a norm, and an error in the middle of a call if asked for."""

    def __init__(self):
        super().__init__()
        self.first, self.depthwise = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 3, groups=8)
        self.norm, self.head = nn.GroupNorm(4, 8), nn.Conv2d(8, 2, 1)
        self.stumble = False

    def forward(self, x):
        y = self.norm(self.depthwise(self.first(x)))
        if self.stumble:
            raise KeyError("stumbled")
        return self.head(y)


class StumblesAsGraph(nn.Module):
    """Attention with sizes in its code: the graph runs, and refuses an input of another width."""

    def __init__(self):
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(8, 8) for _ in range(4))

    def forward(self, x):
        query, key, value = (
            layer(x).view(*x.shape[:2], 4, 2).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        return self.out(F.scaled_dot_product_attention(query, key, value).transpose(1, 2).reshape(x.shape))


def holdings(module):
    """Every tensor by identity, and every size that a layer keeps."""
    tensors = {name: id(tensor) for name, tensor in module.state_dict(keep_vars=True).items()}
    sizes = ("groups", "num_groups", "in_channels", "out_channels", "num_features", "num_channels", "normalized_shape")
    kept = {
        (path, size): vars(part)[size] for path, part in module.named_modules() for size in sizes if size in vars(part)
    }
    return tensors, kept


@pytest.mark.parametrize("weights", [None, "gaussian"])
def test_a_call_that_fails_inside_a_cut_leaves_the_network_as_it_was(weights):
    found = nest(Stumbles(), IMAGES, weights=weights, kinds=("channel", "path"), num_always=1).eval()
    assert free(found) == ["first"]
    before, whole = holdings(found.module), found(IMAGES)
    for grad in (torch.enable_grad(), torch.no_grad()):
        with grad:
            found.module.stumble = True
            with pytest.raises(KeyError, match="stumbled"), found.at(0.5):
                found(IMAGES)
            assert found.cut["first"] == found.groups["first"].num_blocks
            assert holdings(found.module) == before
            found.module.stumble = False
            assert torch.equal(found(IMAGES), whole)


@pytest.mark.parametrize("weights", [None, "gaussian"])
def test_a_graph_that_fails_inside_a_cut_leaves_the_network_as_it_was(weights):
    x = torch.randn(2, 3, 8)
    found = nest(StumblesAsGraph(), x, weights=weights, kinds=("head",), num_always=1).eval()
    assert [group.kind for group in found.groups.free] == ["head"]
    before, whole = holdings(found.module), found(x)
    with pytest.raises(ShapeError, match=r"shape\[2\] == 8"), found.at(0.5):
        found(torch.randn(2, 3, 7))
    assert holdings(found.module) == before
    assert torch.equal(found(x), whole)


def test_an_exception_in_the_block_restores_the_cut_around_it(nested):
    with nested.at(0.5):
        outer = nested.cut
        with pytest.raises(ZeroDivisionError), nested.at({"hidden": 3}):
            raise ZeroDivisionError
        assert nested.cut == outer
    assert nested.cut.as_dict() == {"block.0": 4, "hidden": 4}


# Wrong arguments of nest


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"order": "uphill"}, r"^order: got 'uphill'.*downhill, uniform, geometric"),
        ({"order": None}, r"^order: got None"),
        ({"weights": "laplace"}, r"^weights: got 'laplace'.*gaussian.* or None"),
        ({"sampling": "flipout"}, r"^sampling: got 'flipout'.*local, channel, shared, each"),
        ({"where": "outer"}, r"^where: got 'outer'.*'inner' or 'all'"),
        ({"layers": "block"}, r"^layers: got 'block'.*'network'.*'stage'"),
        ({"kinds": ("chanel",)}, r"^kinds: got \['chanel'\].*neuron, channel, head, path, layer"),
        ({"exclude": ("blok",)}, r"^exclude: got 'blok'.*module or tensor of the network"),
        ({"exclude": ("bloc",)}, r"^exclude: got 'bloc'"),
        ({"only": ("blok.0",)}, r"^only: got 'blok\.0'.*block\.0, hidden"),
        ({"num_blocks": 0}, r"got 0.*at least 1"),
        ({"num_blocks": 2.5}, r"^num_blocks: got 2\.5.*whole number"),
        ({"num_always": 0}, r"^num_always: got 0.*at least 1"),
        ({"num_always": 1.0}, r"^num_always: got 1\.0.*whole number"),
    ],
    ids=str,
)
def test_wrong_arguments_are_named(module, options, said):
    with pytest.raises(ArgumentError, match=said):
        nest(module, IMAGES, **options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"num_blocks": 0}, r"^num_blocks: got 0"),
        ({"num_blocks": True}, r"^num_blocks: got True"),
        ({"order": ["downhill"]}, r"^order: got \['downhill'\]"),
        ({"exclude": "stem"}, r"^exclude: got 'stem'.*tuple"),
        ({"only": "hidden"}, r"^only: got 'hidden'.*tuple"),
        ({"kinds": "channel"}, r"^kinds: got 'channel'.*tuple"),
        ({"only": ("head",)}, r"^only: .*head.*returned to the caller"),
        ({"weights": None, "sampling": "flipout"}, r"^sampling: got 'flipout'"),
    ],
    ids=str,
)
def test_wrong_arguments_are_named_for_what_they_are(module, options, said):
    with pytest.raises(ArgumentError, match=said):
        nest(module, IMAGES, **options)


def test_what_is_no_module_is_refused():
    with pytest.raises(NestlingError, match=r"nn\.Module"):
        nest(lambda x: x, IMAGES)


def test_lazy_modules_are_refused():
    with pytest.raises(NestlingError, match=r"0\.weight.*Run the network once"):
        nest(nn.Sequential(nn.LazyLinear(3), nn.Linear(3, 2)), torch.randn(2, 4))


# What the arguments choose


def note(nested, name):
    return nested.groups[name].frozen_because


def test_inner_axes_by_default_and_streams_if_asked(module):
    assert free(nest(module, IMAGES)) == ["block.0", "hidden"]
    assert sorted(free(nest(module, IMAGES, where="all"))) == ["block.0", "hidden", "stem"]


def test_kinds(module):
    neurons = nest(module, IMAGES, kinds=("neuron",), where="all")
    assert free(neurons) == ["hidden"]
    assert note(neurons, "block.0") == "kinds does not include 'channel'"
    assert free(nest(module, IMAGES, kinds=())) == []


class Kinds(nn.Module):
    """Residual blocks of a convolution, of paths, of heads and of neurons."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.plain = nn.Sequential(nn.Conv2d(8, 6, 1), nn.ReLU(), nn.Conv2d(6, 8, 1))
        self.paths = nn.Sequential(nn.Conv2d(8, 12, 1), nn.ReLU(), nn.Conv2d(12, 12, 3, padding=1, groups=4))
        self.merge, self.hidden, self.head = nn.Conv2d(12, 8, 1), nn.Linear(8, 5), nn.Linear(5, 4)
        self.attention = StumblesAsGraph()

    def forward(self, x):
        x = F.relu(self.stem(x))
        x = x + self.plain(x)
        x = x + self.merge(F.relu(self.paths(x)))
        x = x.flatten(2).transpose(1, 2)
        x = x + self.attention(x)
        return self.head(torch.tanh(self.hidden(x.mean(1))))


def test_all_kinds_of_units_by_default():
    """Not layers, which can't be masked, and not bits, which change what is computed."""
    found = nest(Kinds(), IMAGES)
    assert {(group.name, group.kind) for group in found.groups.free} == {
        ("plain.0", "channel"),
        ("paths.0", "path"),
        ("attention.query", "head"),
        ("hidden", "neuron"),
    }
    two = nest(Kinds(), IMAGES, kinds=("channel", "neuron"))
    assert free(two) == ["plain.0", "hidden"]


def test_kinds_are_noted_as_far_as_there_are_units_of_them(module):
    """So that a run of a network without heads and paths goes on that was begun when these were not the default."""
    assert nest(module, IMAGES).made_with["kinds"] == ["channel", "neuron"]
    assert nest(Kinds(), IMAGES).made_with["kinds"] == ["channel", "neuron", "head", "path"]
    assert nest(Kinds(), IMAGES, kinds=["path", "neuron"]).made_with["kinds"] == ["path", "neuron"]


def test_half_of_resnext_is_about_half_by_default():
    network = models.build("resnext_cifar", width=0.1)
    found = nest(network, torch.zeros(2, 3, 8, 8), weights=None)
    assert cost(found, 0.5).macs < 0.6 * cost(found, 1.0).macs


@pytest.mark.parametrize("exclude", ["block.1", "block.1.running_mean", "block.0.bias", "block.3", "block"])
def test_exclude_by_module_or_tensor(module, exclude):
    """Whatever is named keeps its size, so the group that would cut it is not cut."""
    found = nest(module, IMAGES, exclude=(exclude,), weights=None)
    assert free(found) == ["hidden"]
    assert note(found, "block.0") == "excluded"
    small = extract(found, 0.5)
    assert all(a.shape == b.shape for a, b in zip(module.block.parameters(), small.block.parameters(), strict=True))


def test_only(module):
    found = nest(module, IMAGES, only=("stem",))
    assert free(found) == ["stem"]
    assert note(found, "hidden") == "not among the groups to cut"
    assert free(nest(module, IMAGES, only=())) == []


def test_what_is_excluded_is_left_alone_whatever_only_says(module):
    assert free(nest(module, IMAGES, only=("block.0", "hidden"), exclude=("block.1",))) == ["hidden"]


@pytest.mark.parametrize(
    ("num_blocks", "units"),
    [(4, [3, 6, 8, 10]), (3, [4, 7, 10]), (10, list(range(1, 11))), (64, list(range(1, 11))), (1, [10])],
)
def test_blocks_are_as_even_as_whole_units_allow(module, num_blocks, units):
    group = nest(module, IMAGES, num_blocks=num_blocks, num_always=1).groups["block.0"]
    assert [group.units(width + 1) for width in range(group.num_blocks)] == units
    assert torch.bincount(group.blocks()).tolist() == torch.tensor([0, *units]).diff().tolist()


@pytest.mark.parametrize("order", ["downhill", "uniform", "geometric"])
def test_more_blocks_always_kept_than_there_are(module, order):
    """A group smaller than what is always kept stays whole; the larger one can still be cut."""
    found = nest(module, IMAGES, num_always=8, order=order)
    assert (found.groups["block.0"].num_always, found.groups["hidden"].num_always) == (8, 7)
    cut = found.sample_cut().as_dict()
    assert cut["hidden"] == 7
    assert 8 <= cut["block.0"] <= 10
    with found.eval().at(0.01):
        assert found.cut.as_dict() == {"block.0": 8, "hidden": 7}
        found(IMAGES)


def test_orders_by_name_or_by_function(module):
    assert {type(order).__name__ for order in nest(module, IMAGES).orders.values()} == {"Downhill"}
    assert {type(order) for order in nest(module, IMAGES, order="uniform").orders.values()} == {Uniform}
    found = nest(module, IMAGES, order=lambda blocks, always: Geometric(blocks, 0.5, num_always=always), num_always=3)
    assert {name: order.num_always for name, order in found.orders.items()} == {"block.0": 3, "hidden": 3}
    assert {name: order.num_blocks for name, order in found.orders.items()} == {"block.0": 10, "hidden": 7}


@pytest.mark.parametrize(
    "example", [IMAGES, (IMAGES,), [IMAGES], {"x": IMAGES}], ids=["tensor", "tuple", "list", "dict"]
)
def test_examples_as_they_are_called(module, example):
    found = nest(module, example).eval()
    assert free(found) == ["block.0", "hidden"]
    assert torch.allclose(extract(found, 1.0)(IMAGES), found(IMAGES), atol=1e-5)


# Rules


@torch.library.custom_op("nestling_test::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@twice.register_fake
def _(x):
    return torch.empty_like(x)


class Operation(nn.Module):
    """Two linear layers with an operation between them that has no rule."""

    def __init__(self, operation):
        super().__init__()
        self.first, self.second = nn.Linear(4, 6), nn.Linear(6, 2)
        self.operation = operation

    def forward(self, x):
        return self.second(self.operation(self.first(x)))


UNKNOWN = pytest.mark.parametrize(
    ("operation", "name"), [(lambda x: twice(x), "nestling_test::twice"), (torch.sinc, "sinc")], ids=["custom", "aten"]
)


@UNKNOWN
def test_an_operation_without_a_rule_freezes_and_is_named(operation, name):
    found = nest(Operation(operation), torch.randn(2, 4))
    assert free(found) == []
    reason = note(found, "first")
    assert reason.startswith(f"{name} is an operation without a rule at test_nest_arguments.py:")
    assert reason.endswith("(return self.second(self.operation(self.first(x))))")


@UNKNOWN
def test_a_rule_of_the_users_unfreezes_it(operation, name):
    module, x = Operation(operation).double(), torch.randn(2, 4, dtype=torch.float64)
    found = nest(module, x, weights=None, rules={name: elementwise.unary}, num_always=1).eval()
    assert free(found) == ["first"]
    small = extract(found, {"first": 2})
    assert small.first.weight.shape == (2, 4)
    inner = operation(F.linear(x, module.first.weight[:2], module.first.bias[:2]))
    by_hand = F.linear(inner, module.second.weight[:, :2], module.second.bias)
    assert torch.allclose(small(x), by_hand, rtol=0, atol=1e-12)
    assert free(nest(module, x)) == [], "the rule was for that call"


def test_a_rule_that_is_wrong_is_found_out():
    """Softmax is not element by element: the proof on the example fails and the group is frozen."""
    module = Operation(nn.Softmax(-1))
    found = nest(module, torch.randn(2, 4), rules={"softmax": elementwise.unary})
    assert free(found) == []
    assert "changed what the rest of the network computes" in note(found, "first")


def test_a_rule_is_given_the_call():
    seen = []

    def rule(call: Call):
        seen.append((call.name, call.shape, [value.shape for value in call.all_tensors()]))
        return call.unknown()

    nest(Operation(torch.sinc), torch.randn(2, 4), rules={"sinc": rule})
    assert seen[0] == ("sinc", (2, 6), [(2, 6)])


# Code whose path depends on the data


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 2)

    def forward(self, x):
        y = F.relu(self.first(x))
        if x.sum() > 0:
            y = F.relu(self.second(y))
        return self.head(y)


def test_a_path_that_depends_on_the_data_is_named(capfd):
    """Recorded on the example's path with a warning, or refused: in both cases the line is named, and nothing more."""
    said = r"test_nest_arguments\.py:\d+ \(if x\.sum\(\) > 0:\)"
    with pytest.raises((TraceError, UserWarning), match=said):
        nest(Branches(), torch.ones(2, 4))
    assert capfd.readouterr() == ("", "")


class Talking(Branches):
    """While it runs, another thread logs and writes to stderr."""

    def forward(self, x):
        with ThreadPoolExecutor(1) as another:
            another.submit(self.talk).result()
        return super().forward(x)

    @staticmethod
    def talk():
        for name in ("someone", "torch.someone"):
            logging.getLogger(name).error("a line of %s", name)
        print("a line of its own", file=sys.stderr)


def test_other_threads_are_heard_while_a_network_is_nested(capfd):
    runs, lines = [], []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    module = Talking()
    module.register_forward_pre_hook(lambda *_: runs.append(1))
    for name in ("someone", "torch"):
        logging.getLogger(name).addHandler(handler)
    try:
        with pytest.raises((TraceError, UserWarning)):
            nest(module, torch.ones(2, 4))
    finally:
        for name in ("someone", "torch"):
            logging.getLogger(name).removeHandler(handler)
    assert len(runs) > 2  # by itself, and in the exports that fail
    assert lines == ["a line of someone", "a line of torch.someone"] * len(runs)
    said = capfd.readouterr().err.splitlines()
    assert len([line for line in said if line == "a line of its own"]) == len(runs)
    assert not [line for line in said if "def forward" in line]


@pytest.mark.filterwarnings("ignore:the network takes its path from the data")
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_path_that_depends_on_the_data_is_never_cut_wrongly(sign):
    """On the example's path a cut is the network with zeros in it, or nothing is cut at all."""
    torch.manual_seed(0)
    module, x = Branches().double(), torch.ones(2, 4, dtype=torch.float64)
    try:
        found = nest(module, x * sign, num_always=1, weights=None).eval()
    except TraceError:
        return
    small = extract(found, 0.5)
    with found.at(0.5):
        assert torch.allclose(small(x * sign), found(x * sign), rtol=0, atol=1e-9)
        kept = {key: tensor.shape for key, tensor in found.tensors_at(found.cut).items()}
    zeroed = deepcopy(module).eval()
    with torch.no_grad():
        for key, shape in kept.items():
            tensor, mask = zeroed.get_parameter(key), torch.zeros_like(zeroed.get_parameter(key))
            mask[tuple(slice(size) for size in shape)] = 1
            tensor.mul_(mask)
    assert torch.allclose(small(x * sign), zeroed(x * sign), rtol=0, atol=1e-9)


@pytest.mark.filterwarnings("ignore:the network takes its path from the data")
def test_a_path_that_the_example_does_not_take_still_runs_at_a_cut():
    x = torch.ones(2, 4)
    found = nest(Branches(), -x, num_always=1, weights=None).eval()
    with found.at(0.5):
        found(x)


def test_the_default_posterior_is_ivon_for_convolutions_and_gaussian_for_the_rest():
    convolutions = nn.Sequential(nn.Conv1d(2, 4, 3), nn.ReLU(), nn.Conv1d(4, 2, 3))
    dense = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 2))
    for module, x, name, sampling in (
        (convolutions, torch.randn(2, 2, 8), "ivon", "shared"),
        (dense, torch.randn(3, 2), "gaussian", "local"),
    ):
        made, named = nest(module, x), nest(module, x, weights=name)
        assert made.made_with == named.made_with
        assert (made.made_with["weights"], made.made_with["sampling"]) == (name, sampling)
        assert made.state_dict().keys() == named.state_dict().keys()
