"""Runs under masks, and the weights of a cut, against networks masked and counted by hand."""

import itertools
from copy import deepcopy

import pytest
import torch
from torch import nn

import nestling as nl
from nestling.distributions import log_uniform_kl
from nestling.errors import ArgumentError
from nestling.reading.cut import full_cut, make_cut
from nestling.running.layers import VariationalLayer
from nestling.training.terms import weight_divergence


def normal(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


class Depthwise(nn.Module):
    def __init__(self):
        super().__init__()
        self.grow, self.depth, self.shrink = nn.Conv2d(2, 6, 1), nn.Conv2d(6, 6, 3, groups=6), nn.Conv2d(6, 3, 1)

    def forward(self, x):
        return self.shrink(torch.relu(self.depth(torch.relu(self.grow(x))))).mean((2, 3))


class Skipping(nn.Module):
    """A concatenation, whose second half is read at an offset."""

    def __init__(self):
        super().__init__()
        self.left, self.right, self.last = nn.Linear(4, 6), nn.Linear(4, 5), nn.Linear(11, 3)

    def forward(self, x):
        return self.last(torch.cat([torch.tanh(self.left(x)), torch.tanh(self.right(x))], 1))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True)
        self.output = nn.Linear(8, 3)

    def forward(self, x):
        return self.output(self.layer(x).mean(1))


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 3)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 6)) for _ in range(3))

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = x + block(x)
        return self.last(x)


def norms():
    module = nn.Sequential(
        *(nn.Conv2d(2, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(6, 5, 1), nn.BatchNorm2d(5), nn.ReLU(), nn.Flatten(), nn.Linear(20, 7), nn.ReLU(), nn.Linear(7, 3)),
    )
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):
            for tensor in (part.weight, part.bias, part.running_mean, part.running_var):
                nn.init.uniform_(tensor, 0.5, 1.5)
    return module


CASES = {
    "norms": (norms, normal(4, 2, 4, 4), {}),
    "depthwise": (Depthwise, normal(4, 2, 5, 5), {}),
    "skipping": (Skipping, normal(4, 4), {}),
    "residual stream": (Residual, normal(4, 4), {"where": "all"}),
    "graph": (Attention, normal(4, 5, 8), {"kinds": ("head", "neuron")}),
}
KNOWN = {}


def nested_case(name):
    """The nested network of a case, made once, with random log alphas."""
    if name not in KNOWN:
        torch.manual_seed(0)
        make, x, options = CASES[name]
        options = {"weights": "gaussian", "num_blocks": 3, "num_always": 1} | options
        nested = nl.nest(make().double(), x, **options).double()
        for seed, (path, parameter) in enumerate(nested.named_parameters()):
            if path.endswith("log_alpha"):
                parameter.data = normal(*parameter.shape, seed=seed)
        KNOWN[name] = nested, x
    return KNOWN[name]


def hard_masks(nested, cut):
    return {g.name: (torch.arange(g.num_blocks) < cut[g.name]).double() for g in nested.groups.free}


def some_cuts(nested, number=12):
    torch.manual_seed(0)
    ranges = [range(group.num_always, group.num_blocks + 1) for group in nested.groups.free]
    every = list(itertools.product(*ranges))
    chosen = [every[index] for index in torch.randperm(len(every))[:number].tolist()]
    names = [group.name for group in nested.groups.free]
    return [nl.Cut(tuple(zip(names, widths, strict=True))) for widths in chosen]


@pytest.mark.parametrize("name", CASES)
def test_a_mask_of_ones_and_zeros_computes_what_the_cut_does(name):
    nested, x = nested_case(name)
    nested.eval()
    assert len(nested.groups.free) >= 1
    for cut in some_cuts(nested):
        with nested.at(cut):
            expected = nested(x)
        torch.testing.assert_close(nested.run_masked(hard_masks(nested, cut), x), expected)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("sampling", ["local", "channel", "shared", "each"])
