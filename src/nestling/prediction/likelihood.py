"""What every likelihood has: the distribution of a target, given a network's output."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from nestling.distributions import Learned, random_signs, stream
from nestling.errors import ShapeError
from nestling.prediction.predictions import NO_THRESHOLDS, Prediction
from nestling.prediction.tallies import Tally
from nestling.running.moments import Direction


class Likelihood(Learned, ABC):
    """The distribution p(target | output), in which the elements of a target are independent of each other.

    It is a module, because it may have parameters of its own: ``nested.likelihood`` is trained and saved with the
    network. A likelihood of your own has the abstract methods, and ``LIKELIHOODS`` finds it by its ``name``.

    Attributes:
        name: What ``likelihood=`` takes for it.

    Examples:
        >>> nested.likelihood.name, nested.likelihood.targets
        ('categorical', 'classes')
        >>> nested.likelihood.nll(torch.zeros(4, 10), torch.tensor([0, 1, 2, 3])).item()  # log(10)
        2.302...
    """

    name: ClassVar[str]
    targets: ClassVar[str] = "classes"
    """What it says something about: classes or numbers."""
    needs_targets: bool = False
    """Whether ``fitted`` should be called before training, with the targets of the training data."""

    def to_dict(self) -> dict[str, Any]:
        """Its name and options as plain values for JSON, without learned parameters."""
        return {"name": self.name}

    def is_like(self, saved: Mapping[str, Any]) -> bool:
        """Whether a saved description has parameters of the same names and shapes.

        Args:
            saved: What ``to_dict`` gave.

        Returns:
            True if a state of the one can be loaded into the other.
        """
        return self.name == saved.get("name")

    def fitted(self, targets: Tensor) -> "Likelihood":
        """A likelihood whose scale is that of some targets, and which begins to learn anew; classes have no scale.

        Args:
            targets: Those of the training data (N, ...).

        Returns:
            A new likelihood, or this one.
        """
        return self

    def settled(self) -> "Likelihood":
        """The same distribution with nothing left to learn, all of which ``to_dict`` describes."""
        return self

    def outputs_for(self, size: int) -> int:
        """How many outputs a network needs.

        Args:
            size: The number of classes, or of numbers per target.

        Returns:
            The number of outputs of its last layer.

        Raises:
            ArgumentError: If the likelihood does not go with so many classes.
        """
        return size

    @abstractmethod
    def log_prob(self, output: Tensor, target: Tensor) -> Tensor:
        """Log-probability of every element of a target, differentiable with respect to the output.

        Args:
            output: What the network gives for B examples.
            target: Their targets.

        Returns:
            A tensor in the target's shape, in nats.
        """

    @abstractmethod
    def check(self, output: Tensor, target: Tensor) -> None:
        """Raise if targets don't fit an output.

        Args:
            output: What the network gives for B examples.
            target: Their targets.

        Raises:
            ArgumentError: If the shape, dtype or values of the target don't fit.
        """

    @abstractmethod
    def predictive(
        self,
        outputs: Tensor,
        *,
        temperature: float = 1.0,
        thresholds: Mapping[float, float] = NO_THRESHOLDS,
        keep_samples: bool = False,
    ) -> Prediction:
        """Average the distributions of several weight samples.

        Args:
            outputs: Outputs (S, B, ...), one set per weight sample.
            temperature: Each distribution is raised to the power 1 / temperature.
            thresholds: Conformal thresholds by coverage.
            keep_samples: Keep the prediction of each sample too.

        Returns:
            The prediction.
        """

    @abstractmethod
    def answers(self, output: Tensor, temperature: float | Tensor) -> dict[str, Tensor]:
        """The distribution of one output (B, ...), raised to the power 1 / temperature, as a file gives it: by name."""

    @abstractmethod
    def tally(self, num_bins: int, temperature: float, thresholds: Mapping[float, float]) -> Tally:
        """The running sums for the scores of a data set."""

    @abstractmethod
    def rows(self, outputs: Tensor, target: Tensor, limit: int) -> tuple[Tensor, Tensor]:
        """Elements as separate examples, chosen at random where there are many.

        Args:
            outputs: Outputs (S, B, ...).
            target: Their targets (B, ...).
            limit: At most so many per example.

        Returns:
            Outputs (S, n, ...) and targets (n, ...).
        """

    def direction(self, output: Tensor, signs: Callable[[Tensor], Tensor] = random_signs) -> Direction:
        """The direction in which a change of an output matters most: each number by itself, with a random sign.

        ``signs`` gives a sign for each element of a tensor.
        """
        return Direction(signs(output), random=math.prod(output.shape[1:]) > 1)

    def nll(self, output: Tensor, target: Tensor) -> Tensor:
        """Mean over every labelled element of -log p(target | output), in nats."""
        return -self.log_prob(output, target).mean()

    def score(self, output: Tensor, target: Tensor) -> Tensor:
        """The quantity that a search maximises, by default the log-probability.

        Args:
            output: What the network gives for B examples.
            target: Their targets.

        Returns:
            A value for every element of the target.
        """
        return self.log_prob(output, target)

    def elements(self, target: Tensor) -> int:
        """How many labelled elements an example has: 1 for a class, H * W for pixels, D for D numbers."""
        return math.prod(target.shape[1:])


def check_ndim(output: Tensor, least: int, name: str) -> None:
    """Raise if an output has fewer axes than a likelihood needs."""
    if output.ndim < least:
        needed = f"at least {least}-dimensional for the {name} likelihood, the batch first"
        raise ShapeError("output", f"shape {tuple(output.shape)}", needed, "Check the network's output for a batch.")


def by_position(outputs: Tensor, num_outputs: int) -> Tensor:
    """Outputs (S, B, num_outputs, ...) as one example per position: (S, n, num_outputs)."""
    num_samples, batch = outputs.shape[:2]
    return outputs.reshape(num_samples, batch, num_outputs, -1).movedim(2, 3).flatten(1, 2)


def chosen_elements(number: int, per_example: int, limit: int) -> Tensor:
    """The numbers of ``number`` elements, or of a random choice of them if there are more than ``limit`` an example."""
    if per_example <= limit:
        return torch.arange(number)
    generator = stream()
    device = torch.device("cpu") if generator is None else generator.device
    return torch.randperm(number, generator=generator, device=device)[: limit * (number // per_example)].cpu()
