"""Nested bits in a network, against weights quantised by hand to the nearest level."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

import nestling as nl
from nestling.prediction.likelihoods import likelihood_named
from nestling.reading.cut import make_cut
from nestling.running.dorefa import quantise_dorefa
from nestling.running.packed_bits import pack
from nestling.running.quantiser import codes
from nestling.search.quality import Judge

PLAIN = {"order": "uniform", "weights": None}


def network(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    net = nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Conv2d(6, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(8 * 16, 10),
        nn.ReLU(),
        nn.Linear(10, 4),
    ).double()
    for part in net:
        if isinstance(part, nn.BatchNorm2d):
            for tensor in (part.weight.data, part.bias.data, part.running_mean, part.running_var):
                tensor.copy_(torch.rand_like(tensor) + 0.5)
    return net.eval()


def by_hand(weight: torch.Tensor, log_tau: torch.Tensor, num_pairs: int) -> torch.Tensor:
    """Each weight at the nearest of the levels 0, +-1, +-2, +-4, +-8 over tau, as far as they are kept."""
    kept = np.array([0, 1, 2, 4, 8][: num_pairs + 1])
    grid = np.concatenate([-kept[:0:-1], kept]) / math.exp(float(log_tau))
    near = np.abs(weight.detach().numpy()[..., None] - grid).argmin(-1)
    return torch.from_numpy(grid[near])


def quantised_by_hand(nested: nl.Nested, net: nn.Sequential, pairs: dict[str, int]) -> nn.Sequential:
    scales = {name: own.log_tau for name, own in nested.quantised.quantisers().items()}
    with torch.no_grad():
        for name, number in pairs.items():
            net.get_parameter(name).copy_(by_hand(net.get_parameter(name), scales[name], number))
    return net


@pytest.mark.parametrize("pairs", [(1, 1), (4, 2), (3, 4)])
def test_a_cut_is_the_network_with_weights_at_the_nearest_level(pairs):
    x = torch.randn(5, 3, 4, 4, dtype=torch.float64)
    nested = nl.nest(network(), x, kinds=("bit",), **PLAIN).eval()
    expected = quantised_by_hand(nested, network(), {"3.weight": pairs[0], "7.weight": pairs[1]})(x)
    widths = {"3.bits": pairs[0], "7.bits": pairs[1]}
    with nested.at(widths):
        torch.testing.assert_close(nested(x), expected)
        with torch.no_grad():
            torch.testing.assert_close(nested(x), expected)
    small = nl.extract(nested, widths)
    torch.testing.assert_close(small(x), expected)
    assert type(small[3]) is nn.Conv2d


@pytest.mark.parametrize("weights", [None, "gaussian"])
def test_channels_and_bits_are_cut_together(weights):
    x = torch.randn(5, 3, 4, 4, dtype=torch.float64)
    options = {"num_blocks": 2, "num_always": 1, "order": "uniform", "weights": weights}
    nested = nl.nest(network(), x, kinds=("channel", "neuron", "bit"), **options).eval()
    assert [group.name for group in nested.groups.free] == ["0", "3", "3.bits", "7", "7.bits"]
    net = network()
    scales = {name.split(".")[0]: own.log_tau for name, own in nested.quantised.quantisers().items()}
    with torch.no_grad():
        for number, pairs in ((3, 2), (7, 1)):
            net[number].weight.copy_(by_hand(net[number].weight, scales[str(number)], pairs))
        hidden = net[2](net[1](net[0](x)))
        hidden[:, 3:] = 0
        hidden = net[5](net[4](net[3](hidden)))
        hidden[:, 4:] = 0
        hidden = net[8](net[7](net[6](hidden)))
        hidden[:, 5:] = 0
        expected = net[9](hidden)
    widths = {"0": 1, "3": 1, "3.bits": 2, "7": 1, "7.bits": 1}
    torch.testing.assert_close(nl.extract(nested, widths)(x), expected)
    with nested.at(widths):
        torch.testing.assert_close(nested(x), expected)


def test_masks_over_levels_are_cuts_and_pass_gradients():
    x = torch.randn(5, 3, 4, 4, dtype=torch.float64)
    nested = nl.nest(network(), x, kinds=("bit",), **PLAIN).eval()
    mask = torch.tensor([1.0, 1.0, 0.0, 0.0], dtype=torch.float64)
    masks = {"3.bits": mask.requires_grad_(), "7.bits": torch.ones(4, dtype=torch.float64)}
    found = nested.run_masked(masks, x)
    with nested.at({"3.bits": 2}):
        torch.testing.assert_close(nested(x), found)
    found.sum().backward()
    assert mask.grad is not None
    assert bool((mask.grad[:2] != 0).all())  # evenly spread weights do not reach the outer levels


def test_gradients_reach_weights_and_scales_in_training():
    x = torch.randn(5, 3, 4, 4, dtype=torch.float64)
    nested = nl.nest(network(), x, kinds=("bit",), **PLAIN).train()
    with nested.at(0.5):
        nested(x).square().sum().backward()
    for name in ("3.weight", "7.weight", "0.weight", "9.weight"):
        grad = nested.module.get_parameter(name).grad
        assert grad is not None
        assert float(grad.abs().sum()) > 0
    assert all(float(own.grad) != 0 for own in nested.quantised.parameters())


def test_annealed_steps_are_soft_in_training_alone():
    x = torch.randn(5, 3, 4, 4, dtype=torch.float64)
    nested = nl.nest(network(), x, kinds=("bit",), bits=nl.Bits(how="sigmoid"), **PLAIN)
    cut = make_cut(nested.groups, 1.0)
    with torch.no_grad():
        hard = nested.eval().tensors_at(cut)["3.weight"]
        soft = nested.train().tensors_at(cut)["3.weight"]
        nested.quantised.sharpness = 2000.0
        sharp = nested.tensors_at(cut)["3.weight"]
    assert 0 < float((sharp - hard).abs().mean()) < 0.1 * float((soft - hard).abs().mean())


def test_which_layers_are_quantised_and_in_which_groups():
    x = torch.randn(2, 8)
    net = nn.Sequential(*(nn.Linear(8, 8) for _ in range(7)))

    def of(**options):
        made = nl.nest(net, x, kinds=("bit",), **PLAIN, **options)
        return {group.name: group.quantises for group in made.groups.free}

    assert list(of()) == [f"{i}.bits" for i in range(1, 6)]
    assert of(bits=nl.Bits(num_groups=2)) == {
        "1.bits": ("1.weight", "2.weight"),
        "3.bits": ("3.weight", "4.weight", "5.weight"),
    }
    assert list(of(bits=nl.Bits(ends=True))) == [f"{i}.bits" for i in range(7)]
    assert list(of(exclude=["2"])) == ["1.bits", "3.bits", "4.bits", "5.bits"]
    assert list(of(only=["4.bits"])) == ["4.bits"]


class _Backwards(nn.Module):
    """Layers that run in another order than they are written, one of them tied to an embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.last, self.middle, self.first = nn.Linear(6, 5), nn.Linear(6, 6), nn.Linear(6, 6)
        self.tied, self.table = nn.Linear(6, 6, bias=False), nn.Embedding(6, 6)
        self.tied.weight = self.table.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.first(self.table(x).mean(1)).relu()
        return self.last(self.tied(self.middle(hidden).relu()))


