"""How a network's output gives a distribution over the target: classes, one logit, or Gaussian noise."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import softplus

from nestling.arguments import positive_number
from nestling.distributions import random_signs, stream
from nestling.errors import ArgumentError, RangeError, ShapeError
from nestling.prediction.predictions import (
    NO_THRESHOLDS,
    ClassPrediction,
    Prediction,
    RegressionPrediction,
    class_log_prob,
)
from nestling.prediction.tallies import ClassTally, RegressionTally, Tally
from nestling.prediction.uncertainty import normal_log_prob
from nestling.running.moments import Direction
from nestling.tensor_arguments import floating_tensor, real_tensor, whole_tensor

LOG_VARIANCE_LIMIT = 12.0
"""Learned log-variances stay between minus and plus this limit: standard deviations from 0.0025 to 400."""


def likelihood_named(name: "str | Likelihood") -> "Likelihood":
    """The likelihood of that name; a Likelihood, such as ``Gaussian(std=0.1)``, is returned unchanged."""
    if isinstance(name, Likelihood):
        return name
    if name not in _LIKELIHOODS:
        needed = f"one of {', '.join(_LIKELIHOODS)}, or a Likelihood"
        raise ArgumentError("likelihood", repr(name), needed, "'categorical' is for classes and segmentation.")
    return _LIKELIHOODS[name]()


class Likelihood(ABC):
    """The distribution p(target | output), in which the elements of a target are independent of each other."""

    name: ClassVar[str]

    @abstractmethod
    def log_prob(self, output: Tensor, target: Tensor) -> Tensor:
        """Log-probability of every element of a target, differentiable with respect to the output."""

    @abstractmethod
    def check(self, output: Tensor, target: Tensor) -> None:
        """Raise if the shape, dtype or values of a target don't fit an output."""

    @abstractmethod
    def predictive(
        self,
        outputs: Tensor,
        *,
        temperature: float = 1.0,
        thresholds: Mapping[float, float] = NO_THRESHOLDS,
        keep_samples: bool = False,
    ) -> Prediction:
        """Average the distributions of outputs (S, B, ...), each raised to the power 1 / temperature."""

    @abstractmethod
    def tally(self, num_bins: int, temperature: float, thresholds: Mapping[float, float]) -> Tally:
        """The running sums for the scores of a data set."""

    @abstractmethod
    def rows(self, outputs: Tensor, target: Tensor, limit: int) -> tuple[Tensor, Tensor]:
        """Elements as separate examples, at most ``limit`` per example, chosen at random."""

    def direction(self, output: Tensor) -> Direction:
        """The direction in which a change of an output matters most: each number by itself, with a random sign."""
        return Direction(random_signs(output), random=math.prod(output.shape[1:]) > 1)

    def nll(self, output: Tensor, target: Tensor) -> Tensor:
        """Mean over every labelled element of -log p(target | output), in nats."""
        return -self.log_prob(output, target).mean()

    def score(self, output: Tensor, target: Tensor) -> Tensor:
        """The quantity that a search maximises, for every element: by default its log-probability."""
        return self.log_prob(output, target)

    def elements(self, target: Tensor) -> int:
        """How many labelled elements an example has: 1 for a class, H * W for pixels, D for D numbers."""
        return math.prod(target.shape[1:])


