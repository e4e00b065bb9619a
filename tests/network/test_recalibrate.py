"""Statistics of batch norms at a cut, against those of the extracted network run by hand."""

import pytest
import torch
from torch import nn

import nestling as nl


@pytest.fixture
def network():
    torch.manual_seed(0)
    first = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.5)]
    second = [nn.Conv2d(8, 6, 3), nn.BatchNorm2d(6, momentum=None), nn.ReLU()]
    return nn.Sequential(*first, *second, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 4)).double()


@pytest.fixture
def batches():
    generator = torch.Generator().manual_seed(1)
    return [2 + 3 * torch.randn(5, 3, 8, 8, dtype=torch.float64, generator=generator) for _ in range(3)]


def by_hand(small, batches):
    """Mean over the batches of each norm's batch statistics, everything else in eval mode."""
    small = small.eval()
    seen = {1: [], 5: []}
    for x in batches:
        for number, layer in enumerate(small):
            if isinstance(layer, nn.BatchNorm2d):
                seen[number].append((x.mean((0, 2, 3)), x.var((0, 2, 3))))
                x = nn.functional.batch_norm(x, None, None, layer.weight, layer.bias, training=True, eps=layer.eps)
            else:
                x = layer(x)
    return {number: [torch.stack(kind).mean(0) for kind in zip(*pairs, strict=True)] for number, pairs in seen.items()}


@pytest.mark.parametrize("weights", [None, "gaussian"])
def test_statistics_are_the_mean_over_batches(network, batches, weights):
    nested = nl.nest(network, batches[0], weights=weights, num_always=1)
    expected = by_hand(nl.extract(nested, 0.5), batches)
    nl.recalibrate(nested, [(x, None) for x in batches], 0.5)
    small = nl.extract(nested, 0.5)
    for number, (mean, var) in expected.items():
        torch.testing.assert_close(small[number].running_mean, mean)
        torch.testing.assert_close(small[number].running_var, var)


def test_only_that_cut_is_changed_and_only_in_eval_mode(network, batches):
    nested = nl.nest(network, batches[0], weights=None, num_always=1).eval()
    before = {name: tensor.clone() for name, tensor in nested.state_dict().items()}
    outputs = {cut: run(nested, cut, batches[0]) for cut in (0.5, 0.75, 1.0)}
    nl.recalibrate(nested, batches, 0.5)
    assert all(torch.equal(before[name], tensor) for name, tensor in nested.state_dict().items())
    assert not torch.allclose(outputs[0.5], run(nested, 0.5, batches[0]))
    assert torch.equal(outputs[0.75], run(nested, 0.75, batches[0]))
    assert torch.equal(outputs[1.0], run(nested, 1.0, batches[0]))
    assert not any(part.training for part in nested.modules())


def test_statistics_count_inside_the_block_they_were_collected_in(network, batches):
    nested = nl.nest(network, batches[0], weights=None, num_always=1).eval()
    with torch.no_grad(), nested.at(0.5):
        before = nested(batches[0])
        nl.recalibrate(nested, batches, 0.5)
        after = nested(batches[0])
    assert not torch.allclose(before, after)
    torch.testing.assert_close(nl.extract(nested, 0.5)(batches[0]), after)