def test_first_and_last_are_those_that_run_first_and_last():
    nested = nl.nest(_Backwards(), torch.randint(0, 6, (3, 4)), kinds=("bit",), **PLAIN)
    assert [group.quantises for group in nested.groups.free] == [("middle.weight",)]


def test_bytes_are_those_of_the_packed_codes():
    x = torch.randn(5, 3, 4, 4, dtype=torch.float64)
    nested = nl.nest(network(), x, kinds=("channel", "bit"), num_blocks=2, num_always=1, **PLAIN).eval()
    for cut in (0.25, 0.5, {"3.bits": 3}, 1.0):
        wanted = make_cut(nested.groups, cut)
        small, expected = nl.extract(nested, cut), 0
        levels = nested.levels_at(wanted)
        for name, tensor in small.state_dict().items():
            if name in levels:
                own = levels[name]
                packed = pack(codes(tensor, own.log_tau, own.num_pairs), own.num_pairs, nested=False)
                expected += len(packed) + 8
            else:
                expected += tensor.numel() * tensor.element_size()
        assert nl.cost(nested, cut).bytes == expected


def test_scales_are_watched_where_tensors_are_kept():
    x = torch.randn(5, 3, 4, 4, dtype=torch.float64)
    nested = nl.nest(network(), x, kinds=("bit",), **PLAIN).eval()
    with torch.no_grad(), nested.at(0.5):
        before = nested(x)
        next(iter(nested.quantised.parameters())).add_(0.5)
        assert not torch.equal(nested(x), before)


