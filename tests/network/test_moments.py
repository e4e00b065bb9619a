"""Means and variances carried through networks, against integrals, Jacobians and very many draws."""

import math
import warnings
from functools import partial
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import nestling as nl
from nestling.distributions.weights import MultiplicativeGaussian
from nestling.prediction.forward_passes import passes
from nestling.prediction.likelihoods import Categorical
from nestling.reading.cut import full_cut, make_cut
from nestling.running.layers import VariationalConv2d, VariationalLayer, carrying_moments
from nestling.running.layers.stochastic import Mode
from nestling.running.moments import Carrying, Direction, Moments, carrying
from nestling.running.moments.sources import variance_along

F64 = torch.float64


def normal(*shape, seed=0):
    return torch.randn(*shape, dtype=F64, generator=torch.Generator().manual_seed(seed))


def moments(*shape, seed=0):
    return Moments(normal(*shape, seed=seed), normal(*shape, seed=seed + 1).square() + 0.05)


def integrated(function, mean, std):
    """Mean and variance of a function of a Gaussian, by a fine grid."""
    grid = torch.linspace(-9, 9, 200_001, dtype=F64)
    weight = torch.exp(-0.5 * grid.square())
    weight = weight / weight.sum()
    values = function(mean + std * grid)
    first = (weight * values).sum()
    return float(first), float((weight * (values - first).square()).sum())


PLACES = [(0.0, 1.0), (1.5, 0.5), (-2.0, 0.7), (3.0, 0.1), (-0.3, 2.0)]


@pytest.mark.parametrize(("mean", "std"), PLACES)
def test_relu_is_exact(mean, std):
    found = F.relu(Moments(torch.tensor([mean], dtype=F64), torch.tensor([std**2], dtype=F64)))
    exact = pytest.approx(integrated(torch.relu, mean, std), abs=1e-8)
    assert (float(found.mean_.detach()), float(found.variance)) == exact


def test_relu_of_what_is_nearly_certain():
    x = Moments(torch.tensor([2.0, -2.0, 0.0, 30.0, -30.0]), torch.tensor([0.0, 0.0, 0.0, 1e-12, 1e-12]))
    found = F.relu(x)
    assert found.mean_.tolist() == pytest.approx([2, 0, 0, 30, 0], abs=1e-6)
    assert found.variance.tolist() == pytest.approx([0] * 5, abs=1e-5)


@pytest.mark.parametrize("function", [F.gelu, F.silu, torch.tanh, torch.sigmoid, F.softplus, F.elu, F.hardswish])
@pytest.mark.parametrize(("mean", "std"), PLACES)
def test_pointwise_functions_by_quadrature(function, mean, std):
    found = function(Moments(torch.tensor([mean], dtype=F64), torch.tensor([std**2], dtype=F64)))
    exact = integrated(function, mean, std)
    assert float(found.mean_.detach()) == pytest.approx(exact[0], abs=0.02 * std)
    assert float(found.variance) == pytest.approx(exact[1], rel=0.1, abs=0.01 * std)


LINEAR = {
    "linear": lambda x: F.linear(x, normal(5, 4, seed=3), normal(5, seed=4)),
    "conv2d": lambda x: F.conv2d(x.reshape(1, 2, 3, 4), normal(3, 2, 2, 2, seed=3), normal(3, seed=4), padding=1),
    "transposed": lambda x: F.conv_transpose2d(x.reshape(1, 2, 3, 4), normal(2, 3, 2, 2, seed=3), stride=2),
    "batch norm": lambda x: F.batch_norm(
        x.reshape(6, 4), normal(4, seed=3), normal(4, seed=5).exp(), normal(4, seed=6), normal(4, seed=7)
    ),
    "average": lambda x: F.avg_pool2d(x.reshape(1, 2, 3, 4), (1, 2)),
    "adaptive average": lambda x: F.adaptive_avg_pool2d(x.reshape(1, 2, 3, 4), (1, 2)),
    "adaptive average of all": lambda x: F.adaptive_avg_pool2d(x.reshape(1, 2, 3, 4), 1),
    "mean": lambda x: x.reshape(2, 3, 4).mean((1, 2)),
    "sum": lambda x: x.reshape(2, 3, 4).sum(1, keepdim=True),
    "scaled and shifted": lambda x: 2 - x * normal(24, seed=3).reshape(x.shape) / 3 + 1,
    "parts that are put together": lambda x: torch.cat([x.flatten()[3:9], x.flatten()[12:15].flip(0)]),
    "turned": lambda x: x.reshape(4, 6).transpose(0, 1).contiguous().view(3, 8).permute(1, 0).unsqueeze(0),
    "dropout in eval mode": lambda x: F.dropout(x, 0.5, training=False),
}


