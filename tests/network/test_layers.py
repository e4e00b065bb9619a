"""Variational layers against plain ones, and against the exact moments of a map that is linear in Gaussian weights."""

import math
from copy import deepcopy

import pytest
import torch
from torch import nn
from torch.autograd import gradcheck
from torch.func import functional_call, jacrev
from torch.nn import functional as F
from torch.nn.utils import prune

from nestling.distributions import AdditiveGaussian, MultiplicativeGaussian
from nestling.distributions.noise import normal_noise
from nestling.errors import ArgumentError
from nestling.running.layers import (
    VariationalConv1d,
    VariationalConv2d,
    VariationalConv3d,
    VariationalConvTranspose1d,
    VariationalConvTranspose2d,
    VariationalConvTranspose3d,
    VariationalLayer,
    VariationalLinear,
    make_plain,
    make_variational,
)

F64 = torch.float64
SAMPLINGS = ("local", "channel", "shared", "each")
EACH_SAMPLING = pytest.mark.parametrize("sampling", SAMPLINGS)

VARIATIONAL = {
    nn.Linear: VariationalLinear,
    nn.Conv1d: VariationalConv1d,
    nn.Conv2d: VariationalConv2d,
    nn.Conv3d: VariationalConv3d,
    nn.ConvTranspose1d: VariationalConvTranspose1d,
    nn.ConvTranspose2d: VariationalConvTranspose2d,
    nn.ConvTranspose3d: VariationalConvTranspose3d,
}

# class, arguments, options, shape of one example
LAYERS = {
    "linear": (nn.Linear, (4, 3), {}, (4,)),
    "linear_tokens": (nn.Linear, (3, 2), {}, (2, 3)),
    "linear_no_bias": (nn.Linear, (4, 3), {"bias": False}, (4,)),
    "conv1d": (nn.Conv1d, (2, 3, 3), {"stride": 2, "padding": 1}, (2, 6)),
    "conv1d_same": (nn.Conv1d, (2, 2, 3), {"padding": "same", "dilation": 2}, (2, 5)),
    "conv1d_valid": (nn.Conv1d, (2, 2, 2), {"padding": "valid", "bias": False}, (2, 4)),
    "conv1d_same_circular": (nn.Conv1d, (1, 2, 4), {"padding": "same", "padding_mode": "circular"}, (1, 5)),
    "conv2d": (nn.Conv2d, (2, 3, 3), {"padding": (1, 0), "stride": (1, 2)}, (2, 3, 5)),
    "conv2d_no_bias": (nn.Conv2d, (2, 2, (1, 2)), {"bias": False}, (2, 2, 3)),
    "conv2d_reflect": (nn.Conv2d, (1, 2, 3), {"padding": (1, 2), "padding_mode": "reflect"}, (1, 3, 3)),
    "conv2d_circular": (nn.Conv2d, (2, 1, 3), {"padding": 1, "padding_mode": "circular"}, (2, 3, 3)),
    "conv2d_replicate": (nn.Conv2d, (1, 2, 2), {"padding": 1, "padding_mode": "replicate", "stride": 2}, (1, 3, 3)),
    "conv2d_dilated": (nn.Conv2d, (1, 2, (3, 2)), {"dilation": (2, 1), "padding": (2, 0)}, (1, 3, 3)),
    "conv2d_groups": (nn.Conv2d, (4, 6, 2), {"groups": 2}, (4, 3, 2)),
    "conv2d_depthwise": (nn.Conv2d, (3, 3, 3), {"groups": 3, "padding": 1}, (3, 2, 3)),
    "conv2d_depthwise_wide": (nn.Conv2d, (2, 4, 2), {"groups": 2, "padding": 1, "padding_mode": "circular"}, (2, 2, 2)),
    "conv3d": (nn.Conv3d, (2, 2, (1, 2, 2)), {"stride": (1, 1, 2), "padding": (0, 1, 0)}, (2, 2, 1, 3)),
    "conv3d_replicate": (nn.Conv3d, (1, 2, 2), {"padding": 1, "padding_mode": "replicate"}, (1, 1, 2, 1)),
    "transpose1d": (nn.ConvTranspose1d, (2, 3, 3), {"stride": 2, "padding": 1, "output_padding": 1}, (2, 3)),
    "transpose1d_groups": (nn.ConvTranspose1d, (4, 2, 2), {"groups": 2, "bias": False, "dilation": 2}, (4, 2)),
    "transpose2d": (nn.ConvTranspose2d, (2, 2, 3), {"stride": (2, 1), "output_padding": (1, 0)}, (2, 2, 2)),
    "transpose2d_dilated": (nn.ConvTranspose2d, (1, 2, 2), {"dilation": 2, "padding": 1}, (1, 2, 3)),
    "transpose2d_depthwise": (nn.ConvTranspose2d, (3, 6, 2), {"groups": 3, "stride": 2}, (3, 2, 1)),
    "transpose3d": (nn.ConvTranspose3d, (2, 1, 2), {"stride": 2, "output_padding": (0, 1, 0)}, (2, 1, 1, 2)),
}
EACH_LAYER = pytest.mark.parametrize("name", LAYERS)


