"""Networks that run as graphs draw their weights as ``sampling`` says: the same draws as the module's own code."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import nestling as nl

SAMPLINGS = ("local", "channel", "shared", "each")


class Encoder(nn.Module):
    """Torch's own transformer, which takes heads from sizes that no attribute holds."""

    shape = (5, 6)

    def __init__(self):
        super().__init__()
        self.stem, self.head = nn.Linear(6, 8), nn.Linear(8, 3)
        self.layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True)

    def forward(self, x):
        return self.head(self.layer(F.relu(self.stem(x))).mean(1))


class Residual(nn.Module):
    """Convolutions with options, in layers that can be dropped; one of them runs twice."""

    shape = (3, 8, 8)

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, stride=2, padding=1)
        self.blocks = nn.ModuleList(nn.Conv2d(6, 6, 3, padding=2, dilation=2, groups=2) for _ in range(3))
        self.again, self.head = nn.Conv2d(6, 6, 1), nn.Linear(6, 3)

    def forward(self, x):
        x = self.again(self.again(self.stem(x)).relu())
        for block in self.blocks:
            x = x + block(x).relu()
        return self.head(x.mean((2, 3)))


class ReadsWeights(nn.Module):
    """Code that reads the weight of one layer, and applies that of another with other options."""

    shape = (3, 8, 8)

    def __init__(self):
        super().__init__()
        self.stem, self.strided = nn.Conv2d(3, 6, 3), nn.Conv2d(6, 6, 3, padding=1)
        self.blocks = nn.ModuleList(nn.Conv2d(6, 6, 1) for _ in range(2))
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        x = F.conv2d(self.stem(x), self.strided.weight, stride=2) + self.strided.weight.mean()
        for block in self.blocks:
            x = x + block(x).relu()
        return self.head(x.mean((2, 3)))


CASES = {"encoder": (Encoder, "head", "neuron"), "residual": (Residual, "layer", "channel")}


def both(kind, cut_kind, other, sampling):
    """A network that runs as a graph, and the same one that runs its code, since it cuts less; the noise is large."""
    torch.manual_seed(0)
    module, x = kind().double(), torch.randn(4, *kind.shape, dtype=torch.float64)
    options = {"weights": "gaussian", "sampling": sampling, "num_always": 1}
    graph, code = (nl.nest(module, x, kinds=kinds, **options) for kinds in ((cut_kind, other), (other,)))
    assert graph.plan is not None
    assert code.plan is None
    for network in (graph, code):
        for name, parameter in network.module.named_parameters():
            if name.endswith("log_alpha"):
                nn.init.constant_(parameter, -1.0)
    return graph, code, x


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("name", CASES)
def test_a_graph_draws_what_the_code_draws_and_has_its_gradients(name, sampling, training):
    graph, code, x = both(*CASES[name], sampling)
    assert graph.calls_layers
    results = []
    for network in (graph, code):
        torch.manual_seed(1)
        with network.train(training).at(1.0), network.drawing():
            output = network(x)
        output.square().sum().backward()
        results.append((output, {name: p.grad for name, p in network.module.named_parameters()}))
    torch.testing.assert_close(*results, rtol=1e-9, atol=1e-9)
    assert not torch.allclose(results[0][0], code.eval()(x)), "something was drawn"


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("name", CASES)
def test_examples_that_are_the_same_have_draws_of_their_own_unless_one_weight_is_shared(name, sampling):
    graph, _, x = both(*CASES[name], sampling)
    with graph.eval().at(0.5), graph.drawing():
        output = graph(x[:1].expand_as(x))
    same = torch.allclose(output, output[:1].expand_as(output))
    assert same is (sampling == "shared")


def test_a_smaller_graph_with_uncertainty_draws_in_the_same_way():
    graph, _, x = both(*CASES["residual"], "each")
    small = nl.extract(graph, 0.5, uncertainty=True)
    results = []
    for network in (graph, small):
        torch.manual_seed(1)
        with graph.eval().at(0.5), graph.drawing(), nl.running.layers.drawing(small):
            results.append(network(x))
    torch.testing.assert_close(*results)


def test_a_weight_that_code_reads_is_drawn_once_for_all():
    torch.manual_seed(0)
    x = torch.randn(4, 3, 8, 8)
    nested = nl.nest(ReadsWeights(), x, kinds=("layer",), weights="gaussian", sampling="each", num_always=1)
    assert not nested.calls_layers
    assert nested.plan is not None
    with nested.eval().at(1.0), nested.drawing():
        first, second = nested(x), nested(x)
    assert not torch.allclose(first, second)
    assert nl.predict(nested, x, samples=3).probs.shape == (4, 3)