@pytest.mark.parametrize("function", LINEAR.values(), ids=LINEAR)
def test_linear_operations_are_exact(function):
    """The mean goes through; the variance by the squares of the Jacobian."""
    x = moments(6, 4)
    found = function(x)
    jacobian = torch.autograd.functional.jacobian(function, x.mean_)
    expected = jacobian.reshape(found.mean_.numel(), -1).square() @ x.variance.flatten()
    torch.testing.assert_close(found.mean_, function(x.mean_))
    torch.testing.assert_close(found.variance.flatten(), expected)


def test_sums_and_products_of_two():
    one, other = moments(500, seed=1), moments(500, seed=7)
    draws = [own.mean_ + own.variance.sqrt() * normal(40_000, 500, seed=9 + n) for n, own in enumerate((one, other))]
    for found, drawn in ((one + other, draws[0] + draws[1]), (one * other, draws[0] * draws[1])):
        assert ((found.mean_ - drawn.mean(0)).abs() < 5 * (found.variance / 40_000).sqrt()).all()
        assert (found.variance / drawn.var(0) - 1).abs().max() < 0.15


@pytest.mark.parametrize(("size", "off"), [(2, 0.05), ((2, 2), 0.05), (3, 0.1)])
def test_the_larger_of_two_is_exact_and_of_a_window_close(size, off):
    x = Moments(normal(3, 2, 6, 6), normal(3, 2, 6, 6, seed=1).square() * 0.3 + 0.01)
    found = F.max_pool2d(x, size)
    draws = F.max_pool2d((x.mean_ + x.variance.sqrt() * normal(20_000, 3, 2, 6, 6, seed=2)).flatten(0, 1), size)
    draws = draws.unflatten(0, (20_000, 3))
    # exact for two; the larger of two is taken for a Gaussian on the way to that of more, which it is not
    assert ((found.mean_ - draws.mean(0)).abs() / draws.std(0)).mean() < 0.03
    assert (found.variance.sqrt() / draws.std(0) - 1).abs().mean() < off
    pair = F.max_pool2d(x, (1, 2))
    nodes, weights = np.polynomial.hermite_e.hermegauss(200)
    grid, weight = torch.tensor(nodes), torch.tensor(weights / weights.sum())
    one, other = (x.mean_[..., n::2, None, None] + x.variance[..., n::2, None, None].sqrt() * grid for n in (0, 1))
    largest = torch.maximum(one.transpose(-1, -2), other)
    mean = (largest * weight[:, None] * weight).sum((-1, -2))
    assert (pair.mean_ - mean).abs().max() < 2e-3  # what the grid can tell


def test_the_largest_of_rectified_elements_is_found_before_they_are_rectified():
    """The two commute, and fewer are left to rectify; against very many draws it is closer than the other order."""
    x = Moments(normal(3, 2, 6, 6), normal(3, 2, 6, 6, seed=1).square() * 0.3 + 0.01)
    found, other = F.max_pool2d(F.relu(x), 2), F.relu(F.max_pool2d(x, 2))
    torch.testing.assert_close(found.before(), other.before(), rtol=0, atol=0)
    drawn = torch.relu(x.mean_ + x.variance.sqrt() * normal(20_000, 3, 2, 6, 6, seed=2))
    draws = F.max_pool2d(drawn.flatten(0, 1), 2).unflatten(0, (20_000, 3))
    first = F.relu(x)
    after = F.max_pool2d(Moments(first.mean_, first.variance), 2)
    for off in (lambda own: own.mean_ - draws.mean(0), lambda own: own.variance.sqrt() - draws.std(0)):
        assert off(found).abs().mean() < off(after).abs().mean() / 2


def test_a_rectified_value_has_its_shape_before_it_is_worked_out_and_its_elements_after():
    x = moments(4, 5)
    found = F.relu(x)
    assert (found.shape, len(found), found.size(1)) == (x.shape, 4, 5)
    assert found.rectified
    torch.testing.assert_close((found + 1).mean_, F.relu(x).mean_ + 1)
    assert not found.rectified
    assert F.relu(found) is found  # nothing is left to cut off
    pooled = F.relu(F.max_pool2d(F.relu(moments(1, 1, 4, 4)), 2))
    torch.testing.assert_close(pooled.mean_, F.max_pool2d(F.relu(moments(1, 1, 4, 4)), 2).mean_)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_pieces_give_what_the_whole_gives(layout, monkeypatch):
    x = moments(7, 4, 6, 6)
    x = Moments(*(own.to(memory_format=layout) for own in x.before()))
    whole = F.max_pool2d(F.relu(x), 2), F.relu(x)
    monkeypatch.setattr("nestling.running.moments.sources._PIECE", 300)  # two examples at a time, and one at the end
    pieces = F.max_pool2d(F.relu(x), 2), F.relu(x)
    for one, other in zip(whole, pieces, strict=True):
        torch.testing.assert_close(one.mean_, other.mean_, rtol=0, atol=0)
        torch.testing.assert_close(one.variance, other.variance, rtol=0, atol=0)
        assert other.mean_.is_contiguous(memory_format=layout)