def build(name, dtype=F64):
    """A plain layer with values of its own."""
    torch.manual_seed(len(name))
    kind, args, options, _ = LAYERS[name]
    return kind(*args, **options, dtype=dtype)


def batch(name, size, dtype=F64):
    return torch.randn(size, *LAYERS[name][3], generator=torch.Generator().manual_seed(7), dtype=dtype)


def convert(plain, sampling="local"):
    """The variational form of a layer, with noise of another strength in each weight."""
    holder = nn.Sequential(plain)
    assert make_variational(holder, (), sampling) == ["0"]
    layer = holder[0]
    with torch.no_grad():
        layer.posterior.log_alpha.uniform_(-3.0, 0.5, generator=torch.Generator().manual_seed(3))
    return layer


def weight_variance(layer):
    """alpha theta^2, from the definition."""
    return torch.exp(layer.posterior.log_alpha.detach()) * layer.posterior.mean.detach() ** 2


def exact_moments(plain, layer, x):
    """Mean (n,) and covariance (n, n) of all outputs together, if one weight is drawn for all of them."""
    weight = plain.weight.detach()
    jacobian = jacrev(lambda w: functional_call(plain, {"weight": w}, (x,)).reshape(-1))(weight)
    jacobian = jacobian.reshape(-1, weight.numel()).detach()
    return plain(x).detach().reshape(-1), (jacobian * weight_variance(layer).reshape(-1)) @ jacobian.T


def assert_moments(draws, mean, covariance, joint):
    """Draws (count, n): mean and variance, and if ``joint`` every covariance, within 6 standard errors."""
    count = len(draws)
    variance = covariance.diagonal()
    assert ((draws.mean(0) - mean).abs() <= 6 * (variance / count).sqrt() + 1e-12).all()
    centred = draws - mean
    found = centred.T @ centred / count
    error = ((variance[:, None] * variance + covariance.square()) / count).sqrt()
    wrong = (found - covariance).abs() > 6 * error + 1e-12
    assert not (wrong if joint else wrong.diagonal()).any()


def tensors_of(layer):
    return {"posterior.mean": layer.posterior.mean, "posterior.log_alpha": layer.posterior.log_alpha} | (
        {} if layer.bias is None else {"bias": layer.bias}
    )


# Eval mode and back


@EACH_LAYER
@EACH_SAMPLING
def test_eval_mode_is_the_plain_layer(name, sampling):
    plain, x = build(name), batch(name, 3)
    layer = convert(deepcopy(plain), sampling).eval()
    assert type(layer) is VARIATIONAL[type(plain)]
    assert torch.equal(layer(x), plain(x))
    assert torch.equal(layer(x[0]), plain(x[0])), "without a batch axis"
    assert layer(x[:0]).shape == plain(x[:0]).shape


@EACH_LAYER
@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_to_plain_gives_the_layer_back(name, dtype):
    plain = build(name, dtype)
    plain.weight.requires_grad_(False)
    state, options = {k: v.clone() for k, v in plain.state_dict().items()}, plain_options(plain)
    back = convert(plain).to_plain()
    assert type(back) is type(plain)
    assert repr(back) == repr(plain)
    assert plain_options(back) == options
    assert back.state_dict().keys() == state.keys()
    assert all(torch.equal(back.state_dict()[key], value) for key, value in state.items())
    assert all(tensor.dtype == dtype for tensor in back.state_dict().values())
    assert not back.weight.requires_grad
    assert back.bias is plain.bias
    assert back.weight is plain.weight, "optimisers go on"


def plain_options(layer):
    hidden = ("_reversed_padding_repeated_twice",)
    return {k: v for k, v in vars(layer).items() if k in hidden or (not k.startswith("_") and k != "training")}