@pytest.mark.parametrize("name", CASES)
def test_gradients_of_a_truncated_step_are_those_of_the_masked_one(name, sampling, layout, monkeypatch):
    """In train mode, with noise that does not depend on the width: for means, log alphas, biases and norms alike."""
    for place in ("nestling.running.layers.layer", "nestling.distributions.weights.posterior"):
        monkeypatch.setattr(f"{place}.normal_noise", lambda like, generator=None: torch.full_like(like, 0.7))
    nested, x = nested_case(name)
    nested = deepcopy(nested).train().to(memory_format=layout)
    for part in nested.modules():
        if isinstance(part, VariationalLayer):
            part.sampling = sampling
    parameters = [own for path, own in nested.named_parameters() if "_orders" not in path]
    for cut in some_cuts(nested, 4):
        with nested.shared_at(cut):
            truncated = nested(x).square().sum() + 0.1 * weight_divergence(nested, cut, log_uniform_kl)
        everything = full_cut(nested.groups)
        kept = {name: mask.to(x) for name, mask in hard_masks(nested, cut).items()}
        masked = nested.run_masked(kept, x).square().sum()
        masked = masked + 0.1 * weight_divergence(nested, everything, log_uniform_kl, kept)
        torch.testing.assert_close(truncated, masked)
        gradients = [torch.autograd.grad(value, parameters, materialize_grads=True) for value in (truncated, masked)]
        for own, expected in zip(*gradients, strict=True):
            torch.testing.assert_close(own, expected, rtol=1e-6, atol=1e-9)


def test_in_train_mode_norms_see_the_whole_width_and_are_updated():
    nested, x = nested_case("norms")
    nested.train()
    before = nested.module[1].running_mean.clone()
    nested.run_masked(hard_masks(nested, make_cut(nested.groups, 0.1)), x)
    assert bool((nested.module[1].running_mean != before).all())


def by_unit(mask, sizes):
    return torch.repeat_interleave(mask, torch.tensor(sizes))


def test_a_relaxed_mask_scales_what_is_read_with_gradients_for_the_mask():
    nested, x = nested_case("norms")
    nested.eval()
    m = nested.module
    masks = [normal(3, seed=5).sigmoid().requires_grad_() for _ in nested.groups.free]
    a, b, c = by_unit(masks[0], (2, 2, 2)), by_unit(masks[1], (2, 2, 1)), by_unit(masks[2], (3, 2, 2))
    hidden = m[3](m[1](m[0](x)).relu()) * a.view(-1, 1, 1)
    hidden = m[5](m[4](hidden)).relu() * b.view(-1, 1, 1)
    expected = m[10](m[8](hidden.flatten(1)).relu() * c)
    names = [group.name for group in nested.groups.free]
    given = nested.run_masked(dict(zip(names, masks, strict=True)), x)
    torch.testing.assert_close(given, expected)
    weight = normal(*given.shape, seed=6)
    for own, wanted in zip(
        torch.autograd.grad((given * weight).sum(), masks),
        torch.autograd.grad((expected * weight).sum(), masks),
        strict=True,
    ):
        torch.testing.assert_close(own, wanted)
        assert bool((own != 0).any())


@pytest.mark.parametrize("name", CASES)
def test_inside_a_cut_a_mask_is_zero_beyond_it(name):
    nested, x = nested_case(name)
    nested.eval()
    for cut in some_cuts(nested, 4):
        masks = {own.name: normal(own.num_blocks, seed=5).sigmoid() for own in nested.groups.free}
        ended = {group: mask * hard_masks(nested, cut)[group] for group, mask in masks.items()}
        with nested.at(cut):
            found = nested.run_masked(masks, x)
        torch.testing.assert_close(found, nested.run_masked(ended, x))


def falling_masks(nested, logits):
    return {
        name: torch.softmax(own, 0).flip(0).cumsum(0).flip(0) for name, own in zip(nested.orders, logits, strict=True)
    }


