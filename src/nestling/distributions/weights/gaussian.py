"""Gaussian weight posteriors, by their scale: log alpha (noise in proportion to the weight) or log sigma^2."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nestling.distributions.divergences import gaussian_kl
from nestling.distributions.layout import laid_out_as
from nestling.distributions.learned import Rate
from nestling.distributions.options import Sampling
from nestling.distributions.second_derivatives import differentiable_gradients
from nestling.distributions.totals import total
from nestling.distributions.weights.posterior import LOG_ALPHA_BOUNDS, PullBack, WeightPosterior, to_log_alpha
from nestling.tensor_arguments import real_tensor
from nestling.torch_parts import is_transformed

START_LOG_ALPHA = -3.0
"""Initial log alpha of every weight: noise of about a fifth of its size."""
START_LOG_SIGMA2 = -10.0
"""Initial log sigma^2 of every weight, as in both released codes of sparse VD."""
START_SHARE = 0.1
"""Initial standard deviation for natural gradients, relative to the root mean square of a layer's weights."""
PRIOR_SHARE = 10.0
"""Standard deviation of the prior for natural gradients, relative to the root mean square of a layer's weights."""
NO_NOISE = -80.0
"""log sigma^2 of a removed weight: a standard deviation of 4e-18, large enough to avoid slow subnormal products."""


class MultiplicativeGaussian(WeightPosterior):
    """w = theta (1 + sqrt(alpha) eps) with log alpha free (BN3), clamped to bounds, without gradient outside them.

    Args:
        mean: theta, in any shape.
        log_alpha: log alpha of each weight, broadcastable to the mean.

    Raises:
        ShapeError: If the scale does not fit the mean.

    Examples:
        >>> from nestling.distributions import MultiplicativeGaussian
        >>> posterior = MultiplicativeGaussian(torch.tensor([2.0, -4.0]), torch.tensor(0.0))
        >>> posterior.std(), posterior.drop_rate()
        (tensor([2., 4.]), tensor(0.5000))
    """

    log_alpha: Tensor

    def __init__(self, mean: Tensor, log_alpha: Tensor) -> None:
        super().__init__(mean, "log_alpha", log_alpha)

    @classmethod
    def from_weight(cls, weight: nn.Parameter) -> Self:
        """The posterior with noise of about a fifth of each weight's size."""
        return cls(weight, _scale_of(weight, torch.full_like(weight, START_LOG_ALPHA)))

    def bounded_log_alpha(self) -> Tensor:
        """log alpha within its bounds."""
        return F.hardtanh(self.log_alpha, *LOG_ALPHA_BOUNDS)

    @staticmethod
    def variance_of(mean: Tensor, scale: Tensor) -> tuple[Tensor, PullBack]:
        """alpha theta^2 from theta and log alpha, and the function that gives their gradients."""
        scaled = F.hardtanh(scale, *LOG_ALPHA_BOUNDS).exp_() * mean

        def pull_back(gradient: Tensor) -> tuple[Tensor, Tensor]:
            shared = laid_out_as(mean, gradient) * scaled
            to_scale = _log_alpha_gradient(shared * mean, scale)
            return shared.mul_(2), to_scale

        return scaled * mean, pull_back

    def std(self) -> Tensor:
        """sqrt(alpha) |theta|."""
        return torch.exp(0.5 * self.bounded_log_alpha()) * self.mean.abs()

    def total(self, divergence: Callable[[Tensor], Tensor]) -> Tensor:
        """The divergences of all weights together, piece by piece."""
        return total(divergence, self.log_alpha.expand_as(self.mean), LOG_ALPHA_BOUNDS)

    def noise_scale(self) -> Tensor:
        """sqrt(alpha) theta."""
        return torch.exp(0.5 * self.bounded_log_alpha()) * self.mean

    def perturbed(self, noise: Tensor) -> Tensor:
        """theta (1 + sqrt(alpha) noise)."""
        if is_transformed():
            return self.mean + self.noise_scale() * noise
        return _Perturbed.apply(self.mean, self.log_alpha, noise)  # type: ignore[no-untyped-call,no-any-return]


