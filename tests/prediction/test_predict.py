"""``predict`` on small networks, against quadrature, passes made by hand, and the analytic Gaussian answer."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import nestling as nl
from nestling.prediction import predict
from nestling.running.layers import VariationalLayer
from nestling.running.layers.stochastic import Mode


class Regressor(nn.Sequential):
    """A network with batch norm and dropout, whose modes matter."""

    def __init__(self, outputs):
        super().__init__(nn.Linear(4, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Dropout(0.5), nn.Linear(12, outputs))


def nested(outputs=3, log_alpha=-1.0, **options):
    torch.manual_seed(0)
    network = nl.nest(Regressor(outputs), torch.randn(5, 4), num_always=1, num_blocks=4, **options)
    for part in network.modules():
        if isinstance(part, VariationalLayer):
            part.posterior.log_alpha.data.fill_(log_alpha)
    return network


@pytest.fixture
def x():
    return torch.randn(5, 4, generator=torch.Generator().manual_seed(3))


def test_is_the_mean_of_passes_made_by_hand(x):
    network = nested(sampling="shared").eval()
    torch.manual_seed(7)
    with torch.no_grad(), network.drawing(), network.at(0.5):
        each = torch.stack([network(x).softmax(1) for _ in range(4)])
    torch.manual_seed(7)
    found = predict(network, x, cut=0.5, samples=4, keep_samples=True)
    torch.testing.assert_close(found.samples, each)
    torch.testing.assert_close(found.probs, each.mean(0))
    assert found.epistemic.min() > 0
    assert not found.probs.requires_grad


@pytest.mark.parametrize("sampling", ["shared", "local"])
def test_one_variational_layer_converges_to_the_integral(sampling):
    """With two classes and Gaussian weights the logit is Gaussian: its mean sigmoid is an integral over one number."""
    torch.manual_seed(0)
    network = nl.nest(nn.Sequential(nn.Linear(3, 1)), torch.randn(2, 3), sampling=sampling, where="all")
    layer = next(part for part in network.modules() if isinstance(part, VariationalLayer))
    layer.posterior.log_alpha.data.fill_(0.5)
    x = 2 * torch.randn(4, 3)
    mean = layer.apply_weight(x, layer.posterior.mean, layer.bias).detach()[:, 0].numpy()
    std = layer.apply_weight(x.square(), layer.posterior.variance(), None).detach()[:, 0].sqrt().numpy()
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    exact = (weights / (1 + np.exp(-mean[:, None] - std[:, None] * nodes))).sum(1) / weights.sum()
    num = 3000
    found = predict(network, x, samples=num, likelihood="bernoulli", keep_samples=True, seed=0)
    error = found.samples[:, :, 1].std(0).numpy() / math.sqrt(num)
    assert (np.abs(found.probs[:, 1].numpy() - exact) < 4 * error).all()
    assert (np.abs(exact - 1 / (1 + np.exp(-mean))) > 6 * error).any(), "the check must tell the mean of logits apart"


def test_ways_of_sampling_agree_on_each_example(x):
    found = {}
    for sampling in ("local", "channel", "shared", "each"):
        found[sampling] = predict(nested(sampling=sampling, log_alpha=-2.0), x, samples=1000, seed=1).probs
    torch.testing.assert_close(found["local"], found["shared"], atol=0.03, rtol=0)
    torch.testing.assert_close(found["each"], found["shared"], atol=0.03, rtol=0)
    torch.testing.assert_close(found["channel"], found["shared"], atol=0.03, rtol=0)


class SequenceFirst(torch.nn.Module):
    """A network that moves its examples to the second axis, as recurrent and attention layers of torch do."""

    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(4, 8), torch.nn.Linear(8, 3)

    def forward(self, x):
        return self.last(self.first(x.transpose(0, 1)).relu()).mean(0)


@pytest.mark.parametrize("by", ["draws", "fast_draws"])
def test_draws_differ_where_examples_are_not_on_the_first_axis(by):
    torch.manual_seed(0)
    network = nl.nest(SequenceFirst(), torch.randn(2, 5, 4), num_blocks=2)
    found = predict(network, torch.randn(3, 5, 4), samples=8, by=by, keep_samples=True, seed=0).samples
    assert found.std(0).min() > 1e-4


@pytest.mark.parametrize("by", ["draws", "fast_draws", "moments"])
def test_no_examples_at_all(by):
    module = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(144, 3))
    network = nl.nest(module, torch.randn(2, 1, 8, 8), num_blocks=2)
    assert predict(network, torch.zeros(0, 1, 8, 8), samples=3, by=by).probs.shape == (0, 3)


def test_no_samples_is_the_mean_network(x):
    network = nested()
    found = predict(network, x, cut=0.5, samples=0, keep_samples=True)
    torch.testing.assert_close(found.probs, nl.extract(network, 0.5)(x).softmax(1).detach())
    assert found.samples.shape == (1, 5, 3)


WRITES = {
    "fused step": lambda own: fused_step(own),
    "in place": lambda own: [p.mul_(1.5) for p in own.parameters()],
    "statistics": lambda own: [b.add_(1.0) for b in own.buffers() if b.is_floating_point()],
}


def fused_step(network):
    """A step that leaves no note in what it writes to."""
    optimiser = torch.optim.SGD(network.parameters(), lr=0.5, fused=True)
    for own in network.parameters():
        own.grad = torch.ones_like(own)
    optimiser.step()


@pytest.mark.parametrize("by", ["draws", "moments"])
@pytest.mark.parametrize("write", WRITES)
def test_a_network_in_eval_mode_that_is_written_to(write, by):
    """Nothing that was kept of it before is used."""
    torch.manual_seed(0)
    layers = torch.nn.Conv2d(1, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.Flatten()
    x = torch.randn(2, 1, 8, 8)
    network = nl.nest(torch.nn.Sequential(*layers, torch.nn.Linear(144, 3)), x, num_blocks=2).eval()
    before = [predict(network, x, cut=cut, by=by, seed=0).probs for cut in (0.5, 1.0)]
    with torch.no_grad():
        WRITES[write](network)
    for cut, old in zip((0.5, 1.0), before, strict=True):
        found = predict(network, x, cut=cut, by=by, seed=0).probs
        fresh = predict(nl.extract(network, cut, uncertainty=True), x, by=by, seed=0).probs
        torch.testing.assert_close(found, fresh)
        assert not torch.allclose(found, old)


def test_weights_that_are_written_to_through_data(x):
    """Which torch does not note: predictions by mean weights see it."""
    network = nested().eval()
    before = predict(network, x, cut=0.5, samples=0).probs
    for own in network.parameters():
        own.data.mul_(1.5)
    found = predict(network, x, cut=0.5, samples=0).probs
    torch.testing.assert_close(found, nl.extract(network, 0.5)(x).softmax(1).detach())
    assert not torch.allclose(found, before)


def test_one_pass_with_and_without_autocast():
    """And for images of several sizes: of what follows from them only the last is kept."""
    torch.manual_seed(0)
    layers = torch.nn.Conv2d(1, 4, 3, padding=1), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten()
    network = nl.nest(torch.nn.Sequential(*layers, torch.nn.Linear(4, 3)), torch.randn(2, 1, 8, 8), num_blocks=2).eval()
    x = torch.randn(2, 1, 8, 8)
    with torch.autocast("cpu", torch.bfloat16):
        coarse = predict(network, x, by="moments", seed=0).probs
    fine = predict(network, x, by="moments", seed=0).probs
    torch.testing.assert_close(coarse, fine, atol=0.02, rtol=0)
    number = len(network.module[0].posterior._kept_results)
    for size in range(9, 14):
        predict(network, torch.randn(2, 1, size, size), by="moments")
    assert len(network.module[0].posterior._kept_results) == number
    assert torch.equal(predict(network, x, by="moments", seed=0).probs, fine)


@pytest.mark.parametrize("model", ["nested", "extracted", "plain"])
def test_plain_weights_run_once_and_know_no_epistemic_uncertainty(x, model):
    network = nested(weights=None)
    chosen = {"nested": network, "extracted": nl.extract(nested(), 1.0), "plain": Regressor(3)}[model]
    calls = []
    chosen.register_forward_hook(lambda *_: calls.append(1))
    found = predict(chosen, x, samples=6)
    assert len(calls) == 1
    assert torch.equal(found.epistemic, torch.zeros(5))


def test_extracted_network_with_uncertainty_predicts_as_the_nested_one(x):
    network = nested(sampling="shared")
    small = nl.extract(network, 0.5, uncertainty=True)
    expected = predict(network, x, cut=0.5, samples=3, seed=5)
    torch.testing.assert_close(predict(small, x, samples=3, seed=5).probs, expected.probs)


def test_current_cut_is_the_default(x):
    network = nested()
    with network.at(0.5):
        inside = predict(network, x, seed=0)
    torch.testing.assert_close(inside.probs, predict(network, x, cut=0.5, seed=0).probs)
    assert not torch.allclose(inside.probs, predict(network, x, seed=0).probs)


def test_modes_noise_and_statistics_are_as_before(x):
    network = nested().train()
    network.module[3].eval()
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    first, second = (predict(network, x, seed=2).probs for _ in range(2))
    assert torch.equal(first, second)
    assert network.training
    assert not network.module[3].training
    assert all(part.mode == Mode() for part in network.modules() if isinstance(part, VariationalLayer))
    assert all(torch.equal(before[name], tensor) for name, tensor in network.state_dict().items())


def test_seed_leaves_torchs_state_alone_and_none_uses_it(x):
    network = nested()
    state = torch.get_rng_state()
    predict(network, x, seed=2)
    assert torch.equal(state, torch.get_rng_state())
    assert not torch.equal(predict(network, x).probs, predict(network, x).probs)


def test_network_can_be_trained_after_a_prediction(x):
    network = nested()
    with network.at(0.5):
        predict(network, x)
        network(x).sum().backward()
    assert all(p.grad is not None for p in network.module.parameters())


def test_batches_give_the_same_as_one(x):
    network = nested()
    whole = predict(network, x, samples=0)
    torch.testing.assert_close(predict(network, x, samples=0, batch_size=2).probs, whole.probs)
    assert predict(network, x, batch_size=2, keep_samples=True).samples.shape == (6, 5, 3)


class Scaled(nn.Module):
    """A network that is called with two tensors."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 2)

    def forward(self, x, scale):
        return self.inner(x) * scale