@pytest.mark.parametrize(
    "make", [lambda: nn.Linear(6, 5), lambda: nn.Conv2d(2, 3, 2, padding=1)], ids=["linear", "conv"]
)
def test_a_layer_adds_its_own_variance(make):
    """Var(w x) = Var(w) E(x^2) + E(w)^2 Var(x), summed over what is read."""
    torch.manual_seed(0)
    plain = make().double()
    shape = (2, 6) if isinstance(plain, nn.Linear) else (2, 2, 3, 4)
    nested = nl.nest(nn.Sequential(plain), torch.randn(*shape, dtype=F64), weights="gaussian", where="all").double()
    layer = next(own for own in nested.modules() if isinstance(own, VariationalLayer))
    layer.posterior.log_alpha.data = normal(*layer.posterior.mean.shape, seed=4)
    x = moments(*shape, seed=5)
    with torch.no_grad():
        found = layer.carry(x)
        draws = torch.stack(
            [layer.apply_weight(x.draw(1), layer.posterior.sample(), layer.bias) for _ in range(20_000)]
        )
        torch.testing.assert_close(found.mean_, layer.apply_weight(x.mean_, layer.posterior.mean, layer.bias))
        assert ((draws.var(0) / found.variance - 1).abs() < 0.12).all()
        known = layer.carry(x.mean_)
        torch.testing.assert_close(known.variance, layer.moments(x.mean_)[1])
        layer.sampling = "channel"
        passed_on = layer.apply_weight(x.variance, layer.posterior.mean.square(), None)
        positions = tuple(range(2, passed_on.ndim))
        added = found.variance - passed_on
        averaged = added.mean(positions, keepdim=True) if positions else added
        torch.testing.assert_close(layer.carry(x).variance, passed_on + averaged)
        averaged = known.variance.mean(positions, keepdim=True) if positions else known.variance
        torch.testing.assert_close(layer.carry(x.mean_).variance, averaged.expand_as(passed_on))


def wide_convolution(**options):
    torch.manual_seed(0)
    return VariationalConv2d(
        nn.Conv2d(20, 24, 3, bias=False, dtype=F64, **options),
        MultiplicativeGaussian(normal(24, 20, 3, 3), normal(24, 20, 3, 3, seed=1)),
    )


CONVOLUTIONS = [
    {},
    {"padding": 1},
    {"padding": 2, "stride": 2, "dilation": 2},
    {"padding": 1, "padding_mode": "reflect"},
]


@pytest.mark.parametrize("options", CONVOLUTIONS, ids=str)
@torch.no_grad()
def test_variances_by_channel_and_by_position(options):
    """Exact, by the convolution itself, where inputs and weights are products of channel and position."""
    layer = wide_convolution(**options)
    row, column = normal(3, seed=2).exp(), normal(3, seed=3).exp()
    by_tap = (row[:, None] * column).expand(24, 20, 3, 3)
    layer.posterior.mean.copy_((normal(24, 20, 1, 1, seed=4).square() * by_tap).sqrt())
    layer.posterior.log_alpha.fill_(-1.0)
    profile = normal(2, 1, 7, 1, seed=5).exp() * normal(2, 1, 1, 9, seed=6).exp()
    for even in (torch.ones_like(profile), profile):
        spread, x = (normal(2, 20, 1, 1, seed=n).square() * even for n in (7, 8))
        x = x.sqrt()
        whole, added = layer.variances(x, spread)
        squares, variance = layer.posterior.mean.square(), layer.posterior.variance()
        exact = layer.apply_weight(spread + x.square(), variance, None)
        passed_on = layer.apply_weight(spread, squares, None)
        # by channel as if positions were the same: right in the mean over them but for the edges
        scale = exact.mean((2, 3), keepdim=True) / (added[0] * added[1]).mean((2, 3), keepdim=True)
        torch.testing.assert_close(added[0] * added[1] * scale, exact)
        torch.testing.assert_close(whole[0] * whole[1] * scale, exact + passed_on)
        if even is not profile:
            torch.testing.assert_close(scale, torch.ones_like(scale))


@torch.no_grad()
def test_variances_by_channel_and_by_position_are_close_for_many_channels():
    layer = wide_convolution(padding=1)
    x, spread = torch.relu(normal(8, 20, 8, 8, seed=2)), normal(8, 20, 8, 8, seed=3).square()
    (by_channel, by_position), _ = layer.variances(x, spread)
    (exact,), _ = VariationalLayer.variances(layer, x, spread)
    off = (by_channel * by_position / exact).log()
    assert abs(float(off.mean())) < 0.05
    assert float(off.std()) < 0.25


