"""The parent of all variational layers: an operation that is linear in its weight, and a posterior over the weight."""

from abc import ABC, abstractmethod
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from nestling.distributions import Sampling, differentiable_gradients, normal_noise
from nestling.distributions.weights import WeightPosterior
from nestling.running.layers.stochastic import Stochastic, check_sampling
from nestling.running.moments import Moments, graph_of_means, register_noise
from nestling.torch_parts import is_transformed

Factors = tuple[Tensor, ...]


class VariationalLayer(Stochastic, ABC):
    """A layer with a posterior over its weight.

    ``sampling`` is ``"local"`` (noise on the activations: the local reparameterisation, exact for each output taken
    alone), ``"channel"`` (one noise value per channel, with the mean variance of its positions: cheaper for
    convolutions, and the same as ``"local"`` for linear layers), ``"shared"`` (one weight for the whole batch) or
    ``"each"`` (one weight per example). The last two are joint samples over all outputs, as segmentation needs. An
    input without a batch axis counts as one example.
    Inside ``carrying_moments`` it returns the moments of its outputs instead of a draw. Inside ``sampled_as`` the
    variance of a channel is computed without gradients, and as if inputs were the same at all positions.
    """

    bias: nn.Parameter | None

    def __init__(self, posterior: WeightPosterior, bias: nn.Parameter | None, sampling: Sampling = "local") -> None:
        super().__init__()
        check_sampling(sampling)
        self.posterior = posterior
        self.register_parameter("bias", bias)
        self.sampling = sampling

    @property
    def drawn_as(self) -> Sampling:
        """How it draws now: as ``sampling`` says, except inside ``sampled_as``."""
        sampling = self.mode.sampling
        return self.sampling if sampling is None or self.sampling != "local" else sampling

    @property
    def _drawn_evenly(self) -> bool:
        return self.mode.sampling is not None and self.sampling == "local"

    @abstractmethod
    def apply_weight(self, x: Tensor, weight: Tensor, bias: Tensor | None, **options: Any) -> Tensor:  # noqa: ANN401
        """The operation with a given weight; ``options`` are the arguments of a call beside its input."""

    @abstractmethod
    def apply_each(self, x: Tensor, weights: Tensor, bias: Tensor | None, **options: Any) -> Tensor:  # noqa: ANN401
        """The operation with one weight per example (batch, ...)."""

    @abstractmethod
    def mean_variance(self, squares: Tensor, variance: Tensor, **options: Any) -> Tensor:  # noqa: ANN401
        """The variance of each output, averaged over its positions, from squared inputs and the weight's variance."""

    def even_variance(self, squares: Tensor, **options: Any) -> Tensor:  # noqa: ANN401
        """``mean_variance`` of the layer's weight, as if inputs were the same at all positions: without gradients."""
        return self.mean_variance(squares, self._weight_variance(), **options)

    @abstractmethod
    def is_batch(self, x: Tensor) -> bool:
        """Whether an input is a batch of at least one example, not a single example."""

    @abstractmethod
    def to_plain(self) -> nn.Module:
        """The plain layer of torch with the posterior mean as its weight."""

    @property
    def weight(self) -> Tensor:
        """The posterior's mean, for code that reads a layer's weight."""
        return self.posterior.mean

    def tensors_along(self, path: str, axis: int) -> list[tuple[str, int]]:
        """Of the layer at a path, the names of the posterior's tensors that are cut with an axis of the weight, the
        mean first, each with its own axis."""
        return [(f"{path}.posterior.{name}", place) for name, place in self.posterior.along(axis)]

    def draw(self) -> Tensor:
        """One weight for all examples: a draw, or the mean where nothing is drawn."""
        return self.posterior.sample() if self.is_drawing else self.posterior.mean

    def forward(self, input: Tensor) -> Tensor:
        """Apply the operation with a drawn weight, or with the mean."""
        return self.run(input)

    def run(self, x: Tensor, **options: Any) -> Tensor:  # noqa: ANN401
        """What ``forward`` does, with the options of the call."""
        if self.mode.carries:
            return self.carry(x, **options)  # type: ignore[return-value]  # which the network takes for a tensor
        if not self.is_drawing:
            return self.apply_weight(x, self.posterior.mean, self.bias, **options)
        sampling = self.drawn_as
        if sampling in ("local", "channel"):
            return self._run_noisily(x, **options)
        if sampling == "each" and self.is_batch(x):
            return self.apply_each(x, self.posterior.sample((x.shape[0],)), self.bias, **options)
        return self.apply_weight(x, self.posterior.sample(), self.bias, **options)

    def _run_noisily(self, x: Tensor, **options: Any) -> Tensor:  # noqa: ANN401
        """The mean of each output plus its noise; its gradients are written by hand where that saves memory."""
        mean = self.apply_weight(x, self.posterior.mean, self.bias, **options)
        by_hand = torch.is_grad_enabled() and not is_transformed()
        if by_hand and self.drawn_as != "channel" and self.can_pull_back(x):
            noise = normal_noise(mean)
            return _Noise.apply(self, options, mean, noise, x, self.posterior.mean, self.posterior.scale)  # type: ignore[no-untyped-call,no-any-return]
        variance = self._added_variance(x.square(), **options)
        return torch.addcmul(mean, _relative(normal_noise(variance), variance), variance)

    def carry(self, x: Tensor | Moments, **options: Any) -> Moments:  # noqa: ANN401
        """The moments of the outputs, for an input that is a tensor or moments."""
        inputs, input_variance = (x.mean_, x.variance) if isinstance(x, Moments) else (x, None)
        with graph_of_means():
            bias = None if self.bias is None else self.bias.detach()
            mean = self.apply_weight(inputs, self.posterior.mean.detach(), bias, **options)
        with torch.no_grad():
            whole, added = self.variances(inputs.detach(), input_variance, **options)
            # with the memory layout of the mean, which the product of the factors would not have
            variance = whole[0].expand_as(mean) if len(whole) == 1 else torch.mul(*whole, out=torch.empty_like(mean))
        return Moments(register_noise(mean, *added, in_common=self.drawn_as == "channel"), variance)

    def variances(self, x: Tensor, input_variance: Tensor | None, **options: Any) -> tuple[Factors, Factors]:  # noqa: ANN401
        """The variance of each output, and the part that the weight's uncertainty adds, each as one or two factors.

        Inputs have a mean and a variance, independent of each other; a variance of None means that they are known.
        """
        seconds = x.square() if input_variance is None else torch.addcmul(input_variance, x, x)
        added = self._added_variance(seconds, **options)
        if input_variance is None:
            return (added,), (added,)
        squared_mean = self.posterior.known("square", self.posterior.mean.square)
        passed_on = self.apply_weight(input_variance, squared_mean, None, **options)
        return (passed_on.add_(added),), (added,)

    def _added_variance(self, seconds: Tensor, **options: Any) -> Tensor:  # noqa: ANN401
        """The part of the outputs' variance that the weight's uncertainty adds, from the inputs' second moments."""
        if self._drawn_evenly:
            return self.even_variance(seconds, **options)
        if self.drawn_as == "channel":
            return self.mean_variance(seconds, self._weight_variance(), **options)
        return self.apply_weight(seconds, self._weight_variance(), None, **options)

    def moments(self, x: Tensor, **options: Any) -> tuple[Tensor, Tensor]:  # noqa: ANN401
        """The mean and variance of each output for a given input; one variance for positions that share noise."""
        mean = self.apply_weight(x, self.posterior.mean, self.bias, **options)
        return mean, self._added_variance(x.square(), **options)

    @abstractmethod
    def can_pull_back(self, x: Tensor) -> bool:
        """Whether ``pull_back`` can compute the gradients of the operation for this input."""

    @abstractmethod
    def pull_back(
        self,
        gradient: Tensor,
        x: Tensor,
        weight: Tensor,
        needed: tuple[bool, bool],
        **options: Any,  # noqa: ANN401
    ) -> tuple[Tensor | None, Tensor | None]:
        """The gradients of ``apply_weight`` with respect to input and weight, if needed, from the output's gradient."""

    def _weight_variance(self) -> Tensor:
        posterior = self.posterior
        return posterior.variance() if torch.is_grad_enabled() else posterior.known("variance", posterior.variance)


