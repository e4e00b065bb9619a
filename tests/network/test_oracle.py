"""Tests of the referee itself: it accepts the right cut of every zoo network, and only that one."""

from contextlib import nullcontext
from itertools import combinations

import grammar
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from layouts import rows_per_unit, taken, tries
from oracle import assert_same, check_cut, gradients_agree, hand_built, outer, outputs, randomise, survivors, zeroed
from torch.func import functional_call
from zoo import BY_NAME, CASES
from zoo_attention import EncoderLayerByHand

from effort import SOAK

pytestmark = pytest.mark.filterwarnings("ignore:The tensor attributes self.module.recurrent")

REFEREED = CASES if SOAK else CASES[::3]
"""The referee does not change with the library: a part of the networks shows that it still works."""
EACH = pytest.mark.parametrize("case", REFEREED, ids=lambda case: case.name)
SIZES = [(case, size) for case in REFEREED for size in case.movable]
EACH_SIZE = pytest.mark.parametrize(("case", "size"), SIZES, ids=lambda value: getattr(value, "name", value))


def randomised(case):
    return randomise(case.full(), torch.Generator().manual_seed(0))


def cut_by_hand(case, module, kept, places):
    """The hand-built network at `kept`, with the values of `module` at `places`."""
    small = case.smaller(kept)
    small.load_state_dict(taken(module.state_dict(), places))
    return small


def right_cuts(case, module, kept, norms_over_kept=False):
    """All tries that the oracle accepts."""
    return [places for places in tries(case, kept) if accepts(case, module, kept, places, norms_over_kept)]


def accepts(case, module, kept, places, norms_over_kept):
    try:
        check_cut(module, cut_by_hand(case, module, kept, places), case.example(), norms_over_kept)
    except AssertionError:
        return False
    return True


def right_cut(name, **kept):
    """A zoo network, the hand-built small one that is its right cut, and the places that it took."""
    case = BY_NAME[name]
    module = randomised(case)
    (places,) = right_cuts(case, module, kept, bool(case.inexact & kept.keys()))
    return case, module, cut_by_hand(case, module, kept, places), places


# ---- the zoo


def test_names_of_the_zoo_are_unique_and_many():
    assert len(BY_NAME) == len(CASES) >= 30


@EACH
def test_case_declares_each_of_its_sizes_once(case):
    assert case.sizes.keys() == case.anchors.keys() | case.layers.keys()
    kinds = [set(case.free), set(case.frozen), set(case.optional), set(case.layers)]
    assert not any(left & right for left, right in combinations(kinds, 2))
    assert set().union(*kinds) == case.sizes.keys()
    shapes = {name: tensor.shape for name, tensor in case.full().state_dict().items()}
    for size, anchor in case.anchors.items():
        assert shapes[anchor.tensor][anchor.axis] >= case.sizes[size] * anchor.rows


