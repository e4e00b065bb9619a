"""Sparse layers against dense ones, their bytes counted by hand, and pruned networks in files."""

from contextlib import suppress

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pruning_networks import NETWORKS, based, normal, seeded
from torch import nn

from forging import forgeries, read_or_refused
from nestling.errors import RunError
from nestling.pruning import SparseLinear, load_pruned, save_pruned, to_dense, to_sparse
from nestling.pruning.cutting import cut_out
from nestling.pruning.sparse import pack_bits, unpack_bits
from nestling.running.agreement import difference
from nestling.storage.files import read_tensors, tensor_bytes


def sparse_weight(rows, columns, share, seed=0):
    weight = torch.randn(rows, columns, generator=seeded(seed))
    return weight * (torch.rand(rows, columns, generator=seeded(seed + 1)) < share)


@given(st.lists(st.booleans(), max_size=40))
def test_bits_are_numpys(flags):
    tensor = torch.tensor(flags, dtype=torch.bool)
    packed = pack_bits(tensor)
    np.testing.assert_array_equal(packed.numpy(), np.packbits(np.array(flags, dtype=bool), bitorder="little"))
    assert unpack_bits(packed, len(flags)).tolist() == flags


@pytest.mark.parametrize("as_rows", [True, False])
@pytest.mark.parametrize("share", [0.0, 0.02, 0.3])
@pytest.mark.parametrize("shape", [(1, 13), (4, 13), (2, 3, 13)])
def test_sparse_layer_is_the_dense_one(shape, share, as_rows):
    weight, bias = sparse_weight(9, 13, share), torch.randn(9)
    layer = SparseLinear(weight, bias, as_rows=as_rows)
    x = torch.randn(shape)
    torch.testing.assert_close(layer(x), nn.functional.linear(x, weight, bias), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(layer.dense(), weight, rtol=0, atol=0)


def write(layer, weight, other):
    with torch.no_grad():
        layer.values.mul_(3)
    return 3 * weight


def load(layer, weight, other):
    layer.load_state_dict(other.state_dict())
    return other.dense()


def replace(layer, weight, other):
    layer.load_state_dict(other.state_dict(), assign=True)
    return other.dense()


def switch(layer, weight, other):
    layer.as_rows = not layer.as_rows
    return weight


@pytest.mark.parametrize("as_rows", [True, False])
@pytest.mark.parametrize("change", [write, load, replace, switch])
def test_a_change_of_what_is_stored_is_seen(change, as_rows):
    weight = sparse_weight(9, 13, 0.3)
    layer, other = (SparseLinear(own, as_rows=as_rows) for own in (weight, weight.roll(1)))
    x = torch.randn(4, 13)
    layer(x)
    expected = change(layer, weight, other)
    torch.testing.assert_close(layer(x), x @ expected.T, rtol=1e-5, atol=1e-5)


def test_a_layer_that_first_ran_in_inference_mode_hands_gradients_on():
    weight = sparse_weight(9, 13, 0.3)
    layer, x = SparseLinear(weight), torch.randn(4, 13, requires_grad=True)
    with torch.inference_mode():
        layer(x)
    layer(x).sum().backward()
    torch.testing.assert_close(x.grad, weight.sum(0).expand(4, 13))


def test_storage_is_the_smaller_of_two():
    many, few = (SparseLinear(sparse_weight(300, 784, share)) for share in (0.3, 0.005))
    assert many.mask is not None
    assert many.columns is None
    assert many.num_bytes() == 4 * many.values.numel() + 300 * 784 // 8
    assert few.mask is None
    assert few.num_bytes() == 4 * few.values.numel() + 2 * few.values.numel() + 4 * 301


def test_only_large_and_very_sparse_layers_run_by_rows():
    assert SparseLinear(sparse_weight(512, 512, 0.02)).as_rows
    assert not SparseLinear(sparse_weight(512, 512, 0.5)).as_rows
    assert not SparseLinear(sparse_weight(256, 256, 0.02)).as_rows


def test_networks_there_and_back():
    network = nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 4)).eval()
    with torch.no_grad():
        network[0].weight.copy_(sparse_weight(30, 20, 0.1))
    sparse = to_sparse(network)
    assert isinstance(sparse[0], SparseLinear)
    assert isinstance(sparse[2], nn.Linear)
    dense = to_dense(sparse)
    assert difference(network, sparse, (torch.randn(3, 20),), {}) < 1e-6
    assert all(torch.equal(a, b) for a, b in zip(network.parameters(), dense.parameters(), strict=True))


