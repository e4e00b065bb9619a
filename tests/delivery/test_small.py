"""Small networks on disk: packed weights, fewer bits from the first part of the data, and what is refused."""

import math

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import nestling as nl
from nestling.delivery import Packing, load_small, save_small
from nestling.reading.cut import make_cut


@pytest.fixture(scope="module")
def nested() -> nl.Nested:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16 * 16, 4),
    )
    x = torch.randn(6, 3, 4, 4)
    nested = nl.nest(net, x, kinds=("channel", "bit"), num_blocks=4, num_always=1, order="uniform", weights=None)
    for pairs in (1, 2, 3, 4):
        nl.recalibrate(nested, [x], at_pairs(nested, pairs))
    return nested.eval()


def at_pairs(nested: nl.Nested, pairs: int) -> nl.Cut:
    return make_cut(nested.groups, {"0": 3, "3": 2, "3.bits": pairs})


def packing(nested: nl.Nested, cut: nl.Cut, *, all_bits: bool) -> Packing:
    fewer = {number: nested.statistics[at_pairs(nested, number)] for number in (1, 2, 3)}
    return Packing(nested.levels_at(cut), fewer if all_bits else None)


@pytest.mark.parametrize("pairs", [1, 2, 3, 4])
def test_what_is_loaded_computes_what_was_trained(nested, tmp_path, pairs):
    cut, x = at_pairs(nested, pairs), torch.randn(9, 3, 4, 4)
    save_small(
        nl.extract(nested, cut), nested.example, tmp_path, {"cut": cut.as_dict()}, Packing(nested.levels_at(cut))
    )
    with torch.no_grad(), nested.at(cut):
        assert torch.equal(load_small(tmp_path)(x), nl.extract(nested, cut)(x))
    stored = load_file(tmp_path / "weights.safetensors")
    bits = {1: 2, 2: 3, 3: 3, 4: 4}[pairs]
    assert stored["3.weight.codes"].numel() == math.ceil(8 * 6 * 9 * bits / 8)
    assert sum(t.numel() * t.element_size() for t in stored.values()) == nl.cost(nested, cut).bytes


def test_fewer_bits_are_the_first_part_of_more(nested, tmp_path):
    cut, x = at_pairs(nested, 4), torch.randn(9, 3, 4, 4)
    save_small(nl.extract(nested, cut), nested.example, tmp_path / "all", {}, packing(nested, cut, all_bits=True))
    codes = load_file(tmp_path / "all" / "weights.safetensors")["3.weight.codes"]
    assert codes.numel() == 5 * math.ceil(8 * 6 * 9 / 8)
    for pairs in (1, 2, 3, 4):
        smaller = at_pairs(nested, pairs)
        with torch.no_grad():
            assert torch.equal(load_small(tmp_path / "all", pairs)(x), nl.extract(nested, smaller)(x))
        alone = packing(nested, smaller, all_bits=True)
        save_small(nl.extract(nested, smaller), nested.example, tmp_path / "few", {}, alone)
        few = load_file(tmp_path / "few" / "weights.safetensors")["3.weight.codes"]
        assert torch.equal(codes[: len(few)], few)
    two = 2 * math.ceil(8 * 6 * 9 / 8)
    assert 14 * two <= 4 * 8 * 6 * 9  # of float32


def test_what_is_not_there_is_refused(nested, tmp_path):
    cut = at_pairs(nested, 4)
    save_small(nl.extract(nested, cut), nested.example, tmp_path, {}, packing(nested, cut, all_bits=False))
    with pytest.raises(nl.RangeError, match="--all-bits"):
        load_small(tmp_path, 2)
    with pytest.raises(nl.RangeError, match="between 1 and 4"):
        load_small(tmp_path, 5)
    with pytest.raises(nl.RunError, match="is not there"):
        load_small(tmp_path / "nowhere")
    other = nl.extract(nested, {"0": 1})
    save_small(other, nested.example, tmp_path / "other", {})
    (tmp_path / "weights.safetensors").write_bytes((tmp_path / "other" / "weights.safetensors").read_bytes())
    with pytest.raises(nl.RunError, match=r"weights\.safetensors: is damaged, or of another network"):
        load_small(tmp_path)
