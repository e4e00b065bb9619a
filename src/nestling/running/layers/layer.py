"""What every variational layer shares: an operation that is linear in its weight, and a posterior over that weight."""

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from nestling.distributions import Sampling, normal_noise
from nestling.distributions.weights import WeightPosterior
from nestling.running.layers.stochastic import Stochastic, check_sampling
from nestling.running.moments import Moments, graph_of_means, noted
from nestling.torch_parts import is_transformed

Factors = tuple[Tensor, ...]


class VariationalLayer(Stochastic, ABC):
    """A layer with a posterior over its weight.

    ``sampling`` is ``"local"`` (noise on the activations: the local reparameterisation, right for each output on its
    own), ``"channel"`` (one number for all positions of a channel, with their mean variance: cheaper for convolutions,
    and ``"local"`` for linear layers), ``"shared"`` (one weight for the whole batch) or ``"each"`` (a
    weight for each example). The last two are joint samples over all outputs, as segmentation needs. An input without
    a batch axis counts as one example.
    While it carries moments (``carrying_moments``), it gives those of its outputs instead of a draw. The variance of
    one number for all positions is worked out evenly, without gradients, as if inputs were the same at all of them,
    where that is asked for (``sampled_as``).
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
        """How it draws now: by its own ``sampling``, except inside ``sampled_as``."""
        asked = self.mode.sampling
        return self.sampling if asked is None or self.sampling != "local" else asked

    @property
    def _drawn_evenly(self) -> bool:
        return self.mode.sampling is not None and self.sampling == "local"

    @abstractmethod
    def apply_weight(self, x: Tensor, weight: Tensor, bias: Tensor | None, **asked: Any) -> Tensor:  # noqa: ANN401
        """The operation with a given weight; ``asked`` is what a call may ask for beside its input."""

    @abstractmethod
    def apply_each(self, x: Tensor, weights: Tensor, bias: Tensor | None, **asked: Any) -> Tensor:  # noqa: ANN401
        """The operation with a weight (batch, ...) for each example."""

    @abstractmethod
    def mean_variance(self, squares: Tensor, variance: Tensor, **asked: Any) -> Tensor:  # noqa: ANN401
        """The variance of an output, for squared inputs and the weight's variance, averaged over its positions."""

    def even_variance(self, squares: Tensor, **asked: Any) -> Tensor:  # noqa: ANN401
        """``mean_variance`` for the layer's own weight, if inputs were the same at all positions: without gradients."""
        return self.mean_variance(squares, self._weight_variance(), **asked)

    @abstractmethod
    def is_batch(self, x: Tensor) -> bool:
        """Whether an input is a batch of at least one example, rather than an example by itself."""

    @abstractmethod
    def to_plain(self) -> nn.Module:
        """The layer of torch's that has the mean as its weight."""

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
        return self.posterior.sample() if self.draws else self.posterior.mean

    def forward(self, input: Tensor) -> Tensor:
        """Apply the operation with a drawn weight, or with the mean."""
        return self.run(input)

    def run(self, x: Tensor, **asked: Any) -> Tensor:  # noqa: ANN401
        """What ``forward`` does, with what the call asked for."""
        if self.mode.carries:
            return self.carry(x, **asked)  # type: ignore[return-value]  # which the network takes for a tensor
        if not self.draws:
            return self.apply_weight(x, self.posterior.mean, self.bias, **asked)
        sampling = self.drawn_as
        if sampling in ("local", "channel"):
            mean, variance = self.moments(x, **asked)
            if variance.shape == mean.shape:
                return _Noisy.apply(mean, variance, normal_noise(mean))[0]  # type: ignore[no-untyped-call,no-any-return]
            return mean + _Noisy.apply(torch.zeros_like(variance), variance, normal_noise(variance))[0]  # type: ignore[no-untyped-call,no-any-return]
        if sampling == "each" and self.is_batch(x):
            return self.apply_each(x, self.posterior.sample((x.shape[0],)), self.bias, **asked)
        return self.apply_weight(x, self.posterior.sample(), self.bias, **asked)

    def carry(self, x: Tensor | Moments, **asked: Any) -> Moments:  # noqa: ANN401
        """The moments of the outputs for an input that is known, or known by its moments."""
        read, spread = (x.mean_, x.variance) if isinstance(x, Moments) else (x, None)
        with graph_of_means():
            bias = None if self.bias is None else self.bias.detach()
            mean = self.apply_weight(read, self.posterior.mean.detach(), bias, **asked)
        with torch.no_grad():
            whole, added = self.variances(read.detach(), spread, **asked)
            # laid out as the mean, which the factors by themselves would not be
            variance = whole[0].expand_as(mean) if len(whole) == 1 else torch.mul(*whole, out=torch.empty_like(mean))
        return Moments(noted(mean, *added, in_common=self.drawn_as == "channel"), variance)

    def variances(self, x: Tensor, spread: Tensor | None, **asked: Any) -> tuple[Factors, Factors]:  # noqa: ANN401
        """The variance of each output, and what the uncertainty of the weight adds to it, each as one or two factors.

        Inputs are of a mean and a variance, each independent of the others; None for inputs that are known.
        """
        seconds = x.square() if spread is None else torch.addcmul(spread, x, x)
        added = self._added_variance(seconds, **asked)
        if spread is None:
            return (added,), (added,)
        passed_on = self.apply_weight(spread, self.posterior.known("square", self.posterior.mean.square), None, **asked)
        return (passed_on.add_(added),), (added,)

    def _added_variance(self, seconds: Tensor, **asked: Any) -> Tensor:  # noqa: ANN401
        """What the uncertainty of the weight adds to the variance of outputs, for inputs of these second moments."""
        if self._drawn_evenly:
            return self.even_variance(seconds, **asked)
        if self.drawn_as == "channel":
            return self.mean_variance(seconds, self._weight_variance(), **asked)
        return self.apply_weight(seconds, self._weight_variance(), None, **asked)

    def moments(self, x: Tensor, **asked: Any) -> tuple[Tensor, Tensor]:  # noqa: ANN401
        """The mean and the variance of each output for a given input; one variance for positions that share it."""
        mean = self.apply_weight(x, self.posterior.mean, self.bias, **asked)
        by_hand = torch.is_grad_enabled() and not is_transformed()
        if by_hand and self.drawn_as != "channel" and self.can_pull_back(x):
            return mean, _Variance.apply(self, asked, x, self.posterior.mean, self.posterior.scale)  # type: ignore[no-untyped-call]
        return mean, self._added_variance(x.square(), **asked)

    @abstractmethod
    def can_pull_back(self, x: Tensor) -> bool:
        """Whether ``pull_back`` knows the gradients of the operation on such an input."""

    @abstractmethod
    def pull_back(
        self,
        gradient: Tensor,
        x: Tensor,
        weight: Tensor,
        needed: tuple[bool, bool],
        **asked: Any,  # noqa: ANN401
    ) -> tuple[Tensor | None, Tensor | None]:
        """The gradients in input and weight of ``apply_weight``, those that are needed, from that of its output."""

    def _weight_variance(self) -> Tensor:
        posterior = self.posterior
        return posterior.variance() if torch.is_grad_enabled() else posterior.known("variance", posterior.variance)