def test_several_arguments(x):
    network = Scaled()
    by_position = predict(network, (x, torch.tensor(2.0)), batch_size=2)
    by_name = predict(network, {"x": x, "scale": torch.tensor(2.0)})
    torch.testing.assert_close(by_position.probs, (network.inner(x) * 2).softmax(1).detach())
    torch.testing.assert_close(by_position.probs, by_name.probs)


def test_regression(x):
    network = nested(outputs=4)
    found = predict(network, x, samples=50, likelihood="heteroscedastic_gaussian", seed=0)
    assert found.mean.shape == found.std.shape == (5, 2)
    assert found.epistemic.min() > 0
    assert predict(network, x, likelihood=nl.prediction.Gaussian(std=0.5)).aleatoric.mean() == pytest.approx(0.25)


def test_segmentation_is_per_pixel():
    torch.manual_seed(0)
    unet = nl.models.UNet((4, 6), out_channels=1)
    network = nl.nest(unet, torch.randn(2, 1, 8, 8), sampling="each")
    found = predict(network, torch.randn(3, 1, 8, 8), cut=0.5, likelihood="bernoulli", keep_samples=True)
    assert found.probs.shape == (3, 2, 8, 8)
    assert found.entropy.shape == found.epistemic.shape == found.labels.shape == (3, 8, 8)
    assert found.samples.shape == (6, 3, 2, 8, 8)


