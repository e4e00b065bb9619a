"""Second derivatives: gradient penalties and Hessians through everything whose gradients are written by hand."""

import math

import pytest
import torch
from test_layers import EACH_LAYER, EACH_SAMPLING, SAMPLINGS, batch, build, convert, tensors_of
from torch import nn
from torch.autograd import gradgradcheck
from torch.func import functional_call

import nestling as nl
from nestling.distributions import AdditiveGaussian, MultiplicativeGaussian
from nestling.distributions.divergences import hierarchical_kl, log_uniform_kl
from nestling.distributions.noise import normal_noise
from nestling.distributions.special import sech_integral
from nestling.distributions.totals import total
from nestling.running.layers import VariationalLinear, carrying_moments
from nestling.running.quantiser import quantise

F64 = torch.float64
FAMILIES = (AdditiveGaussian, MultiplicativeGaussian)


def seeded_run(layer, parameters):
    """The layer as a function of its input and parameters, with the same noise each time."""

    def run(x, *tensors):
        torch.manual_seed(20)
        return functional_call(layer, dict(zip(parameters, tensors, strict=True)), (x,))

    return run


@EACH_LAYER
@EACH_SAMPLING
def test_every_layer_has_second_derivatives(name, sampling):
    layer, x = convert(build(name), sampling), batch(name, 2).requires_grad_()
    parameters = tensors_of(layer)
    inputs = (x, *(tensor.detach().clone().requires_grad_() for tensor in parameters.values()))
    assert gradgradcheck(seeded_run(layer, parameters), inputs, fast_mode=True)


def penalty(outputs, x):
    """A gradient penalty: the gradient that arrives at the outputs is a constant."""
    (slope,) = torch.autograd.grad(outputs.sum(), x, create_graph=True)
    return slope.square().sum()


@pytest.mark.parametrize("family", FAMILIES)
@EACH_SAMPLING
def test_a_gradient_penalty_is_that_of_the_formulas(family, sampling):
    made = torch.Generator().manual_seed(1)
    mean, scale, x = (torch.randn(3, 4, generator=made, dtype=F64).requires_grad_() for _ in range(3))
    variance = scale.exp() * mean.square() if family is MultiplicativeGaussian else scale.exp().expand_as(mean)
    layer = VariationalLinear(family(mean, scale), None, sampling)
    torch.manual_seed(2)
    found = torch.autograd.grad(penalty(layer(x), x), (x, mean, scale), materialize_grads=True)
    torch.manual_seed(2)
    if sampling in ("local", "channel"):
        exact = x @ mean.T
        outputs = exact + normal_noise(exact) * (x.square() @ variance.T).sqrt()
    else:
        noise = normal_noise(mean.expand(*([len(x)] if sampling == "each" else []), *mean.shape))
        factor = (scale / 2).exp() * (mean if family is MultiplicativeGaussian else 1)
        weights = (mean + factor * noise).expand(len(x), *mean.shape)
        outputs = torch.einsum("bi,boi->bo", x, weights)
    expected = torch.autograd.grad(penalty(outputs, x), (x, mean, scale), materialize_grads=True)
    torch.testing.assert_close(found, expected)