class AdditiveGaussian(WeightPosterior):
    """w = theta + sigma eps with log sigma^2 free (sparse VD), so that a weight near zero can keep its noise.

    Args:
        mean: theta, in any shape.
        log_sigma2: log sigma^2 of each weight, broadcastable to the mean.

    Raises:
        ShapeError: If the scale does not fit the mean.

    Examples:
        >>> from nestling.distributions import AdditiveGaussian
        >>> posterior = AdditiveGaussian(torch.tensor([0.0, 3.0]), torch.tensor([0.0, 0.0]))
        >>> posterior.std(), tuple(posterior.sample((5,)).shape)
        (tensor([1., 1.]), (5, 2))
    """

    rates: ClassVar[Mapping[str, Rate]] = {"log_sigma2": "distributions"}
    log_sigma2: Tensor

    def __init__(self, mean: Tensor, log_sigma2: Tensor) -> None:
        super().__init__(mean, "log_sigma2", log_sigma2)

    @classmethod
    def from_weight(cls, weight: nn.Parameter) -> Self:
        """The posterior with the same small noise on every weight."""
        return cls(weight, _scale_of(weight, torch.full_like(weight, START_LOG_SIGMA2)))

    def remove(self, gone: Tensor) -> None:
        """Set some weights, by a mask of the mean's shape, to zero without noise."""
        self.mean.masked_fill_(gone, 0.0)
        self.log_sigma2.masked_fill_(gone, NO_NOISE)

    def total(self, divergence: Callable[[Tensor], Tensor]) -> Tensor:
        """The divergences of all weights together, piece by piece."""
        return total(divergence, self.bounded_log_alpha().expand_as(self.mean))

    def bounded_log_alpha(self) -> Tensor:
        """log sigma^2 - log theta^2 within its bounds."""
        return to_log_alpha(self.mean, self.log_sigma2).clamp(*LOG_ALPHA_BOUNDS)

    def variance(self) -> Tensor:
        """sigma^2."""
        return self.log_sigma2.exp().expand_as(self.mean)

    @staticmethod
    def variance_of(mean: Tensor, scale: Tensor) -> tuple[Tensor, PullBack]:
        """sigma^2 from log sigma^2, and the function that gives its gradient; the mean has none."""
        variance = scale.exp().expand_as(mean)
        return variance, lambda gradient: (None, (laid_out_as(mean, gradient) * variance).sum_to_size(scale.shape))

    def std(self) -> Tensor:
        """sigma."""
        return torch.exp(0.5 * self.log_sigma2).expand_as(self.mean)

    def noise_scale(self) -> Tensor:
        """sigma."""
        return self.std()

    def perturbed(self, noise: Tensor) -> Tensor:
        """theta + sigma noise."""
        return self.mean + self.std() * noise


class NaturalGaussian(AdditiveGaussian):
    """w = theta + sigma eps under the prior N(0, prior_std^2), for natural-gradient steps in log sigma^2 (IVON)."""

    rates: ClassVar[Mapping[str, Rate]] = {"log_sigma2": "natural"}
    sampling: ClassVar[Sampling] = "shared"  # one draw per batch, which costs almost nothing
    kappa: ClassVar[float | None] = 0.3  # docs/decisions/0012
    prior_std: Tensor

    def __init__(self, mean: Tensor, log_sigma2: Tensor, prior_std: Tensor) -> None:
        super().__init__(mean, log_sigma2)
        real_tensor("prior_std", prior_std)
        self.register_buffer("prior_std", prior_std)

    @classmethod
    def from_weight(cls, weight: nn.Parameter) -> Self:
        """The posterior with noise and prior in proportion to the root mean square of the layer's weights."""
        size = weight.detach().square().mean().clamp_min(torch.finfo(weight.dtype).tiny).sqrt()
        log_sigma2 = torch.zeros_like(weight) + 2 * (START_SHARE * size).log()
        return cls(weight, _scale_of(weight, log_sigma2), PRIOR_SHARE * size)

    def divergences(self, divergence: Callable[[Tensor], Tensor]) -> Tensor:
        """KL(N(theta, sigma^2), N(0, prior_std^2)); ``divergence``, a function of log alpha, is not used."""
        return gaussian_kl(self.mean, self.log_sigma2.expand_as(self.mean), float(self.prior_std))

    total = WeightPosterior.total


def _scale_of(weight: nn.Parameter, scale: Tensor) -> nn.Parameter:
    """The scale as a parameter, which is learned if the weight is."""
    return nn.Parameter(scale.detach(), requires_grad=weight.requires_grad)


class _Perturbed(torch.autograd.Function):
    """theta (1 + sqrt(alpha) noise) from theta, log alpha and noise; saves sqrt(alpha) noise for the gradients."""

    @staticmethod
    def forward(ctx: Any, mean: Tensor, log_alpha: Tensor, noise: Tensor) -> Tensor:  # noqa: ANN401
        """The weights."""
        relative = _half(log_alpha).exp_() * noise
        ctx.save_for_backward(mean, log_alpha, relative)
        return torch.addcmul(mean, mean, relative)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        mean, log_alpha, relative = ctx.saved_tensors
        gradient = laid_out_as(relative, gradient)
        if torch.is_grad_enabled():
            again = partial(_perturbed_again, relative)
            return *differentiable_gradients(again, (mean, log_alpha), gradient), None
        shared = gradient * relative
        to_scale = _log_alpha_gradient(torch.mul(shared, mean).mul_(0.5), log_alpha)
        return shared.add_(gradient).sum_to_size(mean.shape), to_scale, None


def _perturbed_again(relative: Tensor, mean: Tensor, log_alpha: Tensor) -> Tensor:
    """The weights for the relative noise that they have already, as a function of theta and log alpha."""
    half = _half(log_alpha)
    return mean + mean * relative * (half - half.detach()).exp()


def _half(log_alpha: Tensor) -> Tensor:
    """The logarithm of sqrt(alpha), with log alpha within its bounds."""
    return F.hardtanh(log_alpha, *LOG_ALPHA_BOUNDS).mul_(0.5)


def _log_alpha_gradient(gradient: Tensor, log_alpha: Tensor) -> Tensor:
    """The gradient for log alpha: zero outside its bounds."""
    summed = gradient.sum_to_size(log_alpha.shape)
    result: Tensor = torch.ops.aten.hardtanh_backward(summed, log_alpha, *LOG_ALPHA_BOUNDS)
    return result