SIZES = {
    True: ("in_features", "out_features"),
    False: ("in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "groups"),
}


def test_a_layer_knows_the_sizes_that_code_asks_of_a_plain_one():
    for name in LAYERS:
        plain = build(name)
        layer = convert(deepcopy(plain))
        for size in SIZES[isinstance(plain, nn.Linear)]:
            assert getattr(layer, size) == getattr(plain, size)
        assert torch.equal(layer.weight, plain.weight)
        assert "sampling" in repr(layer)


def test_the_input_may_be_given_by_name():
    plain, x = build("conv2d"), batch("conv2d", 2)
    assert torch.equal(convert(deepcopy(plain)).eval()(input=x), plain(input=x))


@EACH_SAMPLING
@pytest.mark.parametrize("name", ["transpose1d", "transpose2d"])
def test_an_output_size_can_be_asked_of_a_transposed_convolution(name, sampling):
    plain, x = build(name), batch(name, 2)
    layer = convert(deepcopy(plain), sampling)
    for extra in (0, 1):
        asked = [plain.stride[d] * (x.shape[2 + d] - 1) + 3 - 2 * plain.padding[d] for d in range(x.ndim - 2)]
        asked[0] += extra
        assert torch.equal(layer.eval()(x, output_size=asked), plain(x, output_size=asked))
        assert torch.equal(layer.eval()(x, (2, 3, *asked)), plain(x, (2, 3, *asked)))
        assert list(layer.train()(x, output_size=asked).shape[2:]) == asked
    with pytest.raises(ValueError, match=r"an output size of|output_size"):
        layer(x, output_size=[1])


# Moments in train mode


@EACH_LAYER
def test_local_draws_have_the_exact_mean_and_variance_of_every_output(name):
    plain, x = build(name), batch(name, 1)
    layer = convert(deepcopy(plain))
    mean, covariance = exact_moments(plain, layer, x)
    torch.manual_seed(11)
    with torch.no_grad():
        draws = layer(x.expand(6_000, *x.shape[1:])).reshape(6_000, -1)
    assert_moments(draws, mean, covariance, joint=False)
    assert_moments(draws, mean, covariance.diagonal().diag(), joint=True)  # independent, as no weight would make them


@EACH_LAYER
def test_one_number_a_channel_has_the_mean_of_the_variances_at_its_positions(name):
    plain, x = build(name), batch(name, 1)
    layer = convert(deepcopy(plain), "channel")
    mean, covariance = exact_moments(plain, layer, x)
    torch.manual_seed(11)
    with torch.no_grad():
        outputs = layer(x.expand(6_000, *x.shape[1:]))
    of_channel = averaged(covariance.diagonal().reshape(outputs.shape[1:]), name)
    assert_moments(outputs.reshape(6_000, -1), mean, of_channel.reshape(-1).diag(), joint=False)
    noise = outputs - mean.reshape(outputs.shape[1:])
    if not name.startswith("linear"):
        noise = noise.flatten(2)
        assert torch.allclose(noise, noise[..., :1].expand_as(noise), atol=1e-12), "one number for all positions"
    assert layer(x[:0]).shape == outputs[:0].shape, "an empty batch"


def averaged(variances, name):
    """Variances of one example's outputs averaged over the positions of a channel; a linear layer has none."""
    if name.startswith("linear"):
        return variances
    return variances.mean(tuple(range(1, variances.ndim)), keepdim=True).expand(variances.shape)


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("name", ["linear", "conv2d"])
def test_gradients_of_each_example(name, sampling):
    """As torch.func has them, against a loop; with noise of ones, which is the same for all."""
    layer, x = convert(build(name), sampling), batch(name, 3)
    parameters = {key: own.detach() for key, own in layer.named_parameters()}

    def loss(given, example):
        return functional_call(layer, given, (example.unsqueeze(0),)).square().sum()

    with pytest.MonkeyPatch.context() as patch:
        for place in ("nestling.running.layers.layer", "nestling.distributions.weights.posterior"):
            patch.setattr(f"{place}.normal_noise", lambda like, generator=None: torch.ones_like(like))
        found = torch.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, x)
        each = [torch.func.grad(loss)(parameters, example) for example in x]
    for key, own in found.items():
        assert torch.allclose(own, torch.stack([one[key] for one in each]), rtol=1e-10)


HARD_WINDOWS = {
    "strides": {"stride": 2, "padding": 1, "groups": 2},
    "dilation": {"kernel_size": 2, "dilation": 2, "stride": 3},
    "same": {"padding": "same", "dilation": 2},
    "reflect": {"padding": 1, "padding_mode": "reflect"},
    "circular": {"padding": 2, "padding_mode": "circular", "stride": 2, "groups": 3},
    "replicate": {"kernel_size": 5, "padding": 2, "padding_mode": "replicate", "stride": 3},
}


