"""Likelihoods of classes, of examples or of their positions: categorical, and one logit."""

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor

from nestling.distributions import random_signs
from nestling.errors import ArgumentError, DtypeError, RangeError, ShapeError
from nestling.prediction.likelihood import Likelihood, by_position, check_ndim, chosen_elements
from nestling.prediction.predictions import NO_THRESHOLDS, ClassPrediction, class_log_prob
from nestling.prediction.tallies import ClassTally, Tally
from nestling.running.moments import Direction
from nestling.tensor_arguments import whole_tensor


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
        if isinstance(target, Tensor) and target.is_floating_point():
            advice = "Convert classes with .long(), or pass likelihood='gaussian' for numbers."
            raise DtypeError("target", f"a tensor of {target.dtype}", f"of whole numbers for {self.name}", advice)
        if target.dtype != torch.bool:
            whole_tensor("target", target)
        self._check_shapes(output, target)
        num_classes = self.class_logits(output[:1], 1).shape[1]
        if num_classes < 2:
            advice = "Train on two classes or more; a network with one logit for two takes likelihood='bernoulli'."
            raise ShapeError("output", f"shape {tuple(output.shape)}", "two classes or more on axis 1", advice)
        low, high = (int(end) for end in target.aminmax()) if target.numel() else (0, 0)
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
        check_ndim(outputs[0], 2, self.name)
        logits = self.class_logits(outputs, 2) / temperature
        return ClassPrediction.from_logits(logits, thresholds=thresholds, keep_samples=keep_samples)

    def answers(self, output: Tensor, temperature: float | Tensor) -> dict[str, Tensor]:
        """The probabilities ``probs`` (B, C, ...) of all classes, and the ``logits`` as the network gives them."""
        check_ndim(output, 2, self.name)
        return {"probs": (self.class_logits(output, 1) / temperature).softmax(1), "logits": output}

    def tally(self, num_bins: int, temperature: float, thresholds: Mapping[float, float]) -> Tally:
        """The running sums for the scores of a data set with labels."""
        predictive = partial(self.predictive, temperature=temperature, thresholds=thresholds, keep_samples=True)
        return ClassTally(predictive, num_bins)

    def rows(self, outputs: Tensor, target: Tensor, limit: int) -> tuple[Tensor, Tensor]:
        """Some positions of every example, each with the label of one rater."""
        at_positions = by_position(outputs, self.num_outputs(outputs[0]))
        positions = torch.arange(at_positions.shape[1]).view(len(target), 1, -1)
        labels = target.reshape(len(target), -1, positions.shape[2])
        chosen = chosen_elements(labels.numel(), labels[0].numel(), limit)
        return at_positions[:, positions.expand_as(labels).reshape(-1)[chosen]], labels.reshape(-1)[chosen]

    def _check_shapes(self, output: Tensor, target: Tensor) -> None:
        check_ndim(output, 2, self.name)
        batch, positions, shape = output.shape[0], tuple(output.shape[2:]), tuple(target.shape)
        rated = bool(positions) and len(shape) == output.ndim and (shape[0], *shape[2:]) == (batch, *positions)
        fits = shape == (batch, *positions) or rated
        if not fits or output.shape[1] != self.num_outputs(output):
            raters = f", or ({batch}, raters, {', '.join(map(str, positions))})" if positions else ""
            needed = f"of shape {(batch, *positions)}{raters} beside an output of shape {tuple(output.shape)}"
            advice = "A label is the number of a class, not a row of ones and zeros; classes are axis 1 of the output."
            raise ShapeError("target", f"shape {shape}", needed, advice)


class Categorical(_Classes):
    """One of C classes: logits (B, C) with labels (B,), or logits (B, C, H, W) with labels (B, H, W).

    Masks by R raters are labels (B, R, H, W).

    Examples:
        >>> likelihood = nl.prediction.Categorical()
        >>> likelihood.log_prob(torch.tensor([[0.0, 0.0]]), torch.tensor([1])).exp().item()
        0.5
    """

    name = "categorical"

    def class_logits(self, output: Tensor, axis: int) -> Tensor:
        """The output itself."""
        return output

    def num_outputs(self, output: Tensor) -> int:
        """One per class."""
        return output.shape[1]

    def direction(self, output: Tensor, signs: Callable[[Tensor], Tensor] = random_signs) -> Direction:
        """The gradient of the likeliest class's log-odds; with several positions, each has a random sign."""
        if output.ndim < 2 or output.shape[1] < 2:
            return super().direction(output, signs)
        top = output.argmax(1, keepdim=True)
        slope = output.scatter(1, top, -torch.inf).softmax(1).neg_().scatter_(1, top, 1.0)
        several = math.prod(output.shape[2:]) > 1
        return Direction(slope.mul_(signs(top.to(slope))) if several else slope, random=several)


class Bernoulli(_Classes):
    """One logit (B, 1, ...) of class 1 against class 0, with labels as for ``Categorical``.

    Examples:
        >>> likelihood = nl.prediction.Bernoulli()
        >>> likelihood.log_prob(torch.tensor([[0.0]]), torch.tensor([1])).exp().item(), likelihood.outputs_for(2)
        (0.5, 1)
    """

    name = "bernoulli"

    def class_logits(self, output: Tensor, axis: int) -> Tensor:
        """The logit beside a zero: its softmax is the sigmoid."""
        return torch.cat((torch.zeros_like(output), output), axis)

    def num_outputs(self, output: Tensor) -> int:
        """One."""
        return 1

    def outputs_for(self, size: int) -> int:
        """One, for two classes."""
        if size != 2:
            given, needed = f"bernoulli for {size} classes", "categorical for more than two classes"
            raise ArgumentError("likelihood", given, needed, "One logit tells two classes apart.")
        return 1
