"""What every weight posterior N(theta, alpha theta^2) shares, whichever of its two scales is the free parameter."""

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from nestling.distributions.learned import Learned, Rate
from nestling.distributions.noise import normal_noise
from nestling.distributions.options import Sampling
from nestling.distributions.second_derivatives import differentiable_gradients
from nestling.distributions.tensors import register
from nestling.errors import ShapeError
from nestling.kept_until_written import Kept
from nestling.tensor_arguments import floating_tensor, real_tensor
from nestling.torch_parts import Moving, is_transformed

LOG_ALPHA_BOUNDS = (-20.0, 20.0)
"""log alpha is clamped to these bounds: outside them a weight is a constant, or only noise, in float32."""


PullBack = Callable[[Tensor], tuple[Tensor | None, Tensor]]
"""Gives the gradients for mean and scale from the gradient for a function of both."""


class Worked(defaultdict[str, Kept]):
    """Results computed from the parameters of one posterior; a twin with other parameters has separate results."""


class WeightPosterior(Moving, Learned, ABC):
    """A Gaussian over each weight with mean theta and variance alpha theta^2.

    A family says how it starts from a plain weight and how its parameters are trained (``rate``, ``rates``). The
    defaults ``sampling`` and ``kappa`` say how weights are drawn, and how their divergence is weighted.

    Attributes:
        mean: theta, in the shape of the weight.
        scale: The parameter of the noise: log alpha or log sigma^2.

    Examples:
        >>> from nestling.distributions import AdditiveGaussian, WeightPosterior, hierarchical_kl
        >>> posterior = AdditiveGaussian.from_weight(torch.nn.Parameter(torch.ones(2, 3)))
        >>> isinstance(posterior, WeightPosterior), tuple(posterior.divergences(hierarchical_kl).shape)
        (True, (2, 3))
    """

    rate: ClassVar[Rate] = "weights"
    sampling: ClassVar[Sampling] = "local"
    kappa: ClassVar[float | None] = None
    """None means that the network decides: see ``largest_kappa``."""
    mean: Tensor

    @classmethod
    @abstractmethod
    def from_weight(cls, weight: nn.Parameter) -> Self:
        """The initial posterior for training, whose mean is the weight of a plain layer.

        Args:
            weight: The parameter, which the posterior takes over.

        Returns:
            A posterior with little noise.
        """

    def __init__(self, mean: Tensor, scale_name: str, scale: Tensor) -> None:
        super().__init__()
        real_tensor("mean", mean)
        real_tensor(scale_name, scale)
        if not _broadcasts_to(scale.shape, mean.shape):
            given = f"shape {tuple(scale.shape)} for a mean of shape {tuple(mean.shape)}"
            raise ShapeError(
                scale_name, given, "broadcastable to the mean", "Pass one scale per weight, or one for all."
            )
        register(self, "mean", mean)
        register(self, scale_name, scale)
        self._scale_name = scale_name
        self._kept_results = Worked(Kept)

    @property
    def scale(self) -> Tensor:
        """The scale that is the free parameter."""
        scale: Tensor = getattr(self, self._scale_name)
        return scale

    def along(self, axis: int) -> Iterator[tuple[str, int]]:
        """The tensors that are cut with an axis of the weight, the mean first, each with the axis to cut."""
        tensors = {"mean": self.mean, **dict(self.named_parameters()), **dict(self.named_buffers())}
        for name, tensor in tensors.items():
            tensor_axis = axis + tensor.ndim - self.mean.ndim
            if tensor_axis >= 0 and tensor.shape[tensor_axis] == self.mean.shape[axis]:
                yield name, tensor_axis

    @abstractmethod
    def bounded_log_alpha(self) -> Tensor:
        """log alpha within ``LOG_ALPHA_BOUNDS``, which divergences and keep decisions read."""

    def variance(self) -> Tensor:
        """Variance of each weight."""
        if is_transformed():
            return self.variance_of(self.mean, self.scale)[0]
        return _Variance.apply(type(self), self.mean, self.scale)  # type: ignore[no-untyped-call,no-any-return]

    @staticmethod
    @abstractmethod
    def variance_of(mean: Tensor, scale: Tensor) -> tuple[Tensor, "PullBack"]:
        """Variance of each weight from the parameters, and the function that gives the gradients for both of them.

        The function may be written by hand; autograd must be able to follow the variance, for second derivatives.
        """

    @abstractmethod
    def std(self) -> Tensor:
        """Standard deviation of each weight."""

    def sample(self, shape: tuple[int, ...] = (), generator: torch.Generator | None = None) -> Tensor:
        """Draw weights, differentiable in the parameters.

        Args:
            shape: How many draws, such as ``(5,)``; one by default.
            generator: Draws the noise; None for torch's own.

        Returns:
            Weights (*shape, *mean.shape).
        """
        noise = normal_noise(self.mean.expand(*shape, *self.mean.shape), generator)
        if torch.is_grad_enabled():
            return self.perturbed(noise)
        return torch.addcmul(self.mean, self.known("noise_scale", self.noise_scale), noise)

    @abstractmethod
    def noise_scale(self) -> Tensor:
        """The factor of the noise in a sample: the standard deviation, up to a sign that does not matter."""

    @abstractmethod
    def perturbed(self, noise: Tensor) -> Tensor:
        """The weights for standard noise (..., *mean.shape), differentiable in the parameters."""

    def known(self, name: str, work_out: Callable[[], Tensor], of: object = None) -> Tensor:
        """A result computed from the parameters, kept until they are written to (a write to ``.data`` goes unnoticed).

        Only for passes without gradients; train mode drops all results. ``of`` is what else the result depends on:
        only the result for its last value is kept.
        """
        return self._kept_results[name].of((self.mean, self.scale), work_out, of)

    def train(self, mode: bool = True) -> Self:
        """Drop all kept results in train mode."""
        if mode:
            self._kept_results.clear()
        return super().train(mode)

    def moved(self, fn: Callable[[Tensor], Tensor]) -> None:
        """Drop all kept results when the device or the dtype changes."""
        self._kept_results.clear()

    def divergences(self, divergence: Callable[[Tensor], Tensor]) -> Tensor:
        """The divergence of each weight from its prior.

        Args:
            divergence: A function of log alpha, for families without a prior of their own.

        Returns:
            A tensor in the shape of the mean, in nats.
        """
        return divergence(self.bounded_log_alpha().expand_as(self.mean))

    def total(self, divergence: Callable[[Tensor], Tensor]) -> Tensor:
        """The divergences of all weights together."""
        return self.divergences(divergence).sum()

    def drop_rate(self) -> Tensor:
        """alpha / (1 + alpha): the rate of dropout with noise of the same strength."""
        return torch.sigmoid(self.bounded_log_alpha())