class _Classes(Likelihood):
    """Labels per example, or per position of an example, by one or several raters."""

    @abstractmethod
    def class_logits(self, output: Tensor, axis: int) -> Tensor:
        """The logits of all classes along an axis."""

    @abstractmethod
    def num_outputs(self, output: Tensor) -> int:
        """The required length of axis 1 of an output."""

    def log_prob(self, output: Tensor, target: Tensor) -> Tensor:
        """Log-probability of labels (B, ...), or of those of each rater (B, R, ...)."""
        self._check_shapes(output, target)
        return class_log_prob(self.class_logits(output, 1).log_softmax(1), target)

    def score(self, output: Tensor, target: Tensor) -> Tensor:
        """Whether each label is the likeliest; for positions, most of which are background, the log-probability."""
        if output.ndim > 2:
            return self.log_prob(output, target)
        return (self.class_logits(output, 1).argmax(1) == target).to(output.dtype)

    def check(self, output: Tensor, target: Tensor) -> None:
        """Raise if labels are not whole numbers of the right shape, or name a class that does not exist."""
        if target.dtype != torch.bool:
            whole_tensor("target", target)
        self._check_shapes(output, target)
        low, high = (int(end) for end in target.aminmax()) if target.numel() else (0, 0)
        num_classes = self.class_logits(output[:1], 1).shape[1]
        if low < 0 or high >= num_classes:
            needed = f"labels from 0 to {num_classes - 1}, one per class of the network"
            raise RangeError("target", f"labels from {low} to {high}", needed, "Renumber them, or widen the network.")

    def predictive(
        self,
        outputs: Tensor,
        *,
        temperature: float = 1.0,
        thresholds: Mapping[float, float] = NO_THRESHOLDS,
        keep_samples: bool = False,
    ) -> ClassPrediction:
        """The mean probabilities of outputs (S, B, C, ...) whose logits are divided by the temperature."""
        _check_ndim(outputs[0], 2, self.name)
        logits = self.class_logits(outputs, 2) / temperature
        return ClassPrediction.from_logits(logits, thresholds=thresholds, keep_samples=keep_samples)

    def tally(self, num_bins: int, temperature: float, thresholds: Mapping[float, float]) -> Tally:
        """The running sums for the scores of a data set with labels."""
        predictive = partial(self.predictive, temperature=temperature, thresholds=thresholds, keep_samples=True)
        return ClassTally(predictive, num_bins)

    def rows(self, outputs: Tensor, target: Tensor, limit: int) -> tuple[Tensor, Tensor]:
        """Some positions of every example, each with the label of one rater."""
        return _rows(outputs, target, self.num_outputs(outputs[0]), limit)

    def _check_shapes(self, output: Tensor, target: Tensor) -> None:
        _check_ndim(output, 2, self.name)
        batch, positions, shape = output.shape[0], tuple(output.shape[2:]), tuple(target.shape)
        rated = bool(positions) and len(shape) == output.ndim and (shape[0], *shape[2:]) == (batch, *positions)
        fits = shape == (batch, *positions) or rated
        if not fits or output.shape[1] != self.num_outputs(output):
            raters = f", or ({batch}, raters, {', '.join(map(str, positions))})" if positions else ""
            needed = f"of shape {(batch, *positions)}{raters} beside an output of shape {tuple(output.shape)}"
            advice = "A label is the number of a class, not a row of ones and zeros; classes are axis 1 of the output."
            raise ShapeError("target", f"shape {shape}", needed, advice)


class Categorical(_Classes):
    """Logits (B, C) with labels (B,); or logits (B, C, H, W) with labels (B, H, W), by R raters (B, R, H, W)."""

    name = "categorical"

    def class_logits(self, output: Tensor, axis: int) -> Tensor:
        """The output itself."""
        return output

    def num_outputs(self, output: Tensor) -> int:
        """One per class."""
        return output.shape[1]

    def direction(self, output: Tensor) -> Direction:
        """The gradient of the likeliest class's log-odds; with several positions, each has a random sign."""
        if output.ndim < 2 or output.shape[1] < 2:
            return super().direction(output)
        top = output.argmax(1, keepdim=True)
        slope = output.scatter(1, top, -torch.inf).softmax(1).neg_().scatter_(1, top, 1.0)
        several = math.prod(output.shape[2:]) > 1
        return Direction(slope.mul_(random_signs(top.to(slope))) if several else slope, random=several)


class Bernoulli(_Classes):
    """One logit (B, 1, ...) of class 1 against class 0, with labels as for ``Categorical``."""

    name = "bernoulli"

    def class_logits(self, output: Tensor, axis: int) -> Tensor:
        """The logit beside a zero: its softmax is the sigmoid."""
        return torch.cat((torch.zeros_like(output), output), axis)

    def num_outputs(self, output: Tensor) -> int:
        """One."""
        return 1


