"""The papers' networks before the referee: cuts of every one, in float64 and with randomised norms."""

import random
from functools import cache

import pytest
import torch
from oracle import assert_same, check_cut, gradients_agree, outputs, randomise

import nestling as nl

WIDTH = 0.25
WIDTHS = {"resnext_cifar": 0.1}
SIDES = {"unet": (1, 32, 32), "resnext_cifar": (3, 8, 8), "mobilenet_v2": (3, 16, 16), "resnet14": (3, 16, 16)}
NOT_SCALED = {"vgg11": ("head.0",)}
ODD = {"lenet_5_caffe", "lenet_300_100", "lenet_500_300", "mobilenet_v2"}
ALL = ("neuron", "channel", "head", "path")


@cache
def nested_network(name):
    module = randomise(nl.models.build(name, width=WIDTHS.get(name, WIDTH)), torch.Generator().manual_seed(0))
    x = torch.randn(2, *SIDES.get(name, nl.models.example_shape(name)), dtype=torch.float64)
    nested = nl.nest(
        module, x, order="uniform", weights=None, num_blocks=8, num_always=1, kinds=ALL, where="all"
    ).eval()
    return module, nested, x


@pytest.mark.parametrize("name", nl.models.names())
def test_uneven_cuts(name):
    module, nested, x = nested_network(name)
    chance = random.Random(1)
    cut = {group.name: chance.randint(1, group.num_blocks) for group in nested.groups.free}
    small = nl.extract(nested, cut)
    check_cut(module, small, (x,))
    with nested.at(cut), torch.no_grad():
        assert_same(outputs(small, (x,)), nested(x), "nested at the cut")
    gradients_agree(nested, cut, small, (x,))


@pytest.mark.parametrize("name", [name for name in nl.models.names() if name != "resnext_cifar"])
def test_half_of_everything_is_the_network_built_at_half_width(name):
    _, nested, x = nested_network(name)
    cut = {g.name: g.num_blocks // 2 for g in nested.groups.free if g.name not in NOT_SCALED.get(name, ())}
    small = nl.extract(nested, cut)
    hand = nl.models.build(name, width=WIDTH / 2).double()
    expected = {key: tensor.shape for key, tensor in hand.state_dict().items()}
    if {key: tensor.shape for key, tensor in small.state_dict().items()} != expected:
        assert name in ODD, "half of the units is a whole number of them, and yet the shapes differ"
        return
    hand.load_state_dict(small.state_dict())
    assert_same(outputs(hand, (x,)), outputs(small, (x,)), "built by hand")
    gradients_agree(nested, cut, hand, (x,))


def test_residual_layers_of_resnext_can_be_dropped_as_in_fn3():
    torch.manual_seed(0)
    module = nl.models.build("resnext_cifar", width=0.01).double().eval()
    x = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    nested = nl.nest(module, x, weights=None, kinds=("layer",), num_always=1).eval()
    assert [(group.name, group.size) for group in nested.groups.free] == [("layers", 9)]
    small = nl.extract(nested, {"layers": 4})
    assert not any(key.startswith(("blocks.4.merge", "blocks.8.")) for key in small.state_dict())
    assert any(key.startswith("blocks.6.") for key in small.state_dict()), "the projection of a dropped layer stays"
    stages = nl.nest(module, x, weights=None, kinds=("layer",), num_always=1, layers="stage")
    assert [(group.name, group.size) for group in stages.groups.free] == [(f"layers.{i}", 3) for i in range(3)]
