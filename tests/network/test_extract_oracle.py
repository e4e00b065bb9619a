"""The library before the referee: every cut of every zoo network, and of networks drawn from the grammar."""

import random
from functools import cache

import grammar
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from layouts import taken, tries
from oracle import assert_same, check_cut, gradients_agree, hand_built, outputs, randomise, survivors
from zoo import BY_NAME, CASES

import nestling
from effort import SOAK

pytestmark = pytest.mark.filterwarnings("ignore:The tensor attributes self.module.recurrent")

OPTIONS = {
    "order": "uniform",
    "weights": None,
    "num_always": 1,
    "kinds": ("neuron", "channel", "head", "path", "layer"),
    "rescale": False,
}
ONE_UNIT_A_BLOCK = 64
INNER_ONLY = ["residual", "inverted_residual", "resnext", "convnext_block", "vision_transformer", "residual_mlp"]

EXPORTED = [case for case in CASES if case.exports]
SEEDS = {"half": None, "random1": 1, "random2": 2, "random3": 3} if SOAK else {"half": None, "random1": 1}
CUTS = pytest.mark.parametrize("seed", SEEDS.values(), ids=SEEDS)
EACH = pytest.mark.parametrize("case", EXPORTED, ids=lambda case: case.name)


def nest(module, example, num_blocks=ONE_UNIT_A_BLOCK, where="all"):
    """Nest a network with everything random switched off."""
    return nestling.nest(module, example, num_blocks=num_blocks, where=where, **OPTIONS).eval()


@cache
def nested_case(name, num_blocks=ONE_UNIT_A_BLOCK, where="all"):
    """A zoo network with values of its own, and the same nested."""
    case = BY_NAME[name]
    module = randomise(case.full(), torch.Generator().manual_seed(0))
    return module, nest(module, case.example(), num_blocks, where)


def free_groups(nested, layers=False):
    """The groups that can be cut, by name; the blocks of residual streams only if asked for, and then alone."""
    groups = [group for group in nested.groups if group.frozen_because is None and group.num_blocks > 1]
    return {group.name: group for group in groups if (group.kind == "layer") == layers}


def at_anchor(module, anchor, groups):
    """The groups with rows at an anchor; a tied tensor may be known by another of its names."""
    tensors = module.state_dict(keep_vars=True)
    names = {name for name, tensor in tensors.items() if tensor is tensors[anchor.tensor]}
    return [group for group in groups if rows_at(group, names, anchor.axis)]


def rows_at(group, names, axis):
    """How many rows a unit of the group has in a tensor along an axis."""
    counts = dict.fromkeys(names, 0)
    for piece in group.slices:
        if piece.tensor in names and piece.axis == axis:
            assert piece.rows.shape[0] == group.size
            counts[piece.tensor] += piece.rows.shape[1]
    return max(counts.values())


def group_of_size(case, module, nested):
    """The free group that carries each size of the case; a size that may stay whole and does is absent."""
    groups = free_groups(nested).values()
    found = {size: at_anchor(module, case.anchors[size], groups) for size in case.movable}
    assert all(len(groups) <= 1 for groups in found.values()), f"several groups at one anchor: {found}"
    return {size: groups[0] for size, groups in found.items() if groups}


