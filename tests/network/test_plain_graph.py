"""Plain networks as data: their graph in JSON and their tensors make a module that computes what the network does."""

import copy

import pytest
import torch
import zoo
from torch import nn
from torch.nn import functional as F

import nestling as nl
from nestling.running.agreement import gap
from nestling.running.cost import batch_of
from nestling.running.plain_graph import PlainGraph
from nestling.storage.plain_files import plain_files, plain_network

NAMES = [case.name for case in zoo.CASES if case.exports][::9]
"""Of all networks that can be exported each ninth, of every file."""


def written(network, call, tmp_path):
    """The module that is read from the files of a network."""
    files = plain_files(network, call)
    (tmp_path / "network.json").write_bytes(files.graph)
    (tmp_path / "weights.safetensors").write_bytes(files.tensors)
    return plain_network(tmp_path / "network.json", tmp_path / "weights.safetensors", made=PlainGraph)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_read_computes_what_was_written(name, tmp_path):
    case = zoo.BY_NAME[name]
    network, call = case.full().eval(), (tuple(case.example()), {})
    module = written(network, call, tmp_path)
    assert list(module.state_dict()) == list(network.state_dict())
    assert dict(module.named_parameters()).keys() == dict(network.named_parameters()).keys()
    for size in (1, 5):
        args, _ = batch_of(*call, size)
        with torch.no_grad():
            assert gap(network(*args), module(*args)) < 1e-6


class Several(nn.Module):
    """Arguments by name, whole numbers, a dictionary of outputs, a shared weight, a buffer that is not in the state."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(11, 6), nn.Linear(6, 11, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("places", torch.randn(5, 6), persistent=False)
        self.register_buffer("seen", torch.tensor(3))

    def forward(self, tokens, *, scale=None, bias=None):
        hidden = self.embed(tokens) + self.places[: tokens.shape[1]]
        hidden = hidden * torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]) * scale.unsqueeze(1)
        return {
            "scores": self.head(F.dropout(hidden, 0.5, self.training)),
            "all": [hidden.mean(1), (hidden.argmax(-1),)],
        }


def test_all_that_a_network_may_have(tmp_path):
    network = Several().eval()
    call = (torch.randint(11, (3, 5)),), {"scale": torch.rand(3, 1)}
    module = written(network, call, tmp_path)
    other = (torch.randint(11, (7, 5)),), {"scale": torch.rand(7, 1)}
    with torch.no_grad():
        expected, found = network(*other[0], **other[1]), module(*other[0], **other[1])
    torch.testing.assert_close(found, expected)
    assert module.head.weight is module.embed.weight
    assert module.state_dict().keys() == network.state_dict().keys()
    assert "places" in dict(module.named_buffers())
    shorter = (torch.randint(11, (2, 3)),), {"scale": torch.rand(2, 1)}
    with torch.no_grad():
        torch.testing.assert_close(module(*shorter[0], **shorter[1]), network(*shorter[0], **shorter[1]))


def test_an_example_of_one_leaves_the_batch_open(tmp_path):
    module = written(nn.Sequential(nn.Linear(4, 3), nn.ReLU()), ((torch.zeros(1, 4),), {}), tmp_path)
    assert module(torch.zeros(6, 4)).shape == (6, 3)


class Fixed(nn.Module):
    """Code that is written for batches of two."""

    def forward(self, x):
        return x.view(2, -1).cumsum(1)


@pytest.mark.parametrize(
    ("network", "call", "other"),
    [
        (Fixed(), torch.randn(2, 6), torch.randn(4, 6)),
        (nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten()), torch.randn(2, 1, 8, 8), torch.randn(2, 1, 9, 8)),
    ],
    ids=["batch", "side"],
)
def test_sizes_for_which_a_graph_may_not_hold_are_refused(tmp_path, capfd, network, call, other):
    module = written(network, ((call,), {}), tmp_path)
    torch.testing.assert_close(module(call), network(call))
    with pytest.raises(nl.ShapeError, match=r"sizes with args_0\.shape\[\d\] == \d"):
        module(other)
    assert capfd.readouterr().err == ""


class Data(nn.Module):
    """A path that depends on the data."""

    def forward(self, x):
        return x if x.sum() > 0 else -x


class Drawn(nn.Module):
    """Noise in eval mode."""

    def forward(self, x):
        return x + torch.randn_like(x)


@pytest.mark.parametrize("network", [Data(), Drawn()], ids=["a path by the data", "noise"])
def test_what_data_can_not_say_is_refused(network):
    with pytest.raises(nl.TraceError, match=r"can't be stored as data \(.+\)\. Keep it in Python \(nl\.extract\)"):
        plain_files(network, ((torch.randn(2, 3),), {}))


def test_the_networks_own_mode_and_tensors_are_left_alone():
    network = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Dropout()).train()
    before = copy.deepcopy(network.state_dict())
    plain_files(network, ((torch.zeros(2, 4),), {}))
    assert network.training
    assert all(torch.equal(before[name], tensor) for name, tensor in network.state_dict().items())


def test_zeros_take_no_space(tmp_path):
    network = nn.Linear(100, 100)
    with torch.no_grad():
        network.weight[torch.rand(100, 100) < 0.9] = 0
    module = written(network, ((torch.zeros(2, 100),), {}), tmp_path)
    assert torch.equal(module.weight, network.weight)
    assert (tmp_path / "weights.safetensors").stat().st_size < 100 * 100 * 4 / 5


def test_a_module_moves_copies_and_trains_as_any_other(tmp_path):
    module = written(nn.Sequential(nn.Linear(4, 3)), ((torch.zeros(2, 4),), {}), tmp_path)
    x = torch.randn(5, 4, dtype=torch.float64)
    again = copy.deepcopy(module).double()
    torch.testing.assert_close(again(x), module(x.float()).double(), rtol=1e-5, atol=1e-6)
    module(x.float()).sum().backward()
    assert module.get_parameter("0.weight").grad is not None


class Residual(nn.Module):
    """Two residual layers with norms, which are cut as a graph that counts batches."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3), nn.ReLU()) for _ in range(2))

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return x.mean((2, 3))


def test_a_network_that_was_cut_as_a_graph_is_stored(tmp_path):
    x = torch.randn(4, 3, 5, 5)
    nested = nl.nest(Residual(), x, kinds=("layer",), num_blocks=2, num_always=1, weights=None).eval()
    small = nl.extract(nested, 0.5)
    module = written(small, ((x,), {}), tmp_path)
    with torch.no_grad():
        torch.testing.assert_close(module(x), small(x))
        before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
        module.train()(x)
    assert all(torch.equal(before[name], tensor) for name, tensor in module.state_dict().items()), (
        "it stays in eval mode"
    )