@pytest.mark.parametrize("options", HARD_WINDOWS.values(), ids=HARD_WINDOWS)
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_the_mean_variance_is_that_of_the_convolution(rank, options):
    """Of windows that reach over edges, leave inputs out or read them in steps."""
    kind = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[rank - 1]
    layer = convert(kind(6, 6, **({"kernel_size": 3} | options), dtype=F64), "channel")
    squares, variance = torch.rand(4, 6, *(9, 7, 8)[:rank], dtype=F64), torch.rand_like(layer.posterior.mean)
    places = tuple(range(-rank, 0))
    expected = layer.apply_weight(squares, variance, None).mean(places, keepdim=True)
    assert torch.allclose(layer.mean_variance(squares, variance), expected, rtol=0, atol=1e-12)
    assert torch.allclose(layer.mean_variance(squares[0], variance), expected[0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("options", HARD_WINDOWS.values(), ids=HARD_WINDOWS)
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_the_even_variance_is_exact_for_inputs_that_are_even(rank, options):
    kind = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[rank - 1]
    layer = convert(kind(6, 6, **({"kernel_size": 3} | options), dtype=F64))
    each, places = torch.rand(4, 6, *[1] * rank, dtype=F64), tuple(range(-rank, 0))
    with torch.no_grad():
        for sizes in ((9, 7, 8)[:rank], (5, 6, 7)[:rank]):
            even = each.expand(4, 6, *sizes)
            expected = layer.apply_weight(even, layer.posterior.variance(), None).mean(places, keepdim=True)
            assert torch.allclose(layer.even_variance(even), expected, rtol=0, atol=1e-12)
            assert torch.allclose(layer.even_variance(even[0]), expected[0], rtol=0, atol=1e-12)
            uneven = even * (1 + 0.5 * torch.rand_like(even))
            uneven *= even.mean(places, keepdim=True) / uneven.mean(places, keepdim=True)
            assert torch.allclose(layer.even_variance(uneven), expected, rtol=0, atol=1e-12)
        layer.posterior.scale.add_(1.0)  # what was kept is of the scale before
        assert not torch.allclose(layer.even_variance(even), expected)


@EACH_LAYER
def test_shared_draws_have_the_exact_joint_moments_over_the_whole_batch(name):
    plain, x = build(name), batch(name, 2)
    layer = convert(deepcopy(plain), "shared")
    mean, covariance = exact_moments(plain, layer, x)
    torch.manual_seed(12)
    with torch.no_grad():
        draws = torch.stack([layer(x).reshape(-1) for _ in range(800)])
    assert_moments(draws, mean, covariance, joint=True)


@EACH_LAYER
def test_each_draws_have_the_exact_joint_moments_over_one_example(name):
    plain, x = build(name), batch(name, 1)
    layer = convert(deepcopy(plain), "each")
    mean, covariance = exact_moments(plain, layer, x)
    torch.manual_seed(13)
    with torch.no_grad():
        draws = layer(x.expand(5_000, *x.shape[1:])).reshape(5_000, -1)
    assert_moments(draws, mean, covariance, joint=True)
    neighbours = torch.cat([draws[:-1], draws[1:]], dim=1) - mean.repeat(2)
    between = neighbours[:, : len(mean)].T @ neighbours[:, len(mean) :] / len(neighbours)
    scale = covariance.diagonal().sqrt()
    assert (between.abs() <= 6 * scale[:, None] * scale / math.sqrt(len(neighbours))).all(), "examples are independent"


@EACH_LAYER
def test_each_is_a_loop_over_the_examples_with_the_same_weights(name):
    plain, x = build(name), batch(name, 3)
    layer = convert(deepcopy(plain), "each")
    torch.manual_seed(14)
    found = layer(x)
    torch.manual_seed(14)
    weights = layer.posterior.sample((3,))
    one_by_one = [functional_call(plain, {"weight": w}, (example,)) for w, example in zip(weights, x, strict=True)]
    assert torch.allclose(found, torch.stack(one_by_one), rtol=0, atol=1e-12)


@EACH_LAYER
@pytest.mark.parametrize("sampling", ["shared", "each"])
def test_one_weight_is_drawn_for_an_input_without_a_batch_axis(name, sampling):
    plain, x = build(name), batch(name, 1)[0]
    if name == "linear_tokens":
        x = x[0]
    layer = convert(deepcopy(plain), sampling)
    torch.manual_seed(15)
    found = layer(x)
    torch.manual_seed(15)
    assert torch.equal(found, functional_call(plain, {"weight": layer.posterior.sample()}, (x,)))
    assert layer(x.unsqueeze(0)[:0]).numel() == 0, "an empty batch"


@pytest.mark.parametrize(("sampling", "expected"), [("shared", 1.0), ("each", 1.0), ("channel", 1.0), ("local", 0.0)])
def test_pixels_that_share_one_weight_are_perfectly_correlated_in_a_joint_sample(sampling, expected):
    """A peer's flipout draws a sign per pixel and finds 0 here; so does the local form, which says so."""
    layer = convert(nn.Conv2d(1, 1, 1, bias=False, dtype=F64), sampling)
    torch.manual_seed(16)
    with torch.no_grad():
        draws = torch.cat([layer(torch.ones(1, 1, 2, 2, dtype=F64)).reshape(1, 4) for _ in range(2_000)])
    correlation = torch.corrcoef(draws.T)
    off = correlation[~torch.eye(4, dtype=torch.bool)]
    assert (off - expected).abs().max() < (1e-12 if expected else 0.12)


def test_shared_noise_is_the_same_for_every_example_and_each_is_not():
    x = batch("conv2d", 1).expand(3, -1, -1, -1)
    torch.manual_seed(17)
    shared, each = (convert(build("conv2d"), sampling)(x) for sampling in ("shared", "each"))
    assert torch.equal(shared[0], shared[1])
    assert torch.equal(shared[0], shared[2])
    assert not torch.isclose(each[0], each[1]).any()


def test_local_noise_keeps_its_proportion_at_any_scale():
    """A constant under the root would drown activations of a millionth in noise of its own."""
    layer = convert(build("linear_no_bias"))
    x = batch("linear_no_bias", 1)
    for scale in (1e-6, 1.0, 1e6):
        torch.manual_seed(18)
        whole = layer(x * scale)
        torch.manual_seed(18)
        assert torch.allclose(whole, layer(x) * scale, rtol=1e-12, atol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, F64])
def test_gradients_are_finite_where_the_variance_vanishes(dtype):
    """Units that are all dead, in half precision too, where 1e-8 is zero."""
    layer = convert(nn.Linear(3, 2, dtype=dtype))
    x = torch.zeros(2, 3, dtype=dtype, requires_grad=True)
    layer(x).sum().backward()
    for tensor in (x, *tensors_of(layer).values()):
        assert torch.isfinite(tensor.grad).all()
    with torch.no_grad():
        layer.posterior.mean.zero_()
    layer.zero_grad()
    layer(torch.ones(2, 3, dtype=dtype)).sum().backward()
    assert all(torch.isfinite(tensor.grad).all() for tensor in tensors_of(layer).values())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, F64])