class _Variance(torch.autograd.Function):
    """The variance of each weight; only the parameters are saved for the gradients."""

    @staticmethod
    def forward(ctx: Any, family: type[WeightPosterior], mean: Tensor, scale: Tensor) -> Tensor:  # noqa: ANN401
        """The variance."""
        ctx.family = family
        ctx.save_for_backward(mean, scale)
        return family.variance_of(mean, scale)[0]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        variance_of, inputs = ctx.family.variance_of, ctx.saved_tensors
        if torch.is_grad_enabled():
            return None, *differentiable_gradients(lambda *given: variance_of(*given)[0], inputs, gradient)
        _, pull_back = variance_of(*inputs)
        return None, *pull_back(gradient)


def to_log_sigma2(mean: Tensor, log_alpha: Tensor) -> Tensor:
    """log sigma^2 = log alpha + log theta^2, exact for any weight except zero.

    Args:
        mean: theta. At zero its logarithm is that of the smallest normal number, with zero gradient.
        log_alpha: log alpha, broadcastable to it.

    Returns:
        log sigma^2 of each weight.

    Examples:
        >>> from nestling.distributions import to_log_sigma2
        >>> round(to_log_sigma2(torch.tensor(-3.0), torch.tensor(0.0)).exp().item(), 4)
        9.0
    """
    return log_alpha + _log_square(mean)


def to_log_alpha(mean: Tensor, log_sigma2: Tensor) -> Tensor:
    """log alpha = log sigma^2 - log theta^2, exact for any weight except zero, and without bounds.

    Args:
        mean: theta. At zero its logarithm is that of the smallest normal number, with zero gradient.
        log_sigma2: log sigma^2, broadcastable to it.

    Returns:
        log alpha of each weight.

    Examples:
        >>> from nestling.distributions import to_log_alpha
        >>> round(to_log_alpha(torch.tensor(-3.0), torch.tensor(0.0)).exp().item(), 4)
        0.1111
    """
    return log_sigma2 - _log_square(mean)


def _log_square(mean: Tensor) -> Tensor:
    """log theta^2, with |theta| clamped to the smallest normal number: finite at zero, with zero gradient there."""
    return 2 * floating_tensor("mean", mean).abs().clamp_min(torch.finfo(mean.dtype).tiny).log()


def _broadcasts_to(shape: torch.Size, target: torch.Size) -> bool:
    tail = target[len(target) - len(shape) :]
    return len(shape) <= len(target) and all(size in (1, whole) for size, whole in zip(shape, tail, strict=True))