@pytest.mark.parametrize("name", NETWORKS)
def test_a_pruned_network_from_its_file(name, tmp_path):
    module, x = NETWORKS[name]()
    base, sites = based(module, x, inputs=True)
    kept = {site.name: torch.arange(site.size) % 2 == 0 for site in sites}
    small = cut_out(base, sites, kept, {site.name: torch.ones(site.size) for site in sites}).network
    with torch.no_grad():
        for number, layer in enumerate(p for p in small.modules() if isinstance(p, nn.Linear)):
            layer.weight.mul_(torch.rand(layer.weight.shape, generator=seeded(number)) < 0.4)
    size = save_pruned(small, tmp_path / "small.safetensors")
    assert size == (tmp_path / "small.safetensors").stat().st_size
    again = load_pruned(tmp_path / "small.safetensors", module)
    assert difference(small, again, (normal(*x.shape, seed=5),), {}) == 0
    assert sum(p.numel() for p in module.parameters()) > sum(p.numel() for p in again.parameters())


def test_a_sparse_file_is_small(tmp_path):
    network = nn.Sequential(nn.Linear(784, 300), nn.ReLU(), nn.Linear(300, 10)).eval()
    with torch.no_grad():
        network[0].weight.copy_(sparse_weight(300, 784, 0.01))
        network[2].weight.copy_(sparse_weight(10, 300, 0.3))
    num_kept = sum(int((layer.weight != 0).sum()) for layer in (network[0], network[2]))
    size = save_pruned(network, tmp_path / "sparse.safetensors")
    assert size < 4 * 310 + 6 * num_kept + 2000
    again = load_pruned(tmp_path / "sparse.safetensors", network)
    assert isinstance(again[0], SparseLinear)
    assert isinstance(again[2], nn.Linear)
    assert difference(network, again, (torch.randn(4, 784),), {}) < 1e-6


def test_a_file_of_another_network_is_refused(tmp_path):
    save_pruned(nn.Sequential(nn.Linear(3, 2)), tmp_path / "a.safetensors")
    with pytest.raises(RunError, match=r"does not fit the module"):
        load_pruned(tmp_path / "a.safetensors", nn.Sequential(nn.Conv2d(3, 2, 1), nn.Linear(2, 2)))


def test_every_entry_of_a_file_that_was_made_by_hand(tmp_path):
    """Refused in one line, or the network that was saved, or one that takes other inputs: no example is stored."""
    network, x = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)), torch.randn(4, 6)
    with torch.no_grad():
        network[0].weight.copy_(sparse_weight(5, 6, 0.2))
    save_pruned(network, tmp_path / "good.safetensors")
    tensors, record = read_tensors(tmp_path / "good.safetensors")
    for place, forged in forgeries(record, 10):
        (tmp_path / "other.safetensors").write_bytes(tensor_bytes(tensors, forged))
        found = read_or_refused(lambda: load_pruned(tmp_path / "other.safetensors", network), place)
        with suppress(RuntimeError):
            assert found is None or torch.equal(found(x), network(x)), place


def test_zeros_without_end_are_refused_before_memory_is_taken(tmp_path):
    tensors = {"0.weight.values": torch.zeros(1), "0.weight.index": torch.zeros(1, dtype=torch.uint8)}
    for shape in ([2**20, 2**20], [10**400, 1], [2**63, 2]):
        record = {"shapes": {"0.weight": shape}, "picks": {}}
        (tmp_path / "a.safetensors").write_bytes(tensor_bytes(tensors, record))
        with pytest.raises(RunError):
            load_pruned(tmp_path / "a.safetensors", nn.Sequential(nn.Linear(3, 2)))