def test_small_noise_is_there_in_any_precision(dtype):
    """A variance of 5e-5, less than the square of bfloat16's precision."""
    torch.manual_seed(19)
    layer = convert(nn.Linear(1, 20_000, bias=False, dtype=dtype))
    with torch.no_grad():
        layer.posterior.mean.fill_(0.1)
        layer.posterior.log_alpha.fill_(math.log(5e-5 / 0.1**2))
    drawn = layer(torch.ones(1, 1, dtype=dtype)).detach().double() - 0.1
    assert float(drawn.std()) == pytest.approx(5e-5**0.5, rel=0.05)


def test_any_posterior_will_do():
    mean, log_sigma2 = nn.Parameter(torch.randn(3, 4, dtype=F64)), nn.Parameter(torch.full((3, 4), -1.0, dtype=F64))
    x = torch.randn(1, 4, dtype=F64)
    for sampling in SAMPLINGS:
        layer = VariationalLinear(AdditiveGaussian(mean, log_sigma2), None, sampling)
        torch.manual_seed(19)
        with torch.no_grad():
            draws = torch.cat([layer(x) for _ in range(2_000)])
        expected = math.exp(-1.0) * x.square().sum()
        assert ((draws.var(0) / expected - 1).abs() < 6 * math.sqrt(2 / 2_000)).all()
        assert torch.equal(layer.eval()(x), F.linear(x, mean))


# Gradients


@EACH_LAYER
@EACH_SAMPLING
def test_gradients_with_the_noise_held_fixed(name, sampling):
    layer, x = convert(build(name), sampling), batch(name, 2).requires_grad_()
    parameters = tensors_of(layer)

    def run(x, *tensors):
        torch.manual_seed(20)
        return functional_call(layer, dict(zip(parameters, tensors, strict=True)), (x,))

    inputs = (x, *(tensor.detach().clone().requires_grad_() for tensor in parameters.values()))
    assert gradcheck(run, inputs, fast_mode=True)
    torch.manual_seed(21)
    layer(x).square().sum().backward()
    assert all(bool((tensor.grad != 0).any()) for tensor in parameters.values())