class Attention(nn.Module):
    """A network whose code has sizes of its own, so that its graph runs."""

    def __init__(self):
        super().__init__()
        self.qkv, self.head = nn.Linear(6, 24), nn.Linear(8, 3)

    def forward(self, x):
        q, k, v = self.qkv(x).reshape(x.shape[0], 5, 3, 4, 2).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape[0], 5, 8)
        return self.head(y).mean(1)


def test_network_that_runs_as_a_graph():
    torch.manual_seed(0)
    x = torch.randn(4, 5, 6)
    network = nl.nest(Attention(), x, num_always=1, kinds=("head",))
    found = predict(network, x, cut=0.5, keep_samples=True)
    assert found.epistemic.min() > 0
    torch.testing.assert_close(predict(network, x, cut=0.5, samples=0).probs, nl.extract(network, 0.5)(x).softmax(1))


def test_half_precision_is_averaged_in_single(x):
    found = predict(Regressor(3).bfloat16(), x.bfloat16())
    assert found.probs.dtype == torch.float32


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"samples": -1}, nl.RangeError, "samples: got -1"),
        ({"samples": 2.0}, nl.DtypeError, "samples: got 2.0"),
        ({"samples": True}, nl.DtypeError, "samples"),
        ({"likelihood": "poisson"}, nl.ArgumentError, "likelihood: got 'poisson'"),
        ({"cut": 1.5}, nl.RangeError, "cut: got 1.5"),
        ({"batch_size": 0}, nl.RangeError, "batch_size: got 0"),
    ],
)
def test_what_makes_no_sense_is_refused(x, options, error, message):
    with pytest.raises(error, match=message):
        predict(nested(), x, **options)