class _Normal(Likelihood):
    """Numbers with Gaussian noise."""

    num_outputs: ClassVar[int]

    @abstractmethod
    def moments(self, output: Tensor, axis: int) -> tuple[Tensor, Tensor]:
        """Mean and log-variance of every number; ``axis`` is the one after the batch axis."""

    def log_prob(self, output: Tensor, target: Tensor) -> Tensor:
        """Log-density at every number of a target."""
        mean, log_variance = self._checked(output, target)
        return normal_log_prob(target, mean, log_variance)

    def check(self, output: Tensor, target: Tensor) -> None:
        """Raise if targets are not finite numbers of the right shape."""
        real_tensor("target", target)
        self._checked(output, target)

    def predictive(
        self,
        outputs: Tensor,
        *,
        temperature: float = 1.0,
        thresholds: Mapping[float, float] = NO_THRESHOLDS,
        keep_samples: bool = False,
    ) -> RegressionPrediction:
        """The mixture of the Gaussians of outputs (S, B, ...), the noise's variance multiplied by the temperature."""
        mean, log_variance = self.moments(outputs, 2)
        tempered = log_variance + math.log(temperature)
        return RegressionPrediction(mean, tempered, keep_samples, thresholds=thresholds)

    def tally(self, num_bins: int, temperature: float, thresholds: Mapping[float, float]) -> Tally:
        """The running sums for the scores of a data set with numbers as targets."""
        return RegressionTally(partial(self.predictive, temperature=temperature, thresholds=thresholds), num_bins)

    def rows(self, outputs: Tensor, target: Tensor, limit: int) -> tuple[Tensor, Tensor]:
        """Some numbers of every example."""
        chosen, numbers = _rows(outputs, target, self.num_outputs, limit)
        return chosen, numbers.unsqueeze(1)

    def _checked(self, output: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        floating_tensor("target", target)
        mean, log_variance = self.moments(output, 1)
        if target.shape != mean.shape:
            needed = f"of shape {tuple(mean.shape)} beside an output of shape {tuple(output.shape)}"
            raise ShapeError("target", f"shape {tuple(target.shape)}", needed, "Reshape it, as with y.unsqueeze(1).")
        return mean, log_variance


class Gaussian(_Normal):
    """The output is the mean; the noise has the same fixed standard deviation everywhere."""

    name = "gaussian"
    num_outputs = 1

    def __init__(self, std: float = 1.0) -> None:
        self.std = positive_number("std", std)

    def moments(self, output: Tensor, axis: int) -> tuple[Tensor, Tensor]:
        """The output, and a constant."""
        return output, torch.full_like(output, 2 * math.log(self.std))


class HeteroscedasticGaussian(_Normal):
    """The output (B, 2 D, ...) is D means and then D log-variances, which are limited smoothly to a range."""

    name = "heteroscedastic_gaussian"
    num_outputs = 2

    def moments(self, output: Tensor, axis: int) -> tuple[Tensor, Tensor]:
        """The halves of the output; near zero the second is the log-variance itself, up to e^-12."""
        _check_ndim(output, axis + 1, self.name)
        if output.shape[axis] % 2:
            needed = "an even number of entries per example: means, then log-variances"
            raise ShapeError("output", f"shape {tuple(output.shape)}", needed, "Double the last layer's outputs.")
        mean, raw = output.chunk(2, axis)
        below = LOG_VARIANCE_LIMIT - softplus(LOG_VARIANCE_LIMIT - raw)
        return mean, softplus(below + LOG_VARIANCE_LIMIT) - LOG_VARIANCE_LIMIT


def _check_ndim(output: Tensor, least: int, name: str) -> None:
    if output.ndim < least:
        needed = f"at least {least}-dimensional for the {name} likelihood, the batch first"
        raise ShapeError("output", f"shape {tuple(output.shape)}", needed, "Check the network's output for a batch.")


def _rows(outputs: Tensor, target: Tensor, num_outputs: int, limit: int) -> tuple[Tensor, Tensor]:
    """Matching outputs (S, n, num_outputs) and elements (n,) of the target, at most ``limit`` per example."""
    num_samples, batch = outputs.shape[:2]
    by_position = outputs.reshape(num_samples, batch, num_outputs, -1).movedim(2, 3).flatten(1, 2)
    positions = torch.arange(by_position.shape[1]).view(batch, 1, -1)
    elements = target.reshape(batch, -1, positions.shape[2])
    chosen = torch.arange(elements.numel())
    if elements[0].numel() > limit:
        generator = stream()
        device = torch.device("cpu") if generator is None else generator.device
        chosen = torch.randperm(elements.numel(), generator=generator, device=device)[: limit * batch].cpu()
    return by_position[:, positions.expand_as(elements).reshape(-1)[chosen]], elements.reshape(-1)[chosen]


_LIKELIHOODS: dict[str, type[Categorical | Bernoulli | Gaussian | HeteroscedasticGaussian]] = {
    kind.name: kind for kind in (Categorical, Bernoulli, Gaussian, HeteroscedasticGaussian)
}