@pytest.mark.parametrize("family", [AdditiveGaussian, MultiplicativeGaussian])
@pytest.mark.parametrize("shape", [(3, 4), (3, 1), ()])
@pytest.mark.parametrize("frozen", ["nothing", "mean", "scale", "input"])
def test_gradients_of_scales_that_weights_share_and_of_what_is_frozen(family, shape, frozen):
    made = torch.Generator().manual_seed(22)
    values = {"input": (2, 4), "mean": (3, 4), "scale": shape}
    tensors = {key: torch.randn(size, generator=made, dtype=F64) for key, size in values.items()}
    free = [key for key in tensors if key != frozen]

    def run(*given):
        x, mean, scale = (tensors | dict(zip(free, given, strict=True))).values()
        torch.manual_seed(23)
        layer = VariationalLinear(family(mean, scale), None)
        return layer(x)

    assert gradcheck(run, tuple(tensors[key].requires_grad_() for key in free))


@pytest.mark.parametrize("name", ["transpose1d", "transpose2d"])
def test_gradients_where_an_output_size_is_asked_for(name):
    layer, x = convert(build(name)), batch(name, 2).requires_grad_()
    smallest = layer.eval()(x, output_size=None).shape[2:]
    asked = [size - edge for size, edge in zip(smallest, layer.output_padding, strict=True)]

    def run(x):
        torch.manual_seed(24)
        return layer.train()(x, output_size=asked)

    assert gradcheck(run, (x,), fast_mode=True)


@pytest.mark.parametrize("name", ["linear", "conv2d", "transpose2d"])
def test_gradients_of_mixed_precision_are_those_of_torch(name):
    """Against the variance written out: autograd casts there, the layer's own gradients do so by themselves."""
    layer, x = convert(build(name, torch.float32)), batch(name, 3, torch.float32).requires_grad_()
    mean, log_alpha = layer.posterior.mean, layer.posterior.log_alpha

    def gradients(outputs):
        found = torch.autograd.grad(outputs.float().square().sum(), (x, mean, log_alpha))
        assert all(own.dtype == torch.float32 for own in found)
        return found

    with torch.autocast("cpu", torch.bfloat16):
        torch.manual_seed(25)
        ours = layer(x)
        torch.manual_seed(25)
        exact = layer.apply_weight(x, mean, layer.bias)
        variance = layer.apply_weight(x.square(), log_alpha.exp() * mean.square(), None)
        written_out = exact + normal_noise(exact) * variance.sqrt()
    assert ours.dtype == written_out.dtype == torch.bfloat16
    for own, other in zip(gradients(ours), gradients(written_out), strict=True):
        assert (own - other).norm() < 0.02 * other.norm()


# Modes


@EACH_SAMPLING
def test_noisy_overrides_the_mode(sampling):
    plain, x = build("conv2d"), batch("conv2d", 2)
    layer = convert(deepcopy(plain), sampling)
    exact = plain(x)
    for training in (True, False):
        layer.train(training)
        for noisy, expected in ((None, training), (True, True), (False, False)):
            layer.noisy = noisy
            assert layer.is_drawing is expected
            assert torch.equal(layer(x), exact) is not expected
            assert torch.equal(layer.draw(), plain.weight) is not expected


def test_an_unknown_sampling_is_refused():
    with pytest.raises(
        ArgumentError, match="sampling: got 'flipout', but it must be one of local, channel, shared, each"
    ):
        make_variational(nn.Sequential(nn.Linear(2, 2)), (), "flipout")


def test_eval_mode_draws_nothing():
    layer = convert(build("linear")).eval()
    before = torch.get_rng_state()
    layer(batch("linear", 2))
    assert torch.equal(torch.get_rng_state(), before)


# Swapping the layers of a network


class Net(nn.Module):
    """Convolution, norm, head; and a part that is left out of the default path."""

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.features(x).mean((2, 3)))


def test_conversion_keeps_values_dtype_modes_and_what_is_frozen():
    net = Net().double()
    net.features.eval()
    net.head.requires_grad_(False)
    state = {key: value.clone() for key, value in net.state_dict().items()}
    weights = net.features[0].weight, net.head.weight
    assert make_variational(net, (), "each") == ["features.0", "head"]
    conv, head = net.features[0], net.head
    assert (conv.posterior.mean, head.posterior.mean) == weights, "the very same parameters"
    assert torch.equal(conv.posterior.mean, state["features.0.weight"])
    assert torch.equal(head.bias, state["head.bias"])
    assert (conv.sampling, head.sampling) == ("each", "each")
    assert {tensor.dtype for tensor in net.parameters()} == {F64}
    assert not any(part.training for part in conv.modules())
    assert all(part.training for part in head.modules())
    assert all(tensor.requires_grad for tensor in conv.parameters())
    assert not any(tensor.requires_grad for tensor in head.parameters()), "a frozen weight has frozen noise"
    plain = make_plain(net)
    assert plain is net
    assert plain.state_dict().keys() == state.keys()
    assert all(torch.equal(plain.state_dict()[key], value) for key, value in state.items())
    assert not plain.features[0].training
    assert plain.head.training
    assert not plain.head.weight.requires_grad
    assert plain.features[0].weight.requires_grad


