"""Likelihoods of numbers: Gaussian noise that is the same for all inputs, or that the network says."""

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from nestling.arguments import finite_number, positive_number
from nestling.data import mean_and_std
from nestling.errors import ArgumentError, ShapeError
from nestling.prediction.likelihood import Likelihood, by_position, check_ndim, chosen_elements
from nestling.prediction.predictions import NO_THRESHOLDS, RegressionPrediction
from nestling.prediction.tallies import RegressionTally, Tally
from nestling.prediction.uncertainty import normal_log_prob
from nestling.tensor_arguments import floating_tensor, real_tensor

LOG_VARIANCE_LIMIT = 12.0
"""Learned log-variances stay between minus and plus this limit: noise from 0.0025 to 400 times the targets' scale."""


class _Normal(Likelihood):
    """Numbers with Gaussian noise, which a network gives in units of its targets: ``center`` + ``scale`` * output.

    So the network learns numbers around zero, whatever the targets are, and every answer is in the targets' own units.
    ``center`` and ``scale`` have one entry per number of a target (axis 1 of targets (B, D, ...)) or one for all;
    ``fitted`` makes them the mean and the standard deviation of targets. They stay in double precision.
    """

    targets = "numbers"
    num_outputs: ClassVar[int]

    def __init__(
        self, center: float | Sequence[float] | None = None, scale: float | Sequence[float] | None = None
    ) -> None:
        super().__init__()
        self.needs_targets = center is None and scale is None
        centers = _numbers("center", 0.0 if center is None else center)
        scales = _numbers("scale", 1.0 if scale is None else scale)
        size = max(len(centers), len(scales))
        if {len(centers), len(scales)} - {1, size}:
            raise ArgumentError("scale", f"{len(scales)} numbers", f"as many as center has, {len(centers)}", "Or one.")
        self.center, self.scale = centers.expand(size), _positive("scale", scales).expand(size)

    @abstractmethod
    def raw_moments(self, output: Tensor, axis: int) -> tuple[Tensor, Tensor]:
        """Mean and log-variance of every number in units of ``scale``; ``axis`` is the one after the batch axis."""

    def moments(self, output: Tensor, axis: int) -> tuple[Tensor, Tensor]:
        """Mean and log-variance of every number, in the units of the targets."""
        mean, log_variance = self.raw_moments(output, axis)
        scale = _along(self.scale, mean, axis)
        return _along(self.center, mean, axis) + scale * mean, log_variance + 2 * scale.log()

    def log_prob(self, output: Tensor, target: Tensor) -> Tensor:
        """Log-density at every number of a target."""
        mean, log_variance = self._checked(output, target)
        center, scale = (_along(values, target, 1) for values in (self.center, self.scale))
        return normal_log_prob((target - center) / scale, mean, log_variance) - scale.log()

    def check(self, output: Tensor, target: Tensor) -> None:
        """Raise if targets are not finite numbers of the right shape."""
        real_tensor("target", target)
        self._checked(output, target)

    @torch.no_grad()
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

    def answers(self, output: Tensor, temperature: float | Tensor) -> dict[str, Tensor]:
        """The ``mean`` and the standard deviation ``std`` of every number, in the units of the targets."""
        mean, log_variance = self.moments(output, 1)
        return {"mean": mean, "std": (log_variance / 2).exp() * temperature**0.5}

    def tally(self, num_bins: int, temperature: float, thresholds: Mapping[float, float]) -> Tally:
        """The running sums for the scores of a data set with numbers as targets."""
        return RegressionTally(partial(self.predictive, temperature=temperature, thresholds=thresholds), num_bins)

    def rows(self, outputs: Tensor, target: Tensor, limit: int) -> tuple[Tensor, Tensor]:
        """Some positions of every example, with all numbers at each."""
        at_positions = by_position(outputs, math.prod(outputs.shape[2:3]))
        numbers = by_position(target.unsqueeze(0), math.prod(target.shape[1:2]))[0]
        chosen = chosen_elements(len(numbers), len(numbers) // len(target), limit)
        return at_positions[:, chosen], numbers[chosen]

    def fitted(self, targets: Tensor) -> Self:
        """A new likelihood of this kind with the mean and standard deviation of targets (N, D, ...) or (N,)."""
        rows = floating_tensor("target", targets).detach().cpu()
        finite = rows[rows.isfinite().flatten(1).all(1)] if rows.ndim > 1 else rows[rows.isfinite()].unsqueeze(1)
        if not len(finite):
            raise ArgumentError("target", f"shape {tuple(rows.shape)}", "some finite numbers", "Check the data.")
        center, scale = mean_and_std(finite)
        return type(self)(**self._options() | {"center": center, "scale": scale})

    def to_dict(self) -> dict[str, Any]:
        """Its name and options as plain values for JSON, without learned parameters."""
        return {"name": self.name, **self._options()}

    def is_like(self, saved: Mapping[str, Any]) -> bool:
        """Whether ``saved``, from ``to_dict``, describes a likelihood for as many numbers and with such noise."""
        same_size = len(_numbers("center", saved.get("center", 0.0))) == len(self.center)
        return super().is_like(saved) and same_size and saved.get("std") == self._options().get("std")

    def outputs_for(self, size: int) -> int:
        """One for each number, or two."""
        return self.num_outputs * size

    def get_extra_state(self) -> Tensor:
        """Center and scale (2, D), which are saved with the parameters."""
        return torch.stack((self.center, self.scale))

    def set_extra_state(self, state: Tensor) -> None:
        """Take the center and scale that were saved."""
        center, scale = real_tensor("center and scale", state).double().cpu()
        self.center, self.scale = center, _positive("scale", scale)

    def extra_repr(self) -> str:
        """The options, for ``print``."""
        return ", ".join(f"{name}={value}" for name, value in self._options().items())

    def _options(self) -> dict[str, Any]:
        if self.needs_targets:
            return {}
        return {"center": self.center.tolist(), "scale": self.scale.tolist()}

    def _checked(self, output: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        floating_tensor("target", target)
        mean, log_variance = self.raw_moments(output, 1)
        if target.shape != mean.shape:
            needed = f"of shape {tuple(mean.shape)} beside an output of shape {tuple(output.shape)}"
            raise ShapeError("target", f"shape {tuple(target.shape)}", needed, self._advice(output, target))
        return mean, log_variance

    def _advice(self, output: Tensor, target: Tensor) -> str:
        """What to do about a target that does not fit an output."""
        return "Reshape it, as with y.unsqueeze(1)."


class Gaussian(_Normal):
    """The output is the mean; the noise is the same for all inputs, learned for each number or fixed.

    The network gives numbers around zero: the mean in the targets' units is ``center + scale * output``.

    Args:
        std: Standard deviation of the noise in the targets' units, for each number or one for all; None learns it.
        center: Mean of the targets, for each number or one for all; None takes it from the training data.
        scale: Standard deviation of the targets, in the same way.

    Raises:
        ArgumentError: If a number is not finite, a deviation is not positive, or their counts differ.

    Examples:
        >>> prices = 500 + 100 * torch.randn(300, 1)
        >>> likelihood = nl.prediction.Gaussian().fitted(prices)  # what nl.train does by itself
        >>> 450 < likelihood.center.item() < 550, 80 < likelihood.scale.item() < 120
        (True, True)
    """

    name = "gaussian"
    num_outputs = 1

    def __init__(
        self,
        std: float | Sequence[float] | None = None,
        center: float | Sequence[float] | None = None,
        scale: float | Sequence[float] | None = None,
    ) -> None:
        super().__init__(center, scale)
        self.std = None if std is None else _positive("std", _numbers("std", std))
        self.log_variance = nn.Parameter(torch.zeros(len(self.center))) if std is None else None

    def raw_moments(self, output: Tensor, axis: int) -> tuple[Tensor, Tensor]:
        """The output, and the logarithm of the noise's variance."""
        if self.log_variance is not None:
            log_variance = _bounded(self.log_variance)
        else:
            assert self.std is not None
            log_variance = 2 * (self.std / self.scale).log()
        return output, _along(log_variance, output, axis).expand_as(output)

    @torch.no_grad()
    def settled(self) -> "Gaussian":
        """The same likelihood with the noise that was learned as its fixed noise."""
        if self.log_variance is None:
            return self
        noise = self.scale * (_bounded(self.log_variance.double().cpu()) / 2).exp()
        return Gaussian(noise.tolist(), self.center.tolist(), self.scale.tolist())

    def _options(self) -> dict[str, Any]:
        return super()._options() | {"std": None if self.std is None else self.std.tolist()}

    def _advice(self, output: Tensor, target: Tensor) -> str:
        if output.ndim > 1 and (output.shape[0], output.shape[1] // 2, *output.shape[2:]) == target.shape:
            return (
                "Choose likelihood='heteroscedastic_gaussian' if the outputs are means and then log-variances; else "
                "give the network one output per number of a target."
            )
        return super()._advice(output, target)


class HeteroscedasticGaussian(_Normal):
    """The network says the noise of each input: its output (B, 2 D, ...) is D means and then D log-variances.

    Log-variances are limited smoothly to plus and minus 12, which is noise from 0.0025 to 400 times the targets' scale.

    Args:
        center: Mean of the targets, for each number or one for all; None takes it from the training data.
        scale: Standard deviation of the targets, in the same way.

    Raises:
        ShapeError: On use, if the output has an odd number of entries per example.

    Examples:
        >>> likelihood = nl.prediction.HeteroscedasticGaussian(center=5.0, scale=2.0)
        >>> mean, log_variance = likelihood.moments(torch.zeros(4, 2), axis=1)
        >>> mean[0].item(), round(log_variance[0].exp().item(), 3)
        (5.0, 4.0)
    """

    name = "heteroscedastic_gaussian"
    num_outputs = 2

    def raw_moments(self, output: Tensor, axis: int) -> tuple[Tensor, Tensor]:
        """The halves of the output; near zero the second is the log-variance itself, up to e^-12."""
        check_ndim(output, axis + 1, self.name)
        if output.shape[axis] % 2:
            needed = "an even number of entries per example: means, then log-variances"
            raise ShapeError("output", f"shape {tuple(output.shape)}", needed, _DOUBLE)
        mean, raw = output.chunk(2, axis)
        return mean, _bounded(raw)

    def _advice(self, output: Tensor, target: Tensor) -> str:
        return _DOUBLE if output.shape == target.shape else super()._advice(output, target)


_DOUBLE = "Double the last layer's outputs, or choose likelihood='gaussian', whose noise is the same for all inputs."


def _bounded(raw: Tensor) -> Tensor:
    """A log-variance within plus or minus ``LOG_VARIANCE_LIMIT``; near zero it is ``raw`` itself, up to e^-12."""
    below = LOG_VARIANCE_LIMIT - softplus(LOG_VARIANCE_LIMIT - raw)
    return softplus(below + LOG_VARIANCE_LIMIT) - LOG_VARIANCE_LIMIT


def _numbers(name: str, values: float | Sequence[float]) -> Tensor:
    """One number, or one for each number of a target, as a tensor (D,) in double precision."""
    listed: Sequence[Any] = values if isinstance(values, tuple | list) else [values]
    if not listed:
        raise ArgumentError(name, "no number", "a number, or one for each number of a target", "Pass a float.")
    return torch.tensor([finite_number(name, value) for value in listed], dtype=torch.float64)


def _positive(name: str, values: Tensor) -> Tensor:
    for value in values.tolist():
        positive_number(name, value)
    return values


def _along(values: Tensor, like: Tensor, axis: int) -> Tensor:
    """Values (D,) with the dtype and device of a tensor, laid along one of its axes; one value goes with all."""
    if len(values) == 1:
        return values[0].to(like)
    if like.ndim <= axis or like.shape[axis] != len(values):
        given, needed = f"shape {tuple(like.shape)}", f"with {len(values)} numbers along axis {axis}"
        raise ShapeError("output", given, needed, "The likelihood was fitted to targets with so many numbers.")
    return values.to(like).view(-1, *[1] * (like.ndim - axis - 1))
