"""The variational linear layer."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nestling.distributions.weights import WeightPosterior
from nestling.network.layers.layer import Sampling, VariationalLayer


class VariationalLinear(VariationalLayer):
    """y = x w^T + b with a posterior over w (out_features, in_features)."""

    @classmethod
    def from_plain(cls, plain: nn.Linear, posterior: WeightPosterior, sampling: Sampling) -> "VariationalLinear":
        """The variational form of a linear layer, with its bias."""
        return cls(posterior, plain.bias, sampling)

    def apply_weight(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The operation with a given weight."""
        return F.linear(x, weight, bias)

    def apply_each(self, x: Tensor, weights: Tensor, bias: Tensor | None) -> Tensor:
        """The operation with a weight for each example."""
        y = torch.einsum("b...i,boi->b...o", x, weights)
        return y if bias is None else y + bias

    def to_plain(self) -> nn.Module:
        """``nn.Linear`` with the mean as its weight."""
        mean = self.posterior.mean
        size = {"device": mean.device, "dtype": mean.dtype}
        make: Callable[..., nn.Linear] = nn.utils.skip_init
        plain = make(nn.Linear, mean.shape[1], mean.shape[0], bias=self.bias is not None, **size)
        plain.weight = nn.Parameter(mean.detach())
        plain.register_parameter("bias", self.bias)
        return plain

    def extra_repr(self) -> str:
        """What ``print`` shows of the layer."""
        out_features, in_features = self.posterior.mean.shape
        return f"in_features={in_features}, out_features={out_features}, sampling={self.sampling!r}"