@pytest.mark.parametrize(
    ("exclude", "left"),
    [
        ("head", ["features.0"]),
        ("features", ["head"]),
        ("features.0.weight", ["head"]),
        ("head.bias", ["features.0", "head"]),
    ],
)
def test_excluded_modules_and_tensors_stay_plain(exclude, left):
    assert make_variational(Net(), (exclude,), "local") == left


def test_a_name_that_only_begins_like_an_excluded_one_is_not_excluded():
    net = nn.ModuleDict({"conv1": nn.Linear(2, 2), "conv10": nn.Linear(2, 2)})
    assert make_variational(net, ("conv1",), "local") == ["conv10"]


def test_a_module_used_twice_stays_one():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(3, 3)
            self.again = self.first
            self.block = nn.Sequential(self.first, nn.Tanh(), self.first)

        def forward(self, x):
            return self.again(self.block(self.first(x)))

    net, x = Twice().double(), torch.randn(2, 3, dtype=F64)
    expected = deepcopy(net)(x)
    assert make_variational(net, (), "local") == ["first"]
    layers = net.first, net.again, net.block[0], net.block[2]
    assert all(layer is net.first for layer in layers)
    assert isinstance(net.first, VariationalLinear)
    assert len(list(net.parameters())) == 3
    assert torch.equal(net.eval()(x), expected)
    make_plain(net)
    assert type(net.first) is nn.Linear
    assert all(layer is net.first for layer in (net.again, net.block[0], net.block[2]))


def test_a_module_is_excluded_by_any_of_its_names():
    net = nn.ModuleDict({"first": nn.Linear(2, 2), "other": nn.Linear(2, 2)})
    net["again"] = net["first"]
    assert make_variational(net, ("again",), "local") == ["other"]


def test_tied_weights_are_left_plain_and_tied():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.mix, self.head = nn.Embedding(5, 4), nn.Linear(4, 4), nn.Linear(4, 5)
            self.head.weight = self.embed.weight
            self.mix.bias = nn.Parameter(torch.zeros(4))
            self.other = nn.Linear(4, 4)
            self.other.bias = self.mix.bias

    net = Tied()
    assert make_variational(net, (), "local") == ["mix", "other"]
    assert type(net.head) is nn.Linear
    assert net.head.weight is net.embed.weight
    assert net.mix.bias is net.other.bias, "a tied bias stays tied, since it is not drawn"


def test_layers_that_compute_their_weight_or_hold_more_are_left_plain():
    pruned = prune.l1_unstructured(nn.Linear(3, 3), "weight", 0.5)
    normed = nn.utils.parametrizations.weight_norm(nn.Linear(3, 3))
    patched = nn.Linear(3, 3)
    patched.forward = lambda x: x * 2
    marked = nn.Linear(3, 3)
    marked.register_buffer("scale", torch.ones(3))

    class Own(nn.Linear):
        def forward(self, x):
            return super().forward(x) + 1

    net = nn.Sequential(pruned, normed, patched, marked, Own(3, 3), nn.Linear(3, 2))
    x = torch.randn(2, 3)
    expected = net(x)
    assert make_variational(net, (), "local") == ["5"]
    assert torch.equal(net.eval()(x), expected)


def test_hooks_go_along():
    net, x, seen = nn.Sequential(nn.Linear(3, 2, dtype=F64)), torch.randn(2, 3, dtype=F64), []
    net[0].register_forward_hook(lambda module, args, output: output * 2)
    net[0].register_forward_pre_hook(lambda module, args, kwargs: seen.append(type(module)), with_kwargs=True)
    expected = net(x)
    make_variational(net, (), "local")
    assert torch.equal(net.eval()(x), expected)
    make_plain(net)
    assert torch.equal(net(x), expected)
    assert seen == [nn.Linear, VariationalLinear, nn.Linear]


def test_a_variational_layer_by_itself_can_be_made_plain():
    layer = convert(build("conv2d")).eval()
    plain = make_plain(layer)
    assert type(plain) is nn.Conv2d
    assert not plain.training