_MEAN, _WEIGHT = ".posterior.mean", ".weight"


def mean_name(path: str) -> str:
    """The name of the mean of a variational layer's weight."""
    return path + _MEAN


def plain_name(name: str) -> str:
    """The name that a tensor has in the plain network: a mean is a weight there."""
    return name.removesuffix(_MEAN) + _WEIGHT if name.endswith(_MEAN) else name


class _Variance(torch.autograd.Function):
    """The variance of each output for a given input, which keeps for its gradients what the mean keeps, and no more.

    The squares of the input and the variance of the weight are worked out again on the way back.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(layer: VariationalLayer, asked: dict[str, Any], x: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
        """The operation on the squared input with the weight's variance."""
        variance, _ = layer.posterior.variance_of(mean, scale)
        return layer.apply_weight(x.square(), variance, None, **asked)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ANN401
        ctx.layer, ctx.asked = inputs[:2]
        ctx.save_for_backward(*inputs[2:])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        x, mean, scale = ctx.saved_tensors
        variance, from_variance = ctx.layer.posterior.variance_of(mean, scale)
        needed = ctx.needs_input_grad[2], any(ctx.needs_input_grad[3:])
        given = x.square().to(gradient.dtype), variance.to(gradient.dtype)
        to_squares, to_variance = ctx.layer.pull_back(gradient, *given, needed, **ctx.asked)
        to_x = None if to_squares is None else to_squares.to(x.dtype).mul_(x).mul_(2)
        to_mean, to_scale = (None, None) if to_variance is None else from_variance(to_variance.to(mean.dtype))
        return None, None, to_x, to_mean, to_scale


class _Noisy(torch.autograd.Function):
    """mean + noise * root(variance), which keeps one tensor for its gradients.

    A variance below the square of the precision, that of single precision for lower ones, counts as none: no noise, and
    no gradient, which would be infinite.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(mean: Tensor, variance: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """The activations, and twice their slope in the variance."""
        least = min(torch.finfo(variance.dtype).eps, torch.finfo(torch.float32).eps) ** 2
        twice = noise * torch.threshold(variance, least, torch.inf).rsqrt_()
        return torch.addcmul(mean, twice, variance), twice

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:  # noqa: ANN401
        ctx.set_materialize_grads(False)  # no zeros for the second output
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor | None, _: None) -> tuple[Tensor | None, Tensor | None, None]:  # noqa: ANN401
        if gradient is None:
            return None, None, None
        return gradient, torch.mul(gradient, ctx.saved_tensors[0]).mul_(0.5), None


def as_parameter(mean: Tensor) -> nn.Parameter:
    """A mean as the weight of a plain layer: itself if it is a parameter, so that freezing and optimisers go along."""
    return mean if isinstance(mean, nn.Parameter) else nn.Parameter(mean.detach(), requires_grad=mean.requires_grad)