_MEAN, _WEIGHT = ".posterior.mean", ".weight"


def mean_name(path: str) -> str:
    """The name of the mean of a variational layer's weight."""
    return path + _MEAN


def plain_name(name: str) -> str:
    """The name of a tensor in the plain network, where a mean is a weight."""
    return name.removesuffix(_MEAN) + _WEIGHT if name.endswith(_MEAN) else name


class _Noise(torch.autograd.Function):
    """mean + noise * root(variance of the output); of the outputs' size it keeps one tensor for its gradients.

    The backward pass computes the squares of the input and the variance of the weight again.
    """

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        layer: VariationalLayer,
        options: dict[str, Any],
        mean: Tensor,
        noise: Tensor,
        *inputs: Tensor,
    ) -> Tensor:
        """The noisy outputs, from their mean; ``inputs`` are the input, and mean and scale of the weight."""
        variance = _variance(layer, options, mean.dtype, *inputs)
        relative = _relative(noise, variance)
        ctx.layer, ctx.options = layer, options
        ctx.save_for_backward(relative, *inputs)
        return torch.addcmul(mean, relative, variance)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        relative, *inputs = ctx.saved_tensors
        layer, options = ctx.layer, ctx.options
        if torch.is_grad_enabled():
            again = partial(_noise_again, layer, options, relative)
            return None, None, gradient, None, *differentiable_gradients(again, inputs, gradient)
        x, mean, scale = inputs
        variance, from_variance = layer.posterior.variance_of(mean, scale)
        needed = ctx.needs_input_grad[4], any(ctx.needs_input_grad[5:])
        squares_and_variance = x.square().to(gradient.dtype), variance.to(gradient.dtype)
        of_variance = torch.mul(gradient, relative).mul_(0.5)
        to_squares, to_variance = layer.pull_back(of_variance, *squares_and_variance, needed, **options)
        to_x = None if to_squares is None else to_squares.to(x.dtype).mul_(x).mul_(2)
        to_mean, to_scale = (None, None) if to_variance is None else from_variance(to_variance.to(mean.dtype))
        return None, None, gradient, None, to_x, to_mean, to_scale