@pytest.mark.parametrize("least", [0.1, 1e-2, 1e-3])
def test_what_a_tail_that_is_not_computed_changes_is_bounded(least):
    """One hidden layer y = sum_j m_j w_j h_j: what changes is at most ``least`` times what the tail contributes."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 12), nn.Tanh(), nn.Linear(12, 3)).double()
    nested = nl.nest(module, normal(2, 4), num_blocks=12, num_always=1, weights=None).eval()
    module = nested.module
    x, weight, temperature = normal(5, 4, seed=1), normal(5, 3, seed=2), 0.5
    (own,) = nested.groups.free
    start = normal(12, seed=3) - 0.5 * torch.arange(12.0, dtype=torch.float64)
    found = {}
    for way in ("whole", "cut"):
        logits = start.clone().requires_grad_()
        masks = falling_masks(nested, [logits / temperature])
        kept = int((masks[own.name] >= least).sum()) if way == "cut" else 12
        with nested.at({own.name: kept}):
            y = nested.run_masked(masks, x)
        parameters = [*module.parameters(), logits]
        found[way] = y.detach(), torch.autograd.grad((y * weight).sum(), parameters, materialize_grads=True)
    assert 1 < kept < 12
    hidden = module[0](x).tanh().detach()
    outer = module[2].weight.detach().abs()
    tail = torch.arange(12) >= kept
    changed = (found["cut"][0] - found["whole"][0]).abs()
    assert bool((changed <= least * (hidden.abs() * tail) @ outer.T + 1e-12).all())
    assert float(changed.max()) > 0
    pull = weight.abs() @ outer  # (5, 12): the most that the loss feels of each hidden unit
    inner = (least * tail).unsqueeze(1) * (pull.T @ x.abs())
    last = least * tail * (weight.abs().T @ hidden.abs())
    of_order = 2 * least / temperature * (tail * pull * hidden.abs()).sum()
    bounds = inner, least * tail * pull.sum(0), last, torch.zeros(3), of_order
    for whole, cut, bound in zip(found["whole"][1], found["cut"][1], bounds, strict=True):
        assert bool(((whole - cut).abs() <= bound + 1e-12).all())
        assert bool((whole != 0).any())


def test_a_unit_that_two_layers_pass_on_is_scaled_once():
    nested, x = nested_case("depthwise")
    nested.eval()
    m, mask = nested.module, torch.tensor([1.0, 0.5, 0.25], dtype=torch.float64)
    scale = by_unit(mask, (2, 2, 2)).view(-1, 1, 1)
    expected = m.shrink(torch.relu(m.depth(torch.relu(m.grow(x)))) * scale).mean((2, 3))
    torch.testing.assert_close(nested.run_masked({nested.groups.free[0].name: mask}, x), expected)


def test_noise_is_scaled_with_the_weights():
    """Local noise under a mask has the variance of z times what the layer before gives."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 1)).double()
    nested = nl.nest(module, normal(2, 4), num_blocks=3, num_always=1)
    with torch.no_grad():
        nested.module[0].posterior.log_alpha.fill_(-20)
        nested.module[1].posterior.log_alpha.fill_(1)
    x, mask = normal(4, seed=1), torch.tensor([1.0, 0.6, 0.1], dtype=torch.float64)
    hidden = nested.module[0].posterior.mean @ x + nested.module[0].bias
    variance = (nested.module[1].posterior.variance()[0] * (hidden * by_unit(mask, (2, 2, 2))).square()).sum()
    found = nested.train().run_masked({"0": mask}, x.expand(20_000, -1)).var()
    assert float((found / variance).detach()) == pytest.approx(1, abs=0.06)


@pytest.mark.parametrize("name", CASES)
def test_log_alphas_of_a_cut_are_those_of_the_weights_it_keeps(name):
    """The shares of masks of ones and zeros pick the same weights out of the whole."""
    nested, _ = nested_case(name)
    whole = nested.log_alphas(full_cut(nested.groups))
    assert whole.keys() == {path for path, part in nested.module.named_modules() if hasattr(part, "posterior")}
    for cut in some_cuts(nested, 6):
        masks, kept = hard_masks(nested, cut), nested.log_alphas(cut)
        assert kept.keys() == whole.keys()
        for path, own in kept.items():
            share = nested.weight_shares(path, masks)
            assert share.shape == whole[path].shape
            assert set(share.unique().tolist()) <= {0.0, 1.0}
            torch.testing.assert_close(own.flatten(), whole[path][share == 1])


def test_log_alphas_by_hand():
    nested, _ = nested_case("norms")
    kept = nested.log_alphas(nl.Cut((("0", 2), ("4", 1), ("8", 3))))
    parts = {path: nested.module.get_submodule(path).posterior.log_alpha for path in ("0", "4", "8", "10")}
    columns = [channel * 4 + pixel for channel in range(2) for pixel in range(4)]
    expected = {"0": parts["0"][:4], "4": parts["4"][:2, :4], "8": parts["8"][:, columns], "10": parts["10"]}
    assert [path for path, own in expected.items() if not torch.equal(own, kept[path])] == []