def draw_cut(groups, seed):
    """Blocks kept in each group: half of them, or at random.

    Two at least, where that cuts anything: a norm over one unit is constant, and one rectifier may be shut; then
    every cut looks right.
    """
    if seed is None:
        return {name: -(-group.num_blocks // 2) for name, group in groups.items()}
    chance = random.Random(f"{seed} {sorted(groups)}")
    most = {name: group.num_blocks - 1 for name, group in groups.items()}
    return {name: chance.randint(min(2, blocks), blocks) for name, blocks in most.items()}


def extract(nested, cut, example):
    """The smaller network, which must do what the nested one does at that cut."""
    small = nestling.extract(nested, cut)
    with nested.at(cut):
        expected = nested(*example)
    assert_same(outputs(small, example), torch.utils._pytree.tree_map(torch.detach, expected), "nested at the cut")
    return small


# ---- which groups there are


@EACH
def test_free_groups_are_the_sizes_of_the_case(case):
    module, nested = nested_case(case.name)
    found = group_of_size(case, module, nested)
    missing = set(case.free) - found.keys()
    reasons = [f"{group.name}: {group.frozen_because}" for group in nested.groups if group.frozen_because]
    assert not missing, f"not found as free: {sorted(missing)}; frozen: {reasons}"
    assert len({group.name for group in found.values()}) == len(found), f"sizes share a group: {found}"
    unexpected = free_groups(nested).keys() - {group.name for group in found.values()}
    assert not unexpected, f"free, and no size of the case: {sorted(unexpected)}"


@EACH
def test_groups_have_the_units_of_the_case(case):
    module, nested = nested_case(case.name)
    for size, group in group_of_size(case, module, nested).items():
        assert group.size == group.num_blocks == case.sizes[size]
        assert rows_at(group, {case.anchors[size].tensor}, case.anchors[size].axis) in (0, case.anchors[size].rows)
        assert group.exact == (size not in case.inexact), f"{size}: exact is {group.exact}"
        assert group.kind == case.kinds.get(size, group.kind)


@EACH
def test_frozen_axes_stay_whole(case):
    module, nested = nested_case(case.name)
    groups = free_groups(nested)
    small = nestling.extract(nested, dict.fromkeys(groups, 1))
    for size, why in case.frozen.items():
        anchor = case.anchors[size]
        assert not at_anchor(module, anchor, groups.values()), f"{size} must be frozen: {why}"
        before, after = (network.state_dict()[anchor.tensor].shape[anchor.axis] for network in (module, small))
        assert after == before, f"{size} was cut: {why}"


@EACH
def test_axes_that_stay_whole_say_why(case):
    module, nested = nested_case(case.name)
    for size in case.sizes.keys() - group_of_size(case, module, nested).keys() - case.layers.keys():
        reasons = [group.frozen_because for group in at_anchor(module, case.anchors[size], nested.groups)]
        assert reasons, f"{size} is in no group: the user is not told that it cannot be cut"
        assert all(reasons), f"{size} is frozen and the user is not told why"


@EACH
def test_callers_module_is_untouched(case):
    fresh = randomise(case.full(), torch.Generator().manual_seed(0)).state_dict()
    module, nested = nested_case(case.name)
    nestling.extract(nested, draw_cut(free_groups(nested), 0))
    assert module.training
    assert fresh.keys() == module.state_dict().keys()
    assert all(torch.equal(fresh[name], tensor) for name, tensor in module.state_dict().items())


@pytest.mark.parametrize("name", INNER_ONLY)
def test_inner_leaves_the_stream_whole(name):
    case = BY_NAME[name]
    module, nested = nested_case(name, where="inner")
    assert group_of_size(case, module, nested).keys() == set(case.free) - {"stream"}


# ---- cuts


@CUTS
@EACH
def test_cut_is_the_hand_built_network(case, seed):
    module, nested = nested_case(case.name)
    found = group_of_size(case, module, nested)
    cut = draw_cut({group.name: group for group in found.values()}, seed)
    sizes = {size: cut[group.name] for size, group in found.items()}
    small = extract(nested, cut, case.example())
    hand = hand_built(case, sizes, small)
    gradients_agree(nested, cut, hand, case.example())
    decide(case, module, small, sizes)


@CUTS
@pytest.mark.parametrize(
    "case", [case for case in EXPORTED if case.inexact and case.zeroing], ids=lambda case: case.name
)
def test_exact_groups_beside_inexact_ones_equal_zeroing(case, seed):
    module, nested = nested_case(case.name)
    found = group_of_size(case, module, nested)
    cut = draw_cut({group.name: group for size, group in found.items() if size not in case.inexact}, seed)
    check_cut(module, extract(nested, cut, case.example()), case.example())


@EACH
def test_each_size_alone_is_the_hand_built_network(case):
    """And the narrow one lies inside the wide one, with the first rows in both."""
    module, nested = nested_case(case.name)
    for size, group in group_of_size(case, module, nested).items():
        narrow, wide = (one_size(case, module, nested, size, group, blocks) for blocks in (1, group.num_blocks - 1))
        assert narrow <= wide
        assert min(narrow) == min(wide)


def one_size(case, module, nested, size, group, blocks):
    """Cut one group, let the referee look, and say which rows are left at the anchor."""
    small = nestling.extract(nested, {group.name: blocks})
    hand_built(case, {size: blocks}, small)
    kept = decide(case, module, small, {size: blocks})
    return set(kept[case.anchors[size].tensor][case.anchors[size].axis].tolist())


def decide(case, module, small, sizes):
    """Which entries survived, if the cut is right; where nothing can be zeroed, the only layout of those sizes."""
    if case.zeroing:
        return check_cut(module, small, case.example(), norms_over_kept=bool(case.inexact & sizes.keys()))
    (places,) = tries(case, sizes)
    expected = taken(module.state_dict(), places)
    assert all(torch.equal(expected[name], tensor) for name, tensor in small.state_dict().items())
    return survivors(module.state_dict(), small.state_dict())


@EACH
def test_fraction_cuts_every_group_to_about_half(case):
    module, nested = nested_case(case.name)
    found = group_of_size(case, module, nested)
    small = nestling.extract(nested, 0.5)
    for size in found:
        anchor, units = case.anchors[size], case.sizes[size]
        if anchor.tensor not in small.state_dict():
            continue  # its whole layer was dropped
        full, left = (network.state_dict()[anchor.tensor].shape[anchor.axis] for network in (module, small))
        lost = full - left
        assert abs(lost / anchor.rows - units / 2) <= 0.5


@pytest.mark.parametrize(
    "name", ["plain_cnn", "flatten_linear", "dense_concat", "resnext", "shuffle_unit", "cross_attention"]
)
def test_blocks_of_several_units_are_as_even_as_can_be(name):
    case = BY_NAME[name]
    module, nested = nested_case(name, num_blocks=3)
    for size, group in group_of_size(case, module, nested).items():
        assert group.num_blocks == 3
        small = nestling.extract(nested, {group.name: 2})
        anchor = case.anchors[size]
        full, left = (network.state_dict()[anchor.tensor].shape[anchor.axis] for network in (module, small))
        kept = case.sizes[size] - (full - left) // anchor.rows
        assert 2 * (group.size // 3) <= kept <= 2 * -(-group.size // 3)
        hand_built(case, {size: kept}, small)


@EACH
def test_dropped_layers(case):
    module, nested = nested_case(case.name)
    layers = free_groups(nested, layers=True)
    for name, group in layers.items():
        for blocks in range(1, group.num_blocks + 1):
            small = extract(nested, {name: blocks}, case.example())
            if case.zeroing:
                check_cut(module, small, case.example())
    for size in case.layers:
        (group,) = layers.values()
        assert group.size == case.sizes[size]
        hand = hand_built(case, {size: 2}, nestling.extract(nested, {group.name: 2}))
        gradients_agree(nested, {group.name: 2}, hand, case.example())


@pytest.mark.parametrize("case", [case for case in CASES if not case.exports], ids=lambda case: case.name)
def test_network_that_cannot_be_exported_is_recorded(case):
    with pytest.warns(UserWarning, match="zoo_frozen.py"):
        module, nested = nested_case(case.name)
    found = group_of_size(case, module, nested)
    cut = draw_cut({group.name: group for group in found.values()}, 1)
    small = extract(nested, cut, case.example())
    hand_built(case, {size: cut[group.name] for size, group in found.items()}, small)


# ---- networks that nobody wrote


@settings(max_examples=20, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@given(program=grammar.programs())
def test_drawn_networks_are_cut_rightly(program):
    module, example = randomise(grammar.build(program), torch.Generator().manual_seed(0)), grammar.example()
    nested = nest(module, example)
    groups = free_groups(nested)
    assert not program.exact or all(group.exact for group in groups.values())
    for seed in (None, 1):
        check_cut(module, extract(nested, draw_cut(groups, seed), example), example, norms_over_kept=True)
    exact = {name: group for name, group in groups.items() if group.exact}
    check_cut(module, extract(nested, draw_cut(exact, 2), example), example)
    smallest = nestling.extract(nested, dict.fromkeys(groups, 1)).state_dict()
    if program.simple:
        *inner, _ = [name for name, _ in module.named_parameters()]
        whole = [name for name in inner if smallest[name].shape == module.state_dict()[name].shape]
        assert not whole, f"nothing in the network gives a reason to leave these whole: {whole}"
    for name, group in free_groups(nested, layers=True).items():
        for blocks in range(1, group.num_blocks):
            check_cut(module, extract(nested, {name: blocks}, example), example)
