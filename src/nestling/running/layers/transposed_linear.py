"""The variational linear layer whose weight has its inputs first, as the layers of GPT-2 have it."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from nestling.distributions import Sampling
from nestling.distributions.weights import WeightPosterior
from nestling.running.layers.layer import VariationalLayer, as_parameter


class VariationalTransposedLinear(VariationalLayer):
    """y = x w + b with a posterior over w (in_features, out_features)."""

    def __init__(
        self, plain: nn.Module, posterior: WeightPosterior, bias: nn.Parameter | None, sampling: Sampling
    ) -> None:
        super().__init__(posterior, bias, sampling)
        self._plain_class = type(plain)

    @classmethod
    def from_plain(cls, plain: Any, posterior: WeightPosterior, sampling: Sampling) -> "VariationalTransposedLinear":  # noqa: ANN401
        """The variational form of a layer that is made from the numbers of its outputs and inputs, with its bias."""
        return cls(plain, posterior, plain.bias, sampling)

    @property
    def drawn_as(self) -> Sampling:
        """How it draws now; noise per channel is noise per output."""
        sampling = super().drawn_as
        return "local" if sampling == "channel" else sampling

    def is_batch(self, x: Tensor) -> bool:
        """Whether there is an axis before the features."""
        return x.ndim > 1

    def apply_weight(self, x: Tensor, weight: Tensor, bias: Tensor | None, **options: Any) -> Tensor:  # noqa: ANN401
        """The operation with a given weight."""
        return x @ weight if bias is None else x @ weight + bias

    def can_pull_back(self, x: Tensor) -> bool:
        """Always."""
        return True

    def pull_back(
        self,
        gradient: Tensor,
        x: Tensor,
        weight: Tensor,
        needed: tuple[bool, bool],
        **options: Any,  # noqa: ANN401
    ) -> tuple[Tensor | None, Tensor | None]:
        """The gradients with respect to the input and the weight, if needed."""
        rows, read = (tensor.reshape(math.prod(tensor.shape[:-1]), tensor.shape[-1]) for tensor in (gradient, x))
        return gradient @ weight.T if needed[0] else None, read.T @ rows if needed[1] else None

    def apply_each(self, x: Tensor, weights: Tensor, bias: Tensor | None, **options: Any) -> Tensor:  # noqa: ANN401
        """The operation with one weight per example."""
        y = torch.einsum("b...i,bio->b...o", x, weights)
        return y if bias is None else y + bias

    def mean_variance(self, squares: Tensor, variance: Tensor, **options: Any) -> Tensor:  # noqa: ANN401
        """The variance of each output, not averaged: axes before the features may be examples as well as positions."""
        return squares @ variance

    def to_plain(self) -> nn.Module:
        """A layer of the plain class with the posterior mean as its weight."""
        mean = self.posterior.mean
        make: Any = self._plain_class
        with torch.device("meta"):  # without first values
            plain: nn.Module = make(*reversed(mean.shape))
        plain.weight = as_parameter(mean)
        plain.register_parameter("bias", self.bias)
        return plain

    def extra_repr(self) -> str:
        """What ``print`` shows of the layer."""
        inputs, outputs = self.posterior.mean.shape
        return f"in_features={inputs}, out_features={outputs}, sampling={self.sampling!r}"