def test_dropped_layers_have_no_bytes():
    x = torch.randn(2, 6, dtype=torch.float64)
    nested = nl.nest(_Residual().double(), x, kinds=("layer", "bit"), num_always=1, **PLAIN).eval()
    (layers,) = [group.name for group in nested.groups.free if group.kind == "layer"]
    gone = {f"blocks.{number}.{part}.weight" for number in (1, 2) for part in (0, 2)}
    kept = make_cut(nested.groups, {layers: 1})
    assert nested.levels_at(make_cut(nested.groups, 1.0)).keys() - nested.levels_at(kept).keys() == gone
    small = nl.extract(nested, kept)
    packed = 2 * (math.ceil(6 * 8 * 4 / 8) + 8)  # two weights of 48 at four bits, and their scales
    plain = sum(8 * tensor.numel() for name, tensor in small.named_parameters() if name not in nested.levels_at(kept))
    assert nl.cost(nested, kept).bytes == packed + plain


class _Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.head = nn.Linear(6, 6), nn.Linear(6, 2)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 6)) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


def test_saved_and_loaded_again(tmp_path):
    net = nl.models.build("vgg11", width=0.05)
    x = torch.randn(2, 3, 32, 32)
    bits = nl.Bits(num_groups=3)
    nested = nl.nest(net, x, kinds=("channel", "bit"), num_blocks=2, bits=bits, private=(0.5, 1.0)).eval()
    with torch.no_grad():
        for own in nested.parameters():
            own.add_(0.01 * torch.randn_like(own))
    nl.save(nested, tmp_path)
    again = nl.load(tmp_path)
    for cut in (0.5, 1.0, 0.75):
        with torch.no_grad(), nested.at(cut), again.at(cut):
            assert torch.equal(again(x), nested(x))


def test_cuts_that_differ_in_bits_are_scored_apart():
    """The reuse of what cuts have in common gives what each cut gives by itself."""
    x, y = torch.randn(40, 3, 4, 4), torch.randint(0, 4, (40,))
    nested = nl.nest(network().float(), x[:2], kinds=("channel", "bit"), num_blocks=2, num_always=1, **PLAIN).eval()
    cuts = [make_cut(nested.groups, {"3.bits": a, "7.bits": b, "3": c}) for a in (1, 2) for b in (1, 2) for c in (1, 2)]
    likelihood = likelihood_named("categorical")
    together = Judge(nested, [(x, y)], likelihood)(cuts)
    alone = [Judge(nested, [(x, y)], likelihood, reuse=False)([cut])[0] for cut in cuts]
    assert together == alone
    assert len(set(alone)) == len(cuts)


def test_a_search_over_bits():
    x, y = torch.randn(40, 3, 4, 4), torch.randint(0, 4, (40,))
    nested = nl.nest(network().float(), x[:2], kinds=("channel", "bit"), num_blocks=2, num_always=1, **PLAIN).eval()
    curve = nl.search(nested, [(x, y)], cost="bytes", num_points=6, quiet=True)
    for row in curve.rows:
        assert row.cost == nl.cost(nested, row.cut).bytes
        with nested.at(row.cut), torch.no_grad():
            assert row.score == pytest.approx(float((nested(x).argmax(1) == y).double().mean()))
    assert curve.rows[0].cost < 0.5 * curve.rows[-1].cost


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"kinds": ("bit",), "rescale": True}, "rescale"),
        ({"bits": nl.Bits()}, "kinds=\\('bit',\\)"),
        ({"kinds": ("bit",), "bits": {"pairs": 3}}, "options of nl.Bits"),
        ({"kinds": ("bit",), "only": ["nine.bits"]}, "names of groups"),
        ({"kinds": ("bit",), "exclude": ["3", "7"]}, "none is left to quantise"),
        ({"private": (0.5, 2.0)}, "a fraction within"),
    ],
)
def test_what_can_not_be(options, said):
    with pytest.raises(nl.NestlingError, match=said):
        nl.nest(network(), torch.randn(5, 3, 4, 4, dtype=torch.float64), **PLAIN | options)


@pytest.mark.parametrize(
    "options", [{"num_groups": 0}, {"num_groups": 1.5}, {"ends": 1}, {"quantiser": "int8"}, {"how": "rounding"}]
)
def test_bits_that_can_not_be(options):
    with pytest.raises(nl.NestlingError):
        nl.Bits(**options)


