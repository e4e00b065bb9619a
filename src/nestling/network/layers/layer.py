"""What every variational layer shares: an operation that is linear in its weight, and a posterior over that weight."""

from abc import ABC, abstractmethod
from typing import Literal

import torch
from torch import Tensor, nn

from nestling.distributions.noise import normal_noise
from nestling.distributions.weights import WeightPosterior
from nestling.errors import ArgumentError

Sampling = Literal["local", "shared", "each"]
SAMPLINGS: tuple[Sampling, ...] = ("local", "shared", "each")
VARIANCE_FLOOR = 1e-8
"""Added to the variance of an activation before its root, so that the gradient is finite where it vanishes."""


class VariationalLayer(nn.Module, ABC):
    """A layer whose weight is drawn in train mode and at its mean in eval mode, unless ``noisy`` says otherwise.

    ``sampling`` is ``"local"`` (noise on the activations: the local reparameterisation, right for each output on its
    own), ``"shared"`` (one weight for the whole batch) or ``"each"`` (a weight for each example). The last two are
    joint samples over all outputs, as segmentation needs.
    """

    bias: nn.Parameter | None

    def __init__(self, posterior: WeightPosterior, bias: nn.Parameter | None, sampling: Sampling = "local") -> None:
        super().__init__()
        if sampling not in SAMPLINGS:
            raise ArgumentError("sampling", repr(sampling), f"one of {', '.join(SAMPLINGS)}", "'local' trains best.")
        self.posterior = posterior
        self.register_parameter("bias", bias)
        self.sampling = sampling
        self.noisy: bool | None = None

    @abstractmethod
    def apply_weight(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The operation with a given weight."""

    @abstractmethod
    def apply_each(self, x: Tensor, weights: Tensor, bias: Tensor | None) -> Tensor:
        """The operation with a weight (batch, ...) for each example."""

    @abstractmethod
    def to_plain(self) -> nn.Module:
        """The layer of torch's that has the mean as its weight."""

    @property
    def weight(self) -> Tensor:
        """The posterior's mean, for code that reads a layer's weight."""
        return self.posterior.mean

    @property
    def draws(self) -> bool:
        """Whether the weight is drawn now: in train mode, unless ``noisy`` has been set."""
        return self.training if self.noisy is None else self.noisy

    def draw(self) -> Tensor:
        """One weight for all examples: a draw, or the mean where nothing is drawn."""
        return self.posterior.sample() if self.draws else self.posterior.mean

    def forward(self, x: Tensor) -> Tensor:
        """Apply the operation with a drawn weight, or with the mean."""
        if not self.draws:
            return self.apply_weight(x, self.posterior.mean, self.bias)
        if self.sampling == "shared":
            return self.apply_weight(x, self.posterior.sample(), self.bias)
        if self.sampling == "each":
            return self.apply_each(x, self.posterior.sample((x.shape[0],)), self.bias)
        mean = self.apply_weight(x, self.posterior.mean, self.bias)
        variance = self.apply_weight(x.square(), self.posterior.variance(), None)
        return mean + torch.sqrt(variance + VARIANCE_FLOOR) * normal_noise(mean)