class Twice(nn.Module):
    """A norm that runs twice, and one that ordinary inputs don't reach."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        self.norm, self.rare = nn.BatchNorm1d(8, momentum=0.25), nn.BatchNorm1d(8)

    def forward(self, x):
        x = self.norm(self.second(self.norm(self.first(x)).relu()))
        return self.last(self.rare(x) if bool(x.sum() > 1e6) else x)


@pytest.mark.filterwarnings("ignore:the network takes its path from the data")
def test_a_norm_that_runs_twice_has_the_mean_and_one_that_does_not_run_keeps_its_own():
    torch.manual_seed(0)
    module = Twice().double()
    nn.init.uniform_(module.rare.running_mean), nn.init.uniform_(module.rare.running_var, 0.5, 2)
    batches = [1 + 2 * torch.randn(9, 6, dtype=torch.float64) for _ in range(3)]
    nested = nl.nest(module, batches[0], weights=None)
    nl.recalibrate(nested, batches, 1.0)
    small = nl.extract(nested, 1.0)
    own = nested.module.norm
    seen = []
    for x in batches:
        before = nested.module.first(x)
        between = nn.functional.batch_norm(before, None, None, own.weight, own.bias, training=True).relu()
        after = nested.module.second(between)
        seen.append([(kind(before, 0) * 0.75 + kind(after, 0)) / 1.75 for kind in (torch.mean, torch.var)])
    for found, expected in zip((small.norm.running_mean, small.norm.running_var), zip(*seen, strict=True), strict=True):
        torch.testing.assert_close(found, torch.stack(expected).mean(0))
    assert torch.equal(small.rare.running_mean, module.rare.running_mean)
    assert torch.equal(small.rare.running_var, module.rare.running_var)


def test_number_of_batches(network, batches):
    nested = nl.nest(network, batches[0], weights=None, num_always=1)
    expected = by_hand(nl.extract(nested, 0.5), batches[:2])
    nl.recalibrate(nested, iter(batches), 0.5, num_batches=2)
    torch.testing.assert_close(nl.extract(nested, 0.5)[1].running_mean, expected[1][0])


def test_empty_loader_is_refused(network, batches):
    nested = nl.nest(network, batches[0], weights=None)
    with pytest.raises(nl.ArgumentError, match="loader: got no batch"):
        nl.recalibrate(nested, [], 0.5)
    assert not nested.statistics


class Attention(nn.Module):
    """A batch norm beside attention, whose code has sizes of its own, so that the graph runs."""

    def __init__(self):
        super().__init__()
        self.stem, self.norm, self.drop = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5)
        self.qkv, self.out, self.head = nn.Linear(8, 24), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x):
        x = self.drop(self.norm(self.stem(x).transpose(1, 2)).transpose(1, 2))
        q, k, v = self.qkv(x).reshape(x.shape[0], 5, 3, 4, 2).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape[0], 5, 8)
        return self.head(self.out(y).mean(1))


def test_network_that_runs_as_a_graph():
    torch.manual_seed(0)
    network = Attention().double()
    batches = [1 + torch.randn(7, 5, 6, dtype=torch.float64) for _ in range(3)]
    nested = nl.nest(network, batches[0], weights=None, num_always=1, kinds=("head", "neuron"), where="all").eval()
    assert {group.name for group in nested.groups.free} == {"stem", "qkv", "out"}
    cut = {"stem": 4, "qkv": 2}
    nl.recalibrate(nested, batches, cut)
    small = nl.extract(nested, cut)
    hidden = [nn.functional.linear(x, network.stem.weight[:4], network.stem.bias[:4]).flatten(0, 1) for x in batches]
    torch.testing.assert_close(small.norm.running_mean, torch.stack([h.mean(0) for h in hidden]).mean(0))
    torch.testing.assert_close(small.norm.running_var, torch.stack([h.var(0) for h in hidden]).mean(0))
    for size in (7, 3, 1):
        torch.testing.assert_close(run(nested, cut, batches[0][:size]), small(batches[0][:size]))


@torch.no_grad()
def run(nested, cut, x):
    with nested.at(cut):
        return nested(x)


class Standardised(nn.Conv2d):
    """A convolution whose weight is standardised by a batch norm without statistics, as in BiT and NF-ResNets."""

    def forward(self, x):
        flat = self.weight.reshape(1, self.out_channels, -1)
        weight = nn.functional.batch_norm(flat, None, None, training=True, momentum=0.0).reshape_as(self.weight)
        return nn.functional.conv2d(x, weight, self.bias, padding=1)


class StandardisedBlocks(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Standardised(4, 4, 3) for _ in range(3))
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        for block in self.blocks:
            x = x + block(x).relu()
        return self.head(x.mean((2, 3)))


@pytest.mark.parametrize("training", [True, False])
def test_a_norm_without_statistics_stays_as_it_is_in_a_network_that_runs_as_a_graph(training):
    torch.manual_seed(0)
    module, x = StandardisedBlocks().double(), torch.randn(3, 4, 5, 5, dtype=torch.float64)
    nested = nl.nest(module, x, weights=None, kinds=("layer",), num_always=1).train(training)
    assert nested.plan is not None
    with nested.at(1.0):
        torch.testing.assert_close(nested(x), module(x))
    module.blocks = module.blocks[:2]
    with nested.at({nested.groups.free[0].name: 2}):
        torch.testing.assert_close(nested(x), module(x))


@pytest.fixture
def trained(network, batches):
    """A network whose norms have been trained, nested."""
    network.train()
    for x in batches:
        network(x)
    return nl.nest(network.eval(), batches[0], weights=None, num_always=1)


def by_at(nested, x):
    with torch.no_grad(), nested.at(0.5):
        nested(x)


def by_predict(nested, x):
    nl.predict(nested, x, cut=0.5)


def by_extract(nested, _):
    nl.extract(nested.train(), 0.5)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("use", [by_at, by_predict, by_extract])
def test_a_cut_without_statistics_is_warned_of_once(trained, batches, use):
    with pytest.warns(UserWarning, match=r"7 of 14 blocks has no batch-norm statistics.*nl\.recalibrate"):
        use(trained, batches[0])
    use(trained, batches[0])


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("use", [by_at, by_predict, by_extract])
def test_a_cut_with_statistics_is_not_warned_of(trained, batches, use):
    nl.recalibrate(trained, batches, 0.5)
    use(trained, batches[0])


@pytest.mark.filterwarnings("error")
def test_neither_the_whole_network_nor_training_nor_untrained_norms_are_warned_of(trained, network, batches):
    with trained.at(1.0):
        trained(batches[0])
    with trained.train().at(0.5):
        trained(batches[0])
    for norm in (network[1], network[5]):
        norm.reset_running_stats()
    by_at(nl.nest(network, batches[0], weights=None, num_always=1).eval(), batches[0])