def test_state_round_trip_and_conversion_of_the_dtype():
    net, other = Net(), Net()
    for one in (net, other):
        make_variational(one, (), "local")
    other.load_state_dict(net.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), other.parameters(), strict=True))
    names = list(net.state_dict())
    assert len(names) == len({tensor.data_ptr() for tensor in net.state_dict().values()}), "nothing is held twice"
    net.double()
    x = torch.randn(2, 3, 5, 5, dtype=F64)
    assert net(x).dtype == F64
    assert torch.equal(net.eval()(x), make_plain(deepcopy(net))(x))


# torch's transforms


@pytest.mark.parametrize("training", [False, True])
@EACH_SAMPLING
def test_torch_export(sampling, training):
    net, x = Net().double(), torch.randn(2, 3, 5, 5, dtype=F64)
    make_variational(net, (), sampling)
    net.train(training)
    net.features[1].eval()
    program = torch.export.export(net, (x,)).module()
    torch.manual_seed(22)
    expected = net(x)
    torch.manual_seed(22)
    assert torch.allclose(program(x), expected, rtol=0, atol=1e-12)
    assert torch.equal(program(x), program(x)) is not training, "the noise is drawn, not baked in"


@pytest.mark.parametrize("name", ["linear", "conv2d_reflect", "transpose2d"])
def test_vmap_over_parameters_in_eval_mode(name):
    """An ensemble's members in one call."""
    layer, x = convert(build(name)).eval(), batch(name, 2)
    means = torch.stack([layer.posterior.mean.detach() * scale for scale in (1.0, 0.5, 2.0)])
    found = torch.vmap(lambda mean: functional_call(layer, {"posterior.mean": mean}, (x,)))(means)
    for member, mean in zip(found, means, strict=True):
        assert torch.allclose(member, functional_call(layer, {"posterior.mean": mean}, (x,)), rtol=0, atol=1e-12)


@EACH_SAMPLING
def test_vmap_over_samples(sampling):
    """Many draws in one call, which fails in two peers."""
    layer, x = convert(build("conv2d"), sampling), batch("conv2d", 2)
    mean, covariance = exact_moments(build("conv2d"), layer, x)
    torch.manual_seed(23)
    draws = torch.vmap(lambda _: layer(x), randomness="different")(torch.zeros(1_000)).detach().reshape(1_000, -1)
    if sampling == "channel":
        variances = covariance.diagonal().reshape(layer(x).shape)
        covariance = torch.stack([averaged(own, "conv2d") for own in variances]).reshape(-1).diag()
    assert_moments(draws, mean, covariance, joint=sampling == "shared")


@pytest.mark.parametrize("family", [AdditiveGaussian, MultiplicativeGaussian])
def test_slopes_of_variances_along_an_axis_that_is_mapped(family):
    """Of a gradient that is the same for all, against one example after the other."""
    mean, x = torch.randn(3, 5, dtype=F64), torch.randn(4, 5, dtype=F64)
    layer = VariationalLinear(family(nn.Parameter(mean), nn.Parameter(torch.full_like(mean, -1.0))), None)

    def slope(x):
        return torch.func.vjp(lambda own: layer.moments(own)[1], x)[1](torch.ones(3, dtype=F64))[0]

    expected = [2 * x * layer.posterior.variance().detach().sum(0) for x in x]
    torch.testing.assert_close(torch.func.vmap(slope)(x), torch.stack(expected))


def test_variances_with_log_sigma2_have_second_slopes():
    scale = torch.tensor([0.3, -1.0], dtype=F64)
    slope = torch.func.grad(lambda own: AdditiveGaussian(torch.ones(2, dtype=F64), own).variance().sum())
    found = jacrev(slope)(scale)
    torch.testing.assert_close(found, scale.exp().diag())


@pytest.mark.parametrize("sizes", [(0, 3), (3, 0)])
def test_a_linear_layer_without_inputs_or_outputs(sizes):
    mean = torch.zeros(sizes[1], sizes[0])
    layer = VariationalLinear(MultiplicativeGaussian(nn.Parameter(mean), nn.Parameter(mean - 3)), None)
    layer(torch.zeros(2, sizes[0])).sum().backward()
    assert layer.posterior.mean.grad.shape == (sizes[1], sizes[0])


def test_the_classes_are_final_and_the_parent_is_abstract():
    posterior = MultiplicativeGaussian(torch.ones(2, 2), torch.zeros(2, 2))
    with pytest.raises(TypeError, match="abstract"):
        VariationalLayer(posterior, None)