def reached(nested, x):
    """The output of a pass of moments, and what carried it, still open."""
    with carrying_moments(nested, 3, len(x)) as now, torch.no_grad():
        return nested(x), now.sources


def random_posteriors(module):
    for n, part in enumerate(module.modules()):
        if isinstance(part, VariationalLayer):
            part.posterior.log_alpha.data.copy_(normal(*part.posterior.mean.shape, seed=n) - 1)
    return module


def test_dependence_in_a_linear_network_is_exact():
    """Against the covariances of a product of independent matrices, from the first layer to the last."""
    x = normal(4, 5)
    nested = nl.nest(nn.Sequential(nn.Linear(5, 6), nn.Linear(6, 7), nn.Linear(7, 3)).double(), x, num_blocks=2).eval()
    random_posteriors(nested)
    output, sources = reached(nested, x)
    mean, covariance = x, torch.zeros(4, 5, 5, dtype=F64)
    for layer in (part for part in nested.modules() if isinstance(part, VariationalLayer)):
        weight, variance = layer.posterior.mean.detach(), layer.posterior.variance().detach()
        seconds = mean.square() + covariance.diagonal(dim1=1, dim2=2)
        covariance = weight @ covariance @ weight.T + torch.diag_embed(seconds @ variance.T)
        mean = mean @ weight.T + layer.bias.detach()
    direction = normal(4, 3, seed=9)
    exact = torch.einsum("ni,nij,nj->n", direction, covariance, direction)
    torch.testing.assert_close(output.mean_.detach(), mean)
    torch.testing.assert_close(variance_along(output.mean_, direction, sources), exact)
    with carrying_moments(nested, 3, 4), torch.no_grad():
        along = nested(x).along(Direction(direction, random=False))
    in_common = (along.together * direction).sum(1)
    torch.testing.assert_close((along.variance * direction.square()).sum(1) + in_common.square(), exact)
    assert (in_common.abs() > 0).any(), "there is dependence"


def test_draws_have_noise_in_common():
    mean, variance, together = normal(2, 3), normal(2, 3, seed=1).square(), normal(2, 3, seed=2)
    drawn = Moments(mean, variance, together=together).draw(20_000).view(20_000, 2, 3)
    for number in range(2):
        exact = variance[number].diag() + torch.outer(together[number], together[number])
        torch.testing.assert_close(drawn[:, number].T.cov(), exact, rtol=0.03, atol=0.03)
    torch.testing.assert_close(drawn.mean(0), mean)