def _variance(
    layer: VariationalLayer, options: dict[str, Any], dtype: torch.dtype, x: Tensor, mean: Tensor, scale: Tensor
) -> Tensor:
    """The variance of each output for a given input: the operation on its square with the weight's variance."""
    variance, _ = layer.posterior.variance_of(mean, scale)
    return layer.apply_weight(x.square().to(dtype), variance.to(dtype), None, **options)


def _relative(noise: Tensor, variance: Tensor) -> Tensor:
    """noise / root(variance): what the variance is multiplied by, and twice the derivative of the product.

    A variance below the square of the dtype's precision (for lower precisions that of float32) counts as zero: there is
    no noise and no gradient, which would be infinite.
    """
    least = min(torch.finfo(variance.dtype).eps, torch.finfo(torch.float32).eps) ** 2
    return noise * torch.threshold(variance, least, torch.inf).rsqrt_()


def _noise_again(layer: VariationalLayer, options: dict[str, Any], relative: Tensor, *inputs: Tensor) -> Tensor:
    """The same noise times root(variance), as a function that autograd can follow."""
    variance = _variance(layer, options, relative.dtype, *inputs)
    return _relative(relative * variance.detach().sqrt(), variance) * variance


def as_parameter(mean: Tensor) -> nn.Parameter:
    """A mean as the weight of a plain layer: the same parameter if it is one, so that optimisers keep it."""
    return mean if isinstance(mean, nn.Parameter) else nn.Parameter(mean.detach(), requires_grad=mean.requires_grad)


def variational_layers(module: nn.Module) -> dict[str, VariationalLayer]:
    """The variational layers of a module, by path."""
    return {path: layer for path, layer in module.named_modules() if isinstance(layer, VariationalLayer)}