def test_second_derivatives_of_mixed_precision_are_those_of_torch():
    layer, x = convert(build("conv2d", torch.float32)), batch("conv2d", 3, torch.float32).requires_grad_()
    mean, log_alpha = layer.posterior.mean, layer.posterior.log_alpha

    def written_out(x):
        exact = layer.apply_weight(x, mean, layer.bias)
        variance = layer.apply_weight(x.square(), log_alpha.exp() * mean.square(), None)
        return exact + normal_noise(exact) * variance.sqrt()

    def slopes(run):
        torch.manual_seed(3)
        with torch.autocast("cpu", torch.bfloat16):
            outputs = run(x)
        return torch.autograd.grad(penalty(outputs, x), (mean, log_alpha))

    for own, other in zip(slopes(layer), slopes(written_out), strict=True):
        assert own.dtype == torch.float32
        assert (own - other).norm() < 0.02 * other.norm()


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # torch's own, in forward mode
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_hessians_by_each_function_of_torch_agree(sampling):
    layer, x = convert(build("linear"), sampling), batch("linear", 3)
    parameters = {"posterior.mean": layer.posterior.mean.detach()}
    run = seeded_run(layer, parameters)

    def loss(mean):
        return run(x, mean).tanh().square().sum()

    (mean,) = parameters.values()
    size = mean.numel()
    found = torch.autograd.functional.hessian(loss, mean).reshape(size, size)
    vectorised = torch.autograd.functional.hessian(loss, mean, vectorize=True).reshape(size, size)
    step = 1e-5 * torch.eye(size, dtype=F64).view(size, *mean.shape)
    numeric = torch.stack([(slope_of(loss, mean + d) - slope_of(loss, mean - d)).flatten() for d in step]) / 2e-5
    torch.testing.assert_close(found, numeric, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(vectorised, found)
    forward_over_reverse = torch.func.jacfwd(torch.func.grad(loss), randomness="same")(mean).reshape(size, size)
    torch.testing.assert_close(forward_over_reverse, found)


def slope_of(loss, at):
    at = at.clone().requires_grad_()
    return torch.autograd.grad(loss(at), at)[0]


# Whole networks


def network():
    torch.manual_seed(4)
    layers = (nn.Conv2d(2, 8, 3, padding="same"), nn.Tanh(), nn.Conv2d(8, 8, 3, stride=2), nn.Tanh(), nn.Flatten())
    return nn.Sequential(*layers, nn.Linear(32, 3)).double()


@pytest.mark.parametrize("cut", [1.0, 0.5])
@pytest.mark.parametrize("weights", ["gaussian", "ivon"])
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_a_user_trains_with_a_gradient_penalty_at_any_cut(sampling, weights, cut):
    """Against differences of the penalty along a direction of all parameters."""
    x = batch("linear", 2).new_zeros(2, 2, 6, 6).normal_(generator=torch.Generator().manual_seed(5)).requires_grad_()
    nested = nl.nest(network(), x.detach(), weights=weights, sampling=sampling).train()
    parameters = [own for own in nested.module.parameters() if own.requires_grad]
    direction = [torch.randn_like(own) for own in parameters]

    def penalty_at(distance):
        with torch.no_grad():
            for own, step in zip(parameters, direction, strict=True):
                own.add_(step, alpha=distance)
        torch.manual_seed(6)
        with nested.at(cut):
            return penalty(nested(x), x)

    gradients = torch.autograd.grad(penalty_at(0.0), parameters, allow_unused=True)
    slope = sum(float((own * step).sum()) for own, step in zip(gradients, direction, strict=True) if own is not None)
    after, before = (float(penalty_at(distance).detach()) for distance in (1e-6, -2e-6))
    assert slope == pytest.approx((after - before) / 2e-6, rel=1e-6)


# What else has gradients written by hand


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("shape", [(3, 4), (3, 1), ()])
def test_posteriors(family, shape):
    made = torch.Generator().manual_seed(7)
    inputs = [torch.randn(size, generator=made, dtype=F64).requires_grad_() for size in ((3, 4), shape)]
    sampled = torch.Generator()
    assert gradgradcheck(lambda *own: family(*own).variance(), inputs)
    assert gradgradcheck(lambda *own: family(*own).sample((2,), sampled.manual_seed(8)), inputs)
    assert gradgradcheck(lambda *own: family(*own).total(log_uniform_kl), inputs, atol=1e-4)


def test_a_hessian_of_a_divergence():
    log_alpha = torch.tensor([-5.0, -1.0, 0.5, 3.0], dtype=F64)
    found = torch.autograd.functional.hessian(lambda own: total(hierarchical_kl, own, (-4.0, 4.0)), log_alpha)
    expected = torch.autograd.functional.hessian(lambda own: hierarchical_kl(own).sum(), log_alpha)
    expected[0, 0] = 0.0  # outside the bounds
    torch.testing.assert_close(found, expected)
    with pytest.raises(AssertionError):
        torch.testing.assert_close(expected, torch.zeros_like(expected))


def test_a_third_derivative_of_the_log_uniform_divergence():
    t = torch.linspace(-3.5, 9.5, 14, dtype=F64, requires_grad=True)
    slope = torch.autograd.grad(sech_integral(t).sum(), t, create_graph=True)[0]
    (second,) = torch.autograd.grad(slope.sum(), t, create_graph=True)
    (third,) = torch.autograd.grad(second.sum(), t)
    step = 1e-4

    def second_at(at):
        slope = torch.autograd.grad(sech_integral(at).sum(), at, create_graph=True)[0]
        return torch.autograd.grad(slope.sum(), at)[0]

    numeric = (second_at(t + step) - second_at(t - step)) / (2 * step)
    torch.testing.assert_close(third, numeric, rtol=1e-3, atol=1e-4)


def test_quantised_weights_have_those_of_their_straight_lines():
    """S(w) w has the slope S + w, and its slope is two, where S counts as the straight line of the same slope."""
    weight = torch.tensor([0.3, -0.7, 1.1], dtype=F64, requires_grad=True)
    log_tau = torch.tensor(math.log(2.0), dtype=F64)
    (slope,) = torch.autograd.grad((quantise(weight, log_tau) * weight).sum(), weight, create_graph=True)
    torch.testing.assert_close(slope, quantise(weight, log_tau) + weight)
    (second,) = torch.autograd.grad(slope.sum(), weight)
    torch.testing.assert_close(second, torch.full_like(weight, 2.0))


def test_a_pass_of_moments_refuses_them():
    layers = nn.Conv2d(2, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 2)
    x = torch.randn(3, 2, 6, 6, requires_grad=True)
    nested = nl.nest(nn.Sequential(*layers), x.detach(), weights="gaussian").eval()
    with carrying_moments(nested, 2, len(x)):
        outputs = nested(x)
    (slope,) = torch.autograd.grad(outputs.mean_.sum(), x, retain_graph=True)
    assert slope.shape == x.shape
    with pytest.raises(nl.NestlingError, match="pass of moments, whose gradients can't be differentiated again"):
        torch.autograd.grad(outputs.mean_.sum(), x, create_graph=True)
