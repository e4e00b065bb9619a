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
        """Whether ``saved``, from ``to_dict``, describes a likelihood with parameters of the same names and shapes."""
        return self.name == saved.get("name")

    def fitted(self, targets: Tensor) -> "Likelihood":
        """A likelihood whose scale is that of these targets (N, ...), which begins to learn anew; classes have none."""
        return self

    def settled(self) -> "Likelihood":
        """The same distribution with nothing left to learn, all of which ``to_dict`` describes."""
        return self

    def outputs_for(self, size: int) -> int:
        """How many outputs a network needs for so many classes, or for so many numbers per target."""
        return size

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
    def answers(self, output: Tensor, temperature: float | Tensor) -> dict[str, Tensor]:
        """The distribution of one output (B, ...), raised to the power 1 / temperature, as a file gives it: by name."""

    @abstractmethod
    def tally(self, num_bins: int, temperature: float, thresholds: Mapping[float, float]) -> Tally:
        """The running sums for the scores of a data set."""

    @abstractmethod
    def rows(self, outputs: Tensor, target: Tensor, limit: int) -> tuple[Tensor, Tensor]:
        """Elements as separate examples, at most ``limit`` per example, chosen at random."""

    def direction(self, output: Tensor, signs: Callable[[Tensor], Tensor] = random_signs) -> Direction:
        """The direction in which a change of an output matters most: each number by itself, with a random sign.

        ``signs`` gives a sign for each element of a tensor.
        """
        return Direction(signs(output), random=math.prod(output.shape[1:]) > 1)

    def nll(self, output: Tensor, target: Tensor) -> Tensor:
        """Mean over every labelled element of -log p(target | output), in nats."""
        return -self.log_prob(output, target).mean()

    def score(self, output: Tensor, target: Tensor) -> Tensor:
        """The quantity that a search maximises, for every element: by default its log-probability."""
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