@EACH_SIZE
def test_smaller_network_has_the_shapes_that_the_anchor_says(case, size):
    anchor, units = case.anchors[size], case.sizes[size]
    assert rows_per_unit(case, size)[anchor.tensor, anchor.axis] == anchor.rows
    full = case.full().state_dict()[anchor.tensor].shape[anchor.axis]
    for kept in sorted({1, units // 2, units - 1}):
        small = case.smaller({size: kept})
        assert small.state_dict()[anchor.tensor].shape[anchor.axis] == full - (units - kept) * anchor.rows
        assert_same_structure(outputs(small, case.example()), outputs(case.full(), case.example()))


def assert_same_structure(left, right):
    ones = torch.utils._pytree.tree_map(torch.ones_like, (left, right))
    assert_same(*ones, "shapes of the outputs")


@EACH
def test_case_exports_in_train_mode(case):
    module, example = case.full().train(), case.example()
    if case.exports:
        assert torch.export.export(module, example).graph is not None
    else:
        with pytest.raises(Exception, match=r"(?i)data.dependent|guard"):
            torch.export.export(module, example)


def test_torch_attention_equals_the_one_written_by_hand():
    case = BY_NAME["encoder_layer"]
    module = randomised(case)
    by_hand = EncoderLayerByHand(**case.sizes).double()
    by_hand.load_state_dict(module.layer.state_dict())
    x = torch.randn(2, 5, case.sizes["stream"], dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    assert_same(outputs(by_hand, (x,)), outputs(module.layer, (x,)), "encoder layer")


# ---- the oracle accepts what is right, and nothing else that looks like it


@EACH_SIZE
def test_one_layout_of_each_size_is_accepted(case, size):
    if not case.zeroing:
        pytest.skip("weights divided by their own norm have no zeroed form")
    module, kept = randomised(case), {size: case.sizes[size] - 1}
    (places,) = right_cuts(case, module, kept, size in case.inexact)
    hand_built(case, kept, cut_by_hand(case, module, kept, places))


@EACH
def test_all_sizes_at_once(case):
    if not case.zeroing or case.name == "dense_concat":
        pytest.skip("no zeroed form, or too many layouts to try")
    module, kept = randomised(case), {size: case.sizes[size] - 1 for size in case.movable}
    assert len(right_cuts(case, module, kept, bool(case.inexact))) == 1


@pytest.mark.parametrize(("name", "size"), [(case.name, size) for case in CASES for size in sorted(case.inexact)])
def test_inexact_sizes_are_not_what_zeroing_gives(name, size):
    case = BY_NAME[name]
    if not case.zeroing:
        pytest.skip("weights divided by their own norm have no zeroed form")
    module = randomised(case)
    (places,) = right_cuts(case, module, {size: 2}, norms_over_kept=True)
    with pytest.raises(AssertionError, match="zeroed"):
        check_cut(module, cut_by_hand(case, module, {size: 2}, places), case.example())


# ---- the oracle rejects


def test_a_consumer_with_the_wrong_columns_is_rejected():
    case, module, small, _ = right_cut("residual", inner=5)
    check_cut(module, small, case.example())
    with torch.no_grad():
        small.conv2.weight.copy_(module.conv2.weight[:, 3:])
    with pytest.raises(AssertionError, match="zeroed"):
        check_cut(module, small, case.example())
    with pytest.raises(AssertionError, match="zeroed"):
        check_cut(module, cut_norm_elsewhere(case, module), case.example())


def cut_norm_elsewhere(case, module):
    """The convolution loses its last channels, its norm loses the first."""
    places = {(f"conv1.{name}", 0): torch.arange(5) for name in ("weight", "bias")}
    places |= {(f"bn1.{name}", 0): torch.arange(3, 8) for name in ("weight", "bias", "running_mean", "running_var")}
    return cut_by_hand(case, module, {"inner": 5}, places | {("conv2.weight", 1): torch.arange(5)})


def test_a_forgotten_consumer_is_rejected():
    """The squeeze keeps all its columns: shapes that no hand-built network has."""
    case, module, small, places = right_cut("squeeze_excite", channels=4)
    del places["down.weight", 1]
    small.down = torch.nn.Linear(6, 4).double()
    small.down.load_state_dict({"weight": module.down.weight, "bias": module.down.bias})
    with pytest.raises(AssertionError, match=r"down\.weight"):
        hand_built(case, {"channels": 4}, small)


@pytest.mark.parametrize("name", ["conv1.weight", "bn1.running_mean", "conv2.weight"])
def test_rows_in_another_order_are_rejected(name):
    case, module, small, _ = right_cut("residual", inner=5)
    tensor = small.state_dict()[name]
    tensor.copy_(tensor.flip(1 if name == "conv2.weight" else 0))
    with pytest.raises(AssertionError, match="the order changed"):
        check_cut(module, small, case.example())


def test_shuffled_entries_are_rejected():
    case, module, small, _ = right_cut("residual", inner=5)
    tensor = small.state_dict()["conv1.weight"]
    tensor[0, 0, 0, :2] = tensor[0, 0, 0, :2].flip(0)
    with pytest.raises(AssertionError, match="mix several rows"):
        check_cut(module, small, case.example())


def test_strange_values_and_tensors_are_rejected():
    case, module, small, _ = right_cut("plain_cnn", first=3)
    with torch.no_grad():
        small.conv1.bias[1] += 1e-12
    with pytest.raises(AssertionError, match=r"conv1\.bias: 1 of 3 entries"):
        check_cut(module, small, case.example())
    small.register_buffer("more", torch.ones(2, dtype=torch.float64))
    with pytest.raises(AssertionError, match="more"):
        check_cut(module, small, case.example())


def test_a_group_too_large_passes_zeroing_but_not_the_hand_built_network():
    case, module, small, _ = right_cut("residual", inner=5, stream=4)
    check_cut(module, small, case.example())
    hand_built(case, {"inner": 5, "stream": 4}, small)
    with pytest.raises(AssertionError, match="has other tensors"):
        hand_built(case, {"inner": 5}, small)


def test_a_branch_that_was_dropped_is_wholly_zeroed():
    case = BY_NAME["residual_stack"]
    module, small = randomised(case), case.smaller({"depth": 2})
    small.load_state_dict({name: module.state_dict()[name] for name in small.state_dict()})
    assert not any(name.startswith("blocks.2") for name in check_cut(module, small, case.example()))
    wrong = case.smaller({"depth": 2, "inner1": 4})
    values = {name: module.state_dict()[name.replace("blocks.1", "blocks.2")] for name in wrong.state_dict()}
    wrong.load_state_dict(values)
    with pytest.raises(AssertionError, match="not values of the original"):
        check_cut(module, wrong, case.example())


def test_ambiguous_values_are_refused():
    state = {"weight": torch.ones(3, dtype=torch.float64)}
    with pytest.raises(AssertionError, match="repeat"):
        survivors(state, {"weight": torch.ones(2, dtype=torch.float64)})


# ---- the pieces


@EACH
def test_randomised_values_are_distinct_and_not_neutral(case):
    module = randomised(case)
    named = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    values = torch.cat([tensor.detach().flatten() for tensor in named.values() if tensor.is_floating_point()])
    assert values.dtype == torch.float64
    assert values.unique().numel() == values.numel()
    assert values.abs().min() > 1e-2
    for name, tensor in named.items():
        assert not name.endswith("running_var") or tensor.min() > 0
    assert_same(outputs(module, case.example()), outputs(module, case.example()), "two runs")


def test_survivors_are_found_by_value():
    original = {"a": torch.arange(24.0, dtype=torch.float64).reshape(4, 6), "scalar": torch.tensor(0.5)}
    rows, columns = torch.tensor([0, 3]), torch.tensor([1, 2, 5])
    small = {"a": original["a"][rows][:, columns], "scalar": torch.tensor(0.5)}
    kept = survivors(original, small)
    assert [index.tolist() for index in kept["a"]] == [[0, 3], [1, 2, 5]]
    assert kept["scalar"] == ()
    assert torch.equal(original["a"][outer(kept["a"])], small["a"])


def test_zeroed_leaves_the_original_alone_and_keeps_ties():
    case, module, small, _ = right_cut("tied_embedding", stream=4)
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    copy = zeroed(module, survivors(module.state_dict(), small.state_dict()))
    assert all(torch.equal(before[name], tensor) for name, tensor in module.state_dict().items())
    assert copy.head.weight is copy.embedding.weight
    assert not copy.embedding.weight[:, 4:].any()
    assert copy.embedding.weight[:, :4].all()
    assert case.exports


# ---- gradients


class CutByIndexing(torch.nn.Module):
    """What `nestling.nest` promises, for one cut that is known: the full parameters run at the smaller size."""

    def __init__(self, module, hand, places):
        super().__init__()
        self.module, self.hand, self.places = module, hand, places

    def at(self, cut):
        return nullcontext()

    def forward(self, *inputs):
        tensors = {**dict(self.module.named_parameters()), **dict(self.module.named_buffers())}
        return functional_call(self.hand, taken(tensors, self.places), inputs)


GRADIENTS = [
    ("residual", {"inner": 5}),
    ("image_and_vector", {"side": 3}),
    ("vision_transformer", {"heads": 3}),
    ("unet", {"rise": 3}),
]


@pytest.mark.parametrize(("name", "kept"), GRADIENTS)
def test_gradients_of_a_right_cut_agree(name, kept):
    case, module, small, places = right_cut(name, **kept)
    gradients_agree(CutByIndexing(module, case.smaller(kept), places), kept, small, case.example())


@pytest.mark.parametrize(("name", "kept"), GRADIENTS)
def test_gradients_of_a_wrong_cut_do_not(name, kept):
    case, module, small, places = right_cut(name, **kept)
    axis, stay = next(iter(places.items()))
    shifted = places | {axis: (stay + 1).where(stay < module.state_dict()[axis[0]].shape[axis[1]] - 1, stay - 2)}
    with pytest.raises(AssertionError, match="gradient of"):
        gradients_agree(CutByIndexing(module, case.smaller(kept), shifted), kept, small, case.example())
    doubled = CutByIndexing(module, case.smaller(kept), places)
    doubled.register_forward_hook(lambda module, inputs, output: 2 * output)
    with pytest.raises(AssertionError, match="gradient of"):
        gradients_agree(doubled, kept, small, case.example())


# ---- the grammar


@settings(max_examples=60, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@given(program=grammar.programs())
def test_drawn_networks_run(program):
    module = randomise(grammar.build(program), torch.Generator().manual_seed(0))
    logits = outputs(module, grammar.example())
    assert logits.shape == (3, grammar.CLASSES)
    assert logits.isfinite().all()
    assert 4 <= len(program.image) + len(program.vector) + 2 <= 10


def test_grammar_has_a_builder_for_every_word():
    assert grammar.IMAGE.keys() | grammar.VECTOR.keys() >= grammar.OVER_THE_AXIS | grammar.MAY_FREEZE