def test_log_alphas_are_within_bounds_and_carry_gradients():
    nested = nl.nest(nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 3)), torch.zeros(2, 4), num_blocks=3, num_always=1)
    nested.module[0].posterior.log_alpha.data[:3] = torch.tensor([100.0, -100.0, 1.0]).view(3, 1)
    kept = nested.log_alphas(nl.Cut((("0", 1),)))
    assert kept["0"][:, 0].tolist() == [20.0, -20.0]
    assert kept["1"].shape == (3, 2)
    sum(own.sum() for own in kept.values()).backward()
    assert nested.module[1].posterior.log_alpha.grad.sum(0).tolist() == [3, 3, 0, 0, 0, 0]


def test_shares_of_keep_probabilities_are_expected_masks():
    nested, _ = nested_case("skipping")
    for seed, order in enumerate(nested.orders.values()):
        order.logits.data = normal(2, seed=seed)
    keep = {name: order.keep_probs() for name, order in nested.orders.items()}
    for path in ("left", "right", "last"):
        expected = 0.0
        for widths in itertools.product((1, 2, 3), repeat=2):
            cut = nl.Cut(tuple(zip(nested.orders, widths, strict=True)))
            expected = expected + nested.log_prob(cut).exp() * nested.weight_shares(path, hard_masks(nested, cut))
        torch.testing.assert_close(nested.weight_shares(path, keep), expected)


def test_layers_can_be_dropped_but_not_masked():
    torch.manual_seed(0)
    nested = nl.nest(Residual(), torch.zeros(2, 4), kinds=("layer",), num_blocks=3, num_always=1)
    (group,) = nested.groups.free
    for width in (1, 2, 3):
        kept = nested.log_alphas(nl.Cut(((group.name, width),)))
        layers = [f"blocks.{number}.{part}" for number in range(width) for part in (0, 2)]
        assert kept.keys() == {"first", "last", *layers}
    with pytest.raises(ArgumentError) as caught:
        nested.run_masked({group.name: torch.ones(3)}, torch.zeros(2, 4))
    assert caught.value.name == "masks"


@pytest.mark.parametrize(
    "masks", [{}, {"0": torch.ones(2)}, {"0": torch.ones(4)}, {"0": torch.ones(3), "x": torch.ones(3)}]
)
def test_masks_that_do_not_fit(masks):
    module = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 3))
    nested = nl.nest(module, torch.zeros(2, 4), weights=None, num_blocks=3, num_always=1)
    with pytest.raises(ArgumentError):
        nested.run_masked(masks, torch.zeros(2, 4))


def test_what_nest_was_called_with_nests_again():
    options = {
        "order": "uniform",
        "weights": None,
        "num_blocks": 4,
        "num_always": 3,
        "kinds": ("neuron",),
        "where": "all",
        "layers": "stage",
        "rescale": True,
        "exclude": ("last",),
        "sampling": "shared",
    }
    nested = nl.nest(Residual(), torch.zeros(2, 4), **options)
    assert nested.made_with == options | {
        "kinds": ["neuron"],
        "exclude": ["last"],
        "only": None,
        "bits": None,
        "private": [],
    }
    again = nl.nest(Residual(), torch.zeros(2, 4), **nested.made_with)
    assert repr(again.groups) == repr(nested.groups)
    assert again.made_with == nested.made_with
    only = nl.nest(Residual(), torch.zeros(2, 4), only=("blocks.1.0",)).made_with
    assert only["only"] == ["blocks.1.0"]
    assert only["order"] == "downhill"


def test_code_is_not_remembered():
    def order(num_blocks, num_always):
        return nl.distributions.Uniform(num_blocks, num_always=num_always)

    module, x = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 3)), torch.zeros(2, 4)
    assert nl.nest(module, x, order=order).made_with is None
    assert nl.nest(module, x, rules={"mine::operation": lambda *_: None}).made_with is None
    assert nl.nest(module, x, rules={}).made_with is not None
