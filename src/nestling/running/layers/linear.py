"""The variational linear layer."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nestling.distributions import Sampling
from nestling.distributions.weights import WeightPosterior
from nestling.running.layers.layer import VariationalLayer, as_parameter


class VariationalLinear(VariationalLayer):
    """y = x w^T + b with a posterior over w (out_features, in_features)."""

    @classmethod
    def from_plain(cls, plain: nn.Linear, posterior: WeightPosterior, sampling: Sampling) -> "VariationalLinear":
        """The variational form of a linear layer, with its bias."""
        return cls(posterior, plain.bias, sampling)

    @property
    def in_features(self) -> int:
        """The features that the weight, cut or whole, reads."""
        return self.posterior.mean.shape[1]

    @property
    def out_features(self) -> int:
        """The features that the weight, cut or whole, outputs."""
        return self.posterior.mean.shape[0]

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
        return F.linear(x, weight, bias)

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
        return gradient @ weight if needed[0] else None, rows.T @ read if needed[1] else None

    def apply_each(self, x: Tensor, weights: Tensor, bias: Tensor | None, **options: Any) -> Tensor:  # noqa: ANN401
        """The operation with one weight per example."""
        y = torch.einsum("b...i,boi->b...o", x, weights)
        return y if bias is None else y + bias

    def mean_variance(self, squares: Tensor, variance: Tensor, **options: Any) -> Tensor:  # noqa: ANN401
        """The variance of each output, not averaged: axes before the features may be examples as well as positions."""
        return F.linear(squares, variance)

    def to_plain(self) -> nn.Module:
        """``nn.Linear`` with the posterior mean as its weight."""
        mean = self.posterior.mean
        placement = {"device": mean.device, "dtype": mean.dtype}
        make: Callable[..., nn.Linear] = nn.utils.skip_init
        plain = make(nn.Linear, self.in_features, self.out_features, bias=self.bias is not None, **placement)
        plain.weight = as_parameter(mean)
        plain.register_parameter("bias", self.bias)
        return plain

    def extra_repr(self) -> str:
        """What ``print`` shows of the layer."""
        return f"in_features={self.in_features}, out_features={self.out_features}, sampling={self.sampling!r}"