def test_plain_network_has_no_cut(x):
    with pytest.raises(nl.ArgumentError, match=r"cut: got 0.5, but it must be None for a plain network"):
        predict(Regressor(3), x, cut=0.5)
    with pytest.raises(nl.DtypeError, match="model: got a function"):
        predict(lambda x: x, x)


def test_batch_with_nan_is_named(x):
    x[4] = math.nan
    with pytest.raises(nl.NonFiniteError, match="output of batch 2: got 3 of 3 entries NaN"):
        predict(nested(), x, batch_size=2)


def test_output_that_is_no_tensor_is_refused(x):
    class Two(nn.Module):
        def forward(self, x):
            return x, x

    with pytest.raises(nl.ArgumentError, match="output: got a tuple of"):
        predict(Two(), x)
    with pytest.raises(nl.ArgumentError, match="no tensor with a batch axis"):
        predict(Two(), 3, batch_size=2)


def counted(function, name):
    """How often an operation runs while a function does."""
    with torch.profiler.profile() as profile:
        function()
    return sum(row.count for row in profile.key_averages() if row.key == name)


class Matrices(TorchDispatchMode):
    """Counts the products with a matrix that run, beneath whatever looks up the others."""

    number = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.number += func is torch.ops.aten.addmm.default
        return func(*args, **(kwargs or {}))


def test_draws_of_a_small_batch_run_in_one_pass():
    network = nested(sampling="local").eval()
    few, many = torch.randn(3, 4), torch.randn(40, 4)
    assert counted(lambda: predict(network, few, samples=6), "aten::addmm") == 2  # the means of two layers
    assert counted(lambda: predict(network, few, samples=64), "aten::addmm") == 4  # 96 examples at a time
    assert counted(lambda: predict(network, many, samples=6), "aten::addmm") == 12