ACTIVATIONS = {
    "relu": nn.ReLU(),
    "gelu": nn.GELU(),
    "pooled, then rectified": nn.Sequential(nn.Unflatten(1, (2, 4, 4)), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
    "pooled": nn.Sequential(nn.Unflatten(1, (2, 4, 4)), nn.MaxPool2d(2, stride=2), nn.Flatten()),
}


@pytest.mark.parametrize("activation", ACTIVATIONS.values(), ids=ACTIVATIONS)
def test_what_slopes_do_not_account_for_is_noise_of_its_own(activation):
    """Units of one hidden layer are independent: what they add is the squared weights times all their variance."""
    x = normal(4, 5)
    inner = 8 if "Flatten" in repr(activation) else 32
    layers = nn.Sequential(nn.Linear(5, 32), activation, nn.Linear(inner, 3)).double()
    nested = random_posteriors(nl.nest(layers, x, weights="gaussian", num_blocks=2).eval())
    hidden, _ = reached(nested.module[0], x)
    with torch.no_grad():
        hidden = nested.module[1](hidden)
    output, sources = reached(nested, x)
    last, direction = nested.module[2].posterior, normal(4, 3, seed=9)
    added = (hidden.variance + hidden.mean_.detach().square()) @ last.variance().detach().T
    back = direction @ last.mean.detach()
    exact = (back.square() * hidden.variance).sum(1) + (direction.square() * added).sum(1)
    torch.testing.assert_close(variance_along(output.mean_, direction, sources), exact)


class Forked(nn.Module):
    """What a ReLU gives goes two ways, and comes together again."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = nn.Conv2d(2, 8, 3), nn.Conv2d(8, 8, 3, padding=1), nn.Linear(8 * 9, 3)

    def forward(self, x):
        x = torch.relu(self.first(x))
        return self.last(F.max_pool2d(x + torch.relu(self.second(x)), 2).flatten(1))


class Bottleneck(nn.Module):
    """Channels that all read one, whose noise moves them together, and are added up."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = nn.Conv2d(2, 1, 3), nn.Conv2d(1, 32, 3, padding=1), nn.Linear(32, 3)
        self.second.weight.data.abs_()
        self.last.weight.data.abs_()

    def forward(self, x):
        return self.last(F.relu(self.second(F.gelu(self.first(x)))).mean((2, 3)))


class Between(nn.Module):
    """A convolution and a linear layer with something between them."""

    def __init__(self, between):
        super().__init__()
        self.between, self.first = between, nn.Conv2d(2, 6, 3)
        self.last = nn.Linear(between(torch.zeros(1, 6, 6, 6)).numel(), 3)

    def forward(self, x):
        return self.last(self.between(self.first(x)).flatten(1))


def in_inference_mode(x):
    with torch.inference_mode():
        return torch.relu(x) * torch.full((6, 1, 1), 2.0)


def pooled_twice(x):
    x = F.max_pool2d(torch.relu(x), 2)
    return torch.cat([F.max_pool2d(x, 2).flatten(1), x.flatten(1)], 1)


BETWEEN = {
    "windows that overlap": lambda x: F.max_pool2d(torch.relu(x), 3, 1),
    "windows that do not tile": lambda x: F.max_pool2d(x, 3, 2),
    "pooled twice, both used": pooled_twice,
    "rectified before and after": lambda x: torch.tanh(F.max_pool2d(torch.relu(x), 2)),
    "some of it": lambda x: torch.relu(x)[:, 1:4],
    "turned": lambda x: torch.relu(x).mT.mT,
    "a product": lambda x: x[:, :3] * x[:, 3:],
    "a square and a sum with itself": lambda x: x * x + (x + x),
    "spread out again": lambda x: F.max_pool2d(x.mean((2, 3), keepdim=True).expand(-1, -1, 4, 4) + torch.ones(4), 2),
}

AFTERWARDS = {"detached": lambda x: torch.relu(x).detach().data, "in inference mode": in_inference_mode}
"""What can't be traced: it comes into the network when it has been nested."""

DEEP = {
    **{name: (partial(Between, own), (2, 8, 8), "local") for name, own in BETWEEN.items()},
    **dict.fromkeys(AFTERWARDS, (partial(Between, torch.relu), (2, 8, 8), "local")),
    "forked": (Forked, (2, 8, 8), "local"),
    "forked, a number a channel": (Forked, (2, 8, 8), "channel"),
    "resnet": (lambda: nl.models.build("resnet14", width=0.5), (3, 32, 32), "local"),
    "bottleneck": (Bottleneck, (2, 8, 8), "local"),
}


@pytest.mark.parametrize("name", DEEP)
def test_variance_along_a_direction_is_that_of_very_many_draws(name):
    make, shape, sampling = DEEP[name]
    x = normal(4, *shape).abs().float()
    nested = with_noise(make(), x[:2], log_alpha=-2.0, sampling=sampling)
    if name in AFTERWARDS:
        nested.module.between = AFTERWARDS[name]
    if name == "bottleneck":
        for layer in (nested.module.second, nested.module.last):
            layer.posterior.log_alpha.data.fill_(-9.0)
    output, sources = reached(nested, x)
    direction = torch.ones_like(output.mean_)
    with passes(nested, None, 600, 1, Categorical()) as run:
        exact = run(x, 0).sum(-1).var(0)
    found = variance_along(output.mean_, direction, sources)
    assert float(found.sum() / exact.sum()) == pytest.approx(1, abs=0.15)
    if name == "bottleneck":
        assert output.variance.sum() < 0.2 * exact.sum()  # what there is without dependence


class Mixed(nn.Module):
    """A layer norm, which has no rule, inside a residual stream."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.middle, self.last = (
            nn.Linear(6, 8),
            nn.LayerNorm(8),
            nn.Linear(8, 8),
            nn.Linear(8, 3),
        )

    def forward(self, x):
        x = torch.relu(self.first(x))
        return self.last(torch.relu(x + self.middle(self.norm(x))))


def with_noise(module, x, log_alpha=-2.0, **options):
    torch.manual_seed(0)
    nested = nl.nest(module, x, **{"weights": "gaussian", "num_blocks": 2} | options).eval()
    for part in nested.modules():
        if isinstance(part, VariationalLayer):
            part.posterior.log_alpha.data.fill_(log_alpha)
    return nested


@pytest.mark.parametrize(
    "layer",
    [nn.AvgPool1d(2), nn.AvgPool2d(2), nn.AvgPool2d((2, 3), stride=1, padding=(0, 1)), nn.AvgPool3d([2, 1, 2])],
    ids=str,
)
def test_averaging_layers_are_exact(layer):
    rank = int(type(layer).__name__[-2])
    x = moments(2, 3, *[6] * rank)
    found = layer(x)
    taps = layer(torch.eye(6**rank, dtype=F64).view(-1, 1, *[6] * rank)).flatten(1).T  # (windows, elements)
    torch.testing.assert_close(found.mean_, layer(x.mean_))
    torch.testing.assert_close(found.variance.flatten(2), x.variance.flatten(2) @ taps.square().T)


def test_averages_of_uneven_windows_are_drawn():
    with carrying(Carrying(3)), pytest.warns(UserWarning, match="avg_pool2d has no rule"):
        found = nn.AvgPool2d(2, padding=1, count_include_pad=False)(moments(2, 3, 6, 6))
    assert found.shape == (6, 3, 4, 4)


WRITES = [
    (lambda x: F.relu(x, inplace=True), F.relu),
    (lambda x: x.relu_(), F.relu),
    (lambda x: x.add_(3.0), lambda x: x + 3.0),
    (lambda x: x.__imul__(2.0), lambda x: x * 2.0),
]


@pytest.mark.parametrize(("write", "otherwise"), WRITES)
def test_what_is_written_in_place_is_written(write, otherwise):
    x = moments(2, 3)
    assert write(x) is x
    torch.testing.assert_close(x.mean_, otherwise(moments(2, 3)).mean_)
    torch.testing.assert_close(x.variance, otherwise(moments(2, 3)).variance)


def test_operators_without_a_rule_are_drawn_and_known_tensors_go_along():
    x, known = moments(4, 3), normal(4, 3, seed=5)
    for apply in (lambda own: own**2, lambda own: 1 / own, lambda own: own > 0, lambda own: torch.maximum(known, own)):
        with carrying(Carrying(5)) as now, pytest.warns(UserWarning, match="5 draws"):
            assert apply(x).shape == (20, 3)
        assert now.drawn
    torch.testing.assert_close(x.T.variance, x.variance.T)
    torch.testing.assert_close((2 - x).mean_, 2 - x.mean_)
    assert not x.is_nested


@pytest.mark.parametrize("shape", [(3, 5), (2, 4, 3, 3)])
def test_many_draws_have_the_means_and_variances_that_are_asked_for(shape):
    own = moments(*shape)
    drawn = own.draw(100).unflatten(0, (100, shape[0]))
    assert torch.allclose(drawn.mean(0), own.mean_, atol=1e-6)
    assert torch.allclose(drawn.var(0, unbiased=False), own.variance, rtol=1e-4)
    few = own.draw(10).unflatten(0, (10, shape[0]))
    assert torch.allclose(few.mean(0), own.mean_, atol=1e-6)
    assert not torch.allclose(few.var(0), own.variance, rtol=1e-2), "a few would not look like draws"


def test_draws_of_rectified_elements_are_never_below_zero():
    assert F.relu(moments(50, 3)).draw(4).min() == 0


def test_an_operation_without_a_rule_is_named_and_drawn():
    torch.manual_seed(0)
    x = torch.randn(5, 6)
    nested = with_noise(Mixed(), x)
    with pytest.warns(UserWarning, match="layer_norm has no rule for means and variances: from there on 200 draws"):
        found = nl.predict(nested, x, samples=200, by="moments", keep_samples=True, seed=0)
    drawn = nl.predict(nested, x, samples=4_000, keep_samples=True, seed=1)
    assert found.samples.shape[0] == 200
    assert (found.probs - drawn.probs).abs().max() < 0.02
    assert (found.samples.std(0) / drawn.samples.std(0) - 1).abs().max() < 0.35


NETWORKS = {
    "mlp": (lambda: nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 16), nn.GELU(), nn.Linear(16, 3)), (6,)),
    "convolutions": (
        lambda: nn.Sequential(
            *(nn.Conv2d(2, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(8, 12, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 3)),
        ),
        (2, 8, 8),
    ),
    "resnet": (lambda: nl.models.build("resnet14", width=0.25), (3, 32, 32)),
}


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("cut", [1.0, 0.5])
def test_one_pass_is_close_to_many_draws_at_any_cut(name, cut):
    make, shape = NETWORKS[name]
    x = torch.randn(6, *shape, generator=torch.Generator().manual_seed(3))
    nested = with_noise(make(), x[:2], log_alpha=-3.0, num_always=1)
    assert (make_cut(nested.groups, cut) == full_cut(nested.groups)) == (cut == 1.0)
    with warnings.catch_warnings(action="error"):
        found = nl.predict(nested, x, cut=cut, by="moments", keep_samples=True, seed=0)
    drawn = nl.predict(nested, x, cut=cut, samples=400, keep_samples=True, seed=1)
    assert found.samples.shape == (100, 6, found.probs.shape[-1])
    spread = drawn.samples.std(0)
    assert ((found.probs - drawn.probs).abs() < 0.02 + spread).all()
    assert 0.6 < float(found.samples.std(0).mean() / spread.mean()) < 1.5
    assert all(part.mode == Mode() for part in nested.modules() if isinstance(part, VariationalLayer))


class Positions(nn.Module):
    """Gives a row for each position of each example, with a norm on the way if it is asked for."""

    def __init__(self, norm=False):
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 3)
        self.norm = nn.LayerNorm(8) if norm else nn.Identity()

    def forward(self, x):
        return self.last(self.norm(self.first(x))).flatten(0, 1)


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.filterwarnings("ignore:layer_norm has no rule")
def test_outputs_whose_first_axis_is_not_the_batch(norm):
    x = torch.randn(4, 5, 6)
    nested = with_noise(Positions(norm), x)
    found = nl.predict(nested, x, samples=50, by="moments", seed=0)
    drawn = nl.predict(nested, x, samples=400, seed=1)
    assert found.probs.shape == (20, 3)
    assert (found.probs - drawn.probs).abs().max() < 0.05


class Added(nn.Module):
    """A norm, without a rule, beside what goes around it."""

    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(6, 6), nn.LayerNorm(6)

    def forward(self, x):
        return x + self.norm(self.linear(x))


def test_draws_that_do_not_go_together_with_what_comes_after_start_over():
    x = torch.randn(4, 6)
    with pytest.warns(UserWarning, match="layer_norm has no rule"):
        found = nl.predict(with_noise(Added(), x), x, samples=7, by="moments", keep_samples=True)
    assert found.samples.shape == (7, 4, 6)


class Failing(Added):
    """Fails once after operations have been given draws, for a reason of its own."""

    faults: ClassVar[list[Exception]] = []

    def forward(self, x):
        y = self.norm(self.linear(x))
        if self.faults:
            raise self.faults.pop()
        return y


@pytest.mark.parametrize("fault", [RuntimeError("the scale is off"), torch.OutOfMemoryError("full")], ids=str)
@pytest.mark.filterwarnings("ignore:layer_norm has no rule")
def test_errors_of_the_networks_own_come_through(fault):
    x = torch.randn(4, 6)
    nested = with_noise(Failing(), x)
    Failing.faults.append(fault)
    with pytest.raises(type(fault), match=str(fault)):
        nl.predict(nested, x, samples=7, by="moments")


@pytest.mark.filterwarnings("ignore:layer_norm has no rule")
def test_a_second_operation_without_a_rule_draws_no_draws_of_draws():
    x = torch.randn(4, 6)
    layers = nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 3)
    nested = with_noise(nn.Sequential(*layers), x)
    found = nl.predict(nested, x, samples=20, by="moments", keep_samples=True, seed=0)
    assert found.samples.shape == (100, 4, 3)
    assert (found.probs - nl.predict(nested, x, samples=1000, seed=1).probs).abs().max() < 0.05
    assert nl.predict(nested, x[:0], samples=20, by="moments").probs.shape == (0, 3)


def test_one_sample_is_carried_as_any_number_is():
    x = torch.randn(4, 6)
    nested = with_noise(NETWORKS["mlp"][0](), x)
    assert nl.predict(nested, x, samples=1, by="moments", keep_samples=True).samples.shape[0] == 100
    assert nl.predict(nested, x, samples=1, keep_samples=True).samples.shape[0] == 1


def test_a_view_right_after_a_layer():
    """A variance that all positions share has no place in memory for each."""

    class Viewed(nn.Sequential):
        def forward(self, x):
            return self[1](self[0](x).view(len(x), -1))

    x = torch.randn(3, 2, 6, 6)
    nested = with_noise(Viewed(nn.Conv2d(2, 4, 3), nn.Linear(64, 3)), x)
    assert nl.predict(nested, x, by="moments").probs.shape == (3, 3)


class Folded(nn.Module):
    """Frames become examples for a while."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 16), nn.Linear(16, 3)

    def forward(self, x):
        return self.last(torch.relu(self.first(x.flatten(0, 1))).unflatten(0, x.shape[:2]).mean(1))


def test_examples_that_are_folded_keep_their_own_spread():
    x = torch.randn(5, 4, 6) * torch.tensor([0.1, 0.3, 1.0, 3.0, 10.0]).view(5, 1, 1)
    nested = with_noise(Folded(), x)
    found, drawn = (nl.predict(nested, x, samples=400, keep_samples=True, seed=0, by=by) for by in ("moments", "draws"))
    spread, exact = (own.samples.std(0).mean(-1) for own in (found, drawn))
    assert (spread / exact).log().abs().max() < 0.4


@pytest.mark.parametrize("outputs", [(), (1,), (10,)])
def test_numbers_as_outputs(outputs):
    """One for each example, or several that share their noise."""
    x = torch.randn(40, 6)
    layers = nn.Linear(6, 1), nn.Linear(1, *outputs or (1,)), nn.Flatten(0) if outputs == () else nn.Identity()
    nested = with_noise(nn.Sequential(*layers), x, log_alpha=-1.0)
    options = {"samples": 500, "likelihood": "gaussian", "seed": 0}
    found, drawn = (nl.predict(nested, x, by=by, **options).epistemic.sqrt() for by in ("moments", "draws"))
    assert found.shape == (40, *outputs)
    assert float((found / drawn).log().mean()) == pytest.approx(0, abs=0.15)
    assert float((found / drawn).log().std()) < 0.3


def test_log_probabilities_are_as_good_as_logits():
    x = normal(4, 2, 8, 8).abs().float()
    nested = with_noise(nn.Sequential(Bottleneck(), nn.LogSoftmax(1)), x[:2])
    for layer in (nested.module[0].second, nested.module[0].last):
        layer.posterior.log_alpha.data.fill_(-9.0)
    layer.posterior.mean.data.copy_(normal(3, 32))
    with warnings.catch_warnings(action="error"):
        found = nl.predict(nested, x, by="moments", keep_samples=True, seed=0)
    drawn = nl.predict(nested, x, samples=500, keep_samples=True, seed=1)
    top = drawn.probs.argmax(1).expand(1, -1).unsqueeze(-1)
    odds = [own.samples.gather(2, top.expand(len(own.samples), -1, 1)).logit().std(0).mean() for own in (found, drawn)]
    assert float(odds[0] / odds[1]) == pytest.approx(1, abs=0.25)
    p = moments(3, 4)
    jacobian = torch.autograd.functional.jacobian(lambda z: z.log_softmax(1), p.mean_).sum(2)
    torch.testing.assert_close(p.log_softmax(1).variance, (jacobian.square() * p.variance.unsqueeze(1)).sum(-1))


def test_a_vector_as_long_as_draws_of_the_batch_is_not_taken_for_them():
    scale = torch.rand(24)

    class Scaled(nn.Sequential):
        def forward(self, x):
            return self[1](self[0](x) * scale)

    x = torch.randn(4, 5)
    nested = with_noise(Scaled(nn.Linear(5, 24), nn.Linear(24, 3)), x)
    assert nl.predict(nested, x, samples=6, by="moments").probs.shape == (4, 3)


def test_a_network_made_in_inference_mode_draws():
    with torch.inference_mode():
        nested = with_noise(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)), torch.randn(2, 4))
    assert nl.predict(nested, torch.randn(3, 4), samples=4, by="moments", keep_samples=True).samples.shape[0] == 4


