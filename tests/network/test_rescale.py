"""Scaling by keep probabilities at test time, against weights scaled by hand."""

import torch
from torch import nn

import nestling as nl


def test_readers_are_scaled_by_the_keep_probabilities_of_their_blocks():
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 4, 5), nn.ReLU(), nn.Linear(5, 2)
    ).double()
    x = torch.randn(3, 3, 4, 4, dtype=torch.float64)
    nested = nl.nest(net, x, weights=None, order="uniform", num_blocks=3, num_always=1, rescale=True).eval()
    first = torch.tensor([1, 1, 2 / 3, 2 / 3, 1 / 3, 1 / 3], dtype=torch.float64)
    second = torch.tensor([1, 1, 2 / 3, 2 / 3, 1 / 3], dtype=torch.float64)
    hidden = net[0](x).relu() * first.view(-1, 1, 1)
    expected = net[5](net[3](hidden.flatten(1)).relu() * second)
    torch.testing.assert_close(nested(x), expected, rtol=1e-7, atol=1e-7)  # keep probabilities are float32
    torch.testing.assert_close(nl.extract(nested, 1.0)(x), nested(x))
    with nested.at({"0": 2}):
        smaller = net[5](
            net[3](torch.cat([hidden[:, :4], torch.zeros_like(hidden[:, 4:])], 1).flatten(1)).relu() * second
        )
        torch.testing.assert_close(nested(x), smaller, rtol=1e-7, atol=1e-7)
        with torch.no_grad():
            torch.testing.assert_close(nested(x), smaller, rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(nl.extract(nested, {"0": 2})(x), smaller, rtol=1e-7, atol=1e-7)


def test_full_width_is_the_network_itself_unless_asked_for():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    x = torch.randn(2, 4)
    assert torch.equal(nl.nest(net, x, weights=None).eval()(x), net(x))
    assert torch.equal(nl.nest(net, x, weights="gaussian").eval()(x), net(x))


def test_what_is_kept_inside_a_block_follows_the_weights():
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    x = torch.randn(2, 4)
    nested = nl.nest(net, x, weights=None).eval()
    with torch.no_grad(), nested.at(0.5):
        nested(x)
        nested.module[2].weight.mul_(2)
        changed = nested(x)
        nested.load_state_dict(
            {name: -tensor if tensor.is_floating_point() else tensor for name, tensor in nested.state_dict().items()}
        )
        loaded = nested(x)
        nested.double()
        double = nested(x.double())
    fresh = nl.nest(nested.module, x.double(), weights=None).eval()
    with fresh.at(0.5):
        torch.testing.assert_close(fresh(x.double()), double)
        torch.testing.assert_close(fresh(x.double()), loaded.double())
    assert not torch.allclose(changed, loaded)


def test_cuts_that_were_used_before_follow_the_weights_too():
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    x = torch.randn(2, 4)
    nested = nl.nest(net, x, weights=None, num_always=1).eval()
    cuts = [{"0": width} for width in range(1, 8)]

    def outputs():
        with torch.no_grad():
            return [run(nested, cut, x) for cut in cuts * 2]

    before = outputs()
    assert all(torch.equal(a, b) for a, b in zip(before[:7], before[7:], strict=True))
    with torch.no_grad():
        nested.module[2].weight.mul_(-1)
        nested.module[2].bias.mul_(-1)
    assert all(torch.equal(a, -b) for a, b in zip(before, outputs(), strict=True))
    nested.module[2].weight.data.mul_(-1)
    nested.module[2].bias.data.mul_(-1)
    nested.eval()
    assert all(torch.equal(a, b) for a, b in zip(before, outputs(), strict=True))


def run(nested, cut, x):
    with nested.at(cut):
        return nested(x)