@pytest.mark.parametrize("size", [1, 3, 40])
def test_draws_in_one_pass_are_spread_as_those_one_by_one(size):
    """One layer, whose outputs are Gaussian: mean and variance of every one of them within five standard errors."""
    torch.manual_seed(0)
    network = nl.nest(nn.Sequential(nn.Linear(3, 4)), torch.randn(2, 3), sampling="local", where="all")
    layer = next(part for part in network.modules() if isinstance(part, VariationalLayer))
    layer.posterior.log_alpha.data.fill_(0.5)
    x, number = torch.randn(size, 3), 4_000
    mean, variance = layer.moments(x)
    found = predict(network, x, samples=number, keep_samples=True, likelihood="gaussian", seed=1)
    draws = found.samples if found.samples.ndim == 3 else found.samples.unsqueeze(1)
    assert draws.shape == (number, size, 4)
    assert ((draws.mean(0) - mean).abs() < 5 * (variance / number).sqrt()).all()
    assert ((draws.var(0) / variance - 1).abs() < 5 * math.sqrt(2 / number)).all()
    pairs = torch.corrcoef(draws[:, 0].T) - torch.eye(4)
    assert pairs.abs().max() < 5 / math.sqrt(number)


def test_layers_that_draw_nothing_run_once():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
    network = nl.nest(module, torch.randn(2, 4), exclude=("0", "2"), sampling="shared", where="all").eval()
    x = torch.randn(20, 4)
    torch.manual_seed(5)
    with torch.no_grad(), network.drawing():
        each = torch.stack([network(x) for _ in range(6)])
    torch.manual_seed(5)
    with Matrices() as ran:
        found = predict(network, x, samples=6, keep_samples=True)
    assert ran.number == 2 + 6  # of 3 * 6 that were asked for
    torch.testing.assert_close(found.samples, each.softmax(-1))


def test_fast_draws_one_weight_for_a_large_batch_and_leaves_the_network_as_it_was():
    network = nested(sampling="local").eval()
    x = torch.randn(20, 4)
    assert counted(lambda: predict(network, x, samples=6), "aten::square") == 12
    assert counted(lambda: predict(network, x, samples=6, by="fast_draws"), "aten::square") == 0
    assert {part.drawn_as for part in network.modules() if isinstance(part, VariationalLayer)} == {"local"}
    found = predict(network, x[:1].expand(20, 4), samples=6, by="fast_draws", keep_samples=True).samples
    assert (found[:, 0] - found[:, 7]).abs().max() < 1e-6


def test_what_is_known_of_weights_is_forgotten_when_they_change():
    network = nested(sampling="local").eval()
    layers = [part for part in network.modules() if isinstance(part, VariationalLayer)]
    x = torch.randn(3, 4)
    before = predict(network, x, samples=500, seed=0).epistemic.mean()
    with torch.no_grad():
        for layer in layers:
            layer.posterior.log_alpha.fill_(-15.0)
    assert predict(network, x, samples=500, seed=0).epistemic.mean() < 1e-3 * before
    with torch.no_grad():
        for layer in layers:
            layer.posterior.mean.zero_()
    assert predict(network, x, samples=5, seed=0).epistemic.abs().max() < 1e-6


def test_an_output_whose_first_axis_is_not_the_batch_is_drawn_one_by_one():
    class Turned(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x):
            return self.layer(x).T

    torch.manual_seed(0)
    network = nl.nest(Turned(), torch.randn(5, 4), sampling="local", where="all").eval()
    found = predict(network, torch.randn(5, 4), samples=6, keep_samples=True, likelihood="gaussian")
    assert found.samples.shape == (6, 3, 5)


@pytest.mark.parametrize("options", [{}, {"sampling": "shared"}, {"exclude": ("0",)}], ids=str)
@pytest.mark.parametrize("size", [3, 40])
@pytest.mark.parametrize("by", ["draws", "fast_draws", "moments"])
def test_in_inference_mode(options, size, by):
    network = nested(**options).eval()
    with torch.inference_mode():
        x = torch.randn(size, 4)
        for cut in (0.5, 1.0, 0.5):
            found = predict(network, x, cut=cut, by=by, seed=0)
            with network.at(cut), network.drawing():
                assert network(x).isfinite().all()
    torch.testing.assert_close(predict(network, x.clone(), cut=0.5, by=by, seed=0).probs, found.probs)