def test_convolutions_that_share_a_posterior_but_not_their_geometry():
    posterior = MultiplicativeGaussian(normal(16, 16, 3, 3).float(), torch.full((16, 16, 3, 3), -2.0))
    layers = [VariationalConv2d(nn.Conv2d(16, 16, 3, **own), posterior) for own in ({"padding": 1}, {"stride": 2})]
    x = torch.rand(2, 16, 9, 9)
    for layer in layers * 2:
        whole, _ = layer.variances(x, None)
        assert (whole[0] * whole[1]).shape == layer(x).shape


def test_evaluate_and_calibrate_take_it_too():
    x, y = torch.randn(60, 6), torch.randint(0, 3, (60,))
    nested = with_noise(NETWORKS["mlp"][0](), x[:2])
    by_draws = nl.evaluate(nested, [(x, y)], samples=300)
    by_moments = nl.evaluate(nested, [(x, y)], by="moments")
    assert by_moments.nll == pytest.approx(by_draws.nll, abs=0.02)
    assert nl.calibrate(nested, [(x, y)], by="moments").temperature > 0


def test_networks_that_cannot_carry_moments_draw():
    """One that runs as a graph, and one without noise."""
    layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True)
    options = {"num_blocks": 2, "num_always": 1, "kinds": ("head", "neuron")}
    module = nn.Sequential(layer, nn.Flatten(), nn.Linear(40, 3))
    nested = nl.nest(module, torch.randn(2, 5, 8), **{"weights": "gaussian"} | options).eval()
    assert nested.plan is not None
    assert nl.predict(nested, torch.randn(3, 5, 8), samples=4, by="moments", keep_samples=True).samples.shape[0] == 4
    plain = nn.Linear(4, 3)
    assert nl.predict(plain, torch.randn(2, 4), by="moments", keep_samples=True).samples.shape[0] == 1


def test_another_way_is_refused():
    with pytest.raises(nl.ArgumentError, match="by: got 'guess', but it must be one of draws, fast_draws, moments"):
        nl.predict(nn.Linear(2, 2), torch.zeros(1, 2), by="guess")


def test_what_is_no_method_of_a_tensor_is_named():
    with pytest.raises(AttributeError, match="no_such_method"):
        moments(3).no_such_method()


def test_the_block_ends_after_an_error():
    nested = with_noise(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)), torch.randn(2, 4))
    with pytest.raises(RuntimeError, match="stop"), carrying_moments(nested, 3, 2), carrying(Carrying(5)):
        raise RuntimeError("stop")
    assert all(part.mode == Mode() for part in nested.modules() if isinstance(part, VariationalLayer))
    assert math.isfinite(float(nested(torch.randn(2, 4)).sum().detach()))