class TestDoReFa:
    """The quantiser of AdaBits."""

    def test_levels_lie_evenly_about_zero(self):
        torch.manual_seed(0)
        weight = torch.randn(40, 30, dtype=torch.float64)
        for bits in (1, 2, 3, 4):
            levels = quantise_dorefa(weight, bits).unique()
            assert len(levels) == 2**bits
            gaps = [float(b - a) for a, b in pairwise(levels)]
            assert max(gaps) - min(gaps) < 1e-12
            torch.testing.assert_close(levels, -levels.flip(0))

    def test_codes_of_fewer_bits_are_the_first_of_more(self):
        torch.manual_seed(0)
        weight = torch.randn(50, 40, dtype=torch.float64)

        def code(bits):
            return quantise_dorefa(weight, bits).unique(return_inverse=True)[1]

        for bits in (2, 3, 4):
            assert torch.equal(code(bits) >> 1, code(bits - 1))

    def test_variance_is_one_over_the_fan_out(self):
        weight = torch.randn(20, 30, 3, 3, dtype=torch.float64)
        for bits in (2, 4):
            found = quantise_dorefa(weight, bits)
            assert float(found.square().mean()) == pytest.approx(1 / (20 * 9))

    def test_the_gradient_is_that_of_the_squashed_weight(self):
        weight = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
        quantise_dorefa(weight, 2).sum().backward()
        squashed = torch.tanh(weight.detach())
        code = (4 * (squashed / (2 * squashed.abs().max()) + 0.5)).floor().clamp_max(3)
        scale = (4 * (2 * (code + 0.5) / 4 - 1).square().mean()).sqrt()
        torch.testing.assert_close(weight.grad, (1 - squashed.square()) / squashed.abs().max() / scale)

    def test_in_a_network(self):
        x = torch.randn(5, 3, 4, 4, dtype=torch.float64)
        nested = nl.nest(network(), x, kinds=("bit",), bits=nl.Bits(quantiser="dorefa"), **PLAIN).eval()
        net = network()
        with torch.no_grad():
            for number in (3, 7):
                net[number].weight.copy_(quantise_dorefa(net[number].weight, 3))
        with nested.at(0.75):
            torch.testing.assert_close(nested(x), net(x))
        assert nl.cost(nested, 0.75).bytes == nl.cost(nested, 1.0).bytes
        with pytest.raises(nl.ArgumentError, match="dorefa"):
            nested.run_masked({own.name: torch.ones(4) for own in nested.groups.free}, x)


class TestPrivateNorms:
    """Batch norms with weights of their own for some cuts."""

    def test_a_cut_trains_its_own(self):
        x = torch.randn(5, 3, 4, 4, dtype=torch.float64)
        nested = nl.nest(network(), x, num_blocks=2, num_always=1, private=(0.5, 1.0), **PLAIN).train()
        with nested.at(0.5):
            nested(x).square().sum().backward()
        grads = {name: own.grad is not None for name, own in nested.named_parameters() if "private" in name}
        assert list(grads.values()) == [True] * 4 + [False] * 4
        assert nested.module[1].weight.grad is None

    def test_it_is_used_and_extracted(self):
        x = torch.randn(5, 3, 4, 4, dtype=torch.float64)
        nested = nl.nest(network(), x, num_blocks=2, num_always=1, private=(0.5,), **PLAIN).eval()
        net = network()
        with torch.no_grad():
            for own in nested.private.parameters():
                own.add_(1.0)
            hidden = (
                net[1](net[0](x))[:, :3]
                + (net[0](x)[:, :3] - net[1].running_mean[:3].view(-1, 1, 1))
                / (net[1].running_var[:3].view(-1, 1, 1) + net[1].eps).sqrt()
            )
            first = (hidden + 1).relu()
            small = nl.extract(nested, 0.5)
            torch.testing.assert_close(small[2](small[1](small[0](x))), first)
            with nested.at(0.5):
                torch.testing.assert_close(nested(x), small(x))
        torch.testing.assert_close(nested(x), net(x))

    def test_without_norms_there_is_nothing_private(self):
        net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        with pytest.raises(nl.ArgumentError, match="batch norms"):
            nl.nest(net, torch.randn(2, 4), private=(0.5,), **PLAIN)
