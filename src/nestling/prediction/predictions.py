"""What ``predict`` gives: an averaged distribution for each example, and its uncertainty in two parts."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from nestling.errors import ArgumentError
from nestling.markup import bar, card, html, html_table
from nestling.prediction.uncertainty import entropy, mean_log_probs, normal_log_prob

MOST_SHOWN = 10
"""A notebook shows the answers to so many examples."""


@dataclass(frozen=True, eq=False)
class Prediction(ABC):
    """The predictive distribution of a batch of B examples, averaged over S weight samples.

    ``total`` uncertainty is the sum of two parts. ``aleatoric`` would remain if the weights were known; ``epistemic``
    is how far the weight samples disagree. Classes measure all three in nats, numbers as variances.

    Attributes:
        thresholds: The largest nonconformity within a conformal set, by coverage; empty without a calibration.

    Examples:
        >>> p = nl.predict(nested, images)
        >>> torch.allclose(p.total, p.aleatoric + p.epistemic, atol=1e-5), tuple(p.total.shape)
        (True, (100,))
    """

    thresholds: Mapping[float, float] = field(default_factory=dict, kw_only=True, repr=False)

    @property
    @abstractmethod
    def samples(self) -> Tensor | None:
        """The predictions (S, B, ...) of each weight sample, if they were kept."""

    @property
    @abstractmethod
    def total(self) -> Tensor:
        """All of the uncertainty."""

    @property
    @abstractmethod
    def aleatoric(self) -> Tensor:
        """The mean uncertainty of one weight sample."""

    @property
    @abstractmethod
    def epistemic(self) -> Tensor:
        """The disagreement between weight samples, never below zero; zero if nothing is drawn."""

    @abstractmethod
    def log_prob(self, target: Tensor) -> Tensor:
        """Log-probability of every element of a target under the averaged distribution.

        Args:
            target: Labels or numbers for the B examples, as the likelihood has them.

        Returns:
            A tensor in the target's shape, in nats.
        """

    @abstractmethod
    def nonconformity(self, target: Tensor) -> Tensor:
        """The nonconformity score of split-conformal prediction; the largest ones lie outside a set.

        Args:
            target: Labels or numbers for the B examples.

        Returns:
            A tensor in the target's shape.
        """

    @abstractmethod
    def set_size(self, coverage: float) -> Tensor:
        """The size of every conformal set: a number of classes, or the length of an interval."""

    @abstractmethod
    def unfamiliarity(self) -> dict[str, Tensor]:
        """Scores (B,) by name, high on out-of-distribution examples; the first is the one ``Scores.auroc`` reports."""

    def covers(self, target: Tensor, coverage: float) -> Tensor:
        """Whether every element of a target lies in its conformal set.

        Args:
            target: Labels or numbers for the B examples.
            coverage: The share of targets that sets should contain; one that was calibrated.

        Returns:
            Booleans in the target's shape.

        Raises:
            ArgumentError: If the prediction was made without a calibration for this coverage.

        Examples:
            >>> p = nl.predict(nested, images, calibration=run.calibration(1.0))
            >>> inside = p.covers(labels, 0.9)  # about 90 % of them
            >>> tuple(inside.shape), inside.dtype
            ((100,), torch.bool)
        """
        return self.nonconformity(target) <= self.threshold(coverage)

    def threshold(self, coverage: float) -> float:
        """The threshold that was calibrated for a coverage.

        Args:
            coverage: Such as 0.9.

        Returns:
            The largest nonconformity within a set.

        Raises:
            ArgumentError: If the prediction was made without a calibration for it.
        """
        for calibrated, threshold in self.thresholds.items():
            if math.isclose(calibrated, coverage):
                return threshold
        needed = f"one that was calibrated ({', '.join(map(str, self.thresholds)) or 'there is none'})"
        raise ArgumentError(
            "coverage", coverage, needed, "Fit calibrate(..., coverage=...) and pass it as predict(..., calibration=)."
        )


@dataclass(frozen=True, eq=False)
class ClassPrediction(Prediction):
    """Probabilities of C classes, for each example or for each of its positions; entropies are in nats.

    Attributes:
        log_probs: Logarithms of the mean probabilities (B, C, ...).
        expected_entropy: The mean entropy (B, ...) of one weight sample, which is the aleatoric part.
        sample_probs: Probabilities (S, B, C, ...) of each weight sample; None unless ``keep_samples`` asked for them.

    Examples:
        >>> p = nl.predict(nested, images, calibration=run.calibration(1.0), keep_samples=True)
        >>> tuple(p.probs.shape), tuple(p.samples.shape), tuple(p.labels.shape)
        ((100, 10), (6, 100, 10), (100,))
        >>> sets = p.sets(0.9)  # a row of booleans per example: the classes in its conformal set
        >>> torch.equal(p.set_size(0.9), sets.sum(1))
        True
    """

    log_probs: Tensor
    expected_entropy: Tensor = field(repr=False)
    sample_probs: Tensor | None = field(default=None, repr=False)

    @classmethod
    def from_logits(
        cls, logits: Tensor, *, thresholds: Mapping[float, float], keep_samples: bool = False
    ) -> "ClassPrediction":
        """Average the distributions of weight samples.

        Args:
            logits: Logits (S, B, C, ...), one set per weight sample; probabilities are averaged, and not logits.
            thresholds: Conformal thresholds by coverage; an empty dictionary without a calibration.
            keep_samples: Keep the probabilities of each sample too.

        Returns:
            The averaged prediction.

        Examples:
            >>> p = nl.prediction.ClassPrediction.from_logits(torch.zeros(6, 2, 4), thresholds={})
            >>> p.probs[0].tolist()
            [0.25, 0.25, 0.25, 0.25]
        """
        log_probs = logits.log_softmax(2)
        return cls(
            mean_log_probs(log_probs),
            entropy(log_probs, 2).mean(0),
            log_probs.exp() if keep_samples else None,
            thresholds=thresholds,
        )

    @property
    def probs(self) -> Tensor:
        """Mean probabilities (B, C, ...)."""
        return self.log_probs.exp()

    @property
    def samples(self) -> Tensor | None:
        """Probabilities (S, B, C, ...) of each weight sample, if they were kept."""
        return self.sample_probs

    @property
    def labels(self) -> Tensor:
        """The most probable class (B, ...)."""
        return self.log_probs.argmax(1)

    @property
    def confidence(self) -> Tensor:
        """The probability (B, ...) of the most probable class."""
        return self.log_probs.amax(1).exp()

    @property
    def entropy(self) -> Tensor:
        """Entropy (B, ...) of the mean probabilities."""
        return entropy(self.log_probs, 1)

    @property
    def total(self) -> Tensor:
        """All of the uncertainty: the entropy."""
        return self.entropy

    @property
    def aleatoric(self) -> Tensor:
        """The mean entropy of one weight sample."""
        return self.expected_entropy

    @property
    def epistemic(self) -> Tensor:
        """The mutual information between label and weights."""
        return (self.entropy - self.expected_entropy).clamp_min(0)

    def sets(self, coverage: float = 0.9) -> Tensor:
        """Conformal sets: the classes that can't be ruled out.

        Args:
            coverage: The share of examples whose set should contain the right class; one that was calibrated.

        Returns:
            Booleans (B, C, ...), true for each class in a set. A set may be empty: then no class seems likely enough.

        Raises:
            ArgumentError: If the prediction was made without a calibration for this coverage.
        """
        return 1 - self.probs <= self.threshold(coverage)

    def log_prob(self, target: Tensor) -> Tensor:
        """Log-probability of labels (B, ...), or of those of each rater (B, R, ...)."""
        return class_log_prob(self.log_probs, target)

    def nonconformity(self, target: Tensor) -> Tensor:
        """One minus the probability of the label (LAC: Sadinle, Lei and Wasserman 2019), which gives small sets."""
        return 1 - self.log_prob(target).exp()

    def set_size(self, coverage: float) -> Tensor:
        """The number of classes in every set."""
        return self.sets(coverage).sum(1)

    def _repr_html_(self) -> str:
        if self.labels.ndim > 1:
            shape = " x ".join(map(str, self.labels.shape[1:]))
            return _card(self, "answer", [f"{shape} labels"] * len(self.labels))
        first = range(min(MOST_SHOWN, len(self.labels)))
        shares = [float(self.confidence[number]) for number in first]
        answers = [html(f"class {int(self.labels[n])} ", bar(share), f" {share:.1%}") for n, share in enumerate(shares)]
        return _card(self, "answer", answers)

    def unfamiliarity(self) -> dict[str, Tensor]:
        """Entropy, mutual information, and -log p of the top class, which ranks as 1 - p does and never saturates."""
        scores = {
            "entropy": self.entropy,
            "mutual_information": self.epistemic,
            "max_probability": -self.log_probs.amax(1),
        }
        return {name: _per_example(score) for name, score in scores.items()}


@dataclass(frozen=True, eq=False)
class RegressionPrediction(Prediction):
    """A mixture of one Gaussian per weight sample, with equal weights; uncertainties are variances (B, ...).

    All values are in the units of the targets.

    Attributes:
        sample_means: The mean (S, B, ...) of each weight sample.
        sample_log_variances: The logarithm of the noise's variance, in the same shape.
        keep_samples: Whether ``samples`` gives the means; otherwise it is None.

    Examples:
        >>> linear = torch.nn.Linear(3, 1)
        >>> p = nl.predict(linear, torch.zeros(5, 3), likelihood=nl.prediction.Gaussian(std=2.0))
        >>> tuple(p.mean.shape), p.std[0].item(), p.epistemic.max().item()
        ((5, 1), 2.0, 0.0)
    """

    sample_means: Tensor = field(repr=False)
    sample_log_variances: Tensor = field(repr=False)
    keep_samples: bool = field(default=False, repr=False)

    @property
    def mean(self) -> Tensor:
        """The mean (B, ...) of the mixture."""
        return self.sample_means.mean(0)

    @property
    def variance(self) -> Tensor:
        """The variance of the mixture, by the law of total variance."""
        return self.aleatoric + self.epistemic

    @property
    def std(self) -> Tensor:
        """The standard deviation of the mixture."""
        return self.variance.sqrt()

    @property
    def samples(self) -> Tensor | None:
        """The means (S, B, ...) of each weight sample, if they were kept."""
        return self.sample_means if self.keep_samples else None

    @property
    def total(self) -> Tensor:
        """All of the uncertainty: the variance."""
        return self.variance

    @property
    def aleatoric(self) -> Tensor:
        """The variance of the noise, averaged over the weight samples."""
        return self.sample_log_variances.exp().mean(0)

    @property
    def epistemic(self) -> Tensor:
        """The variance of the means over the weight samples."""
        return self.sample_means.var(0, correction=0)

    def interval(self, coverage: float = 0.9) -> tuple[Tensor, Tensor]:
        """The ends of the conformal interval, which is symmetric around the mean.

        Args:
            coverage: The share of targets that intervals should contain; one that was calibrated.

        Returns:
            The lower and the upper ends, each (B, ...).

        Raises:
            ArgumentError: If the prediction was made without a calibration for this coverage.
        """
        reach = self.threshold(coverage) * self.std
        return self.mean - reach, self.mean + reach

    def log_prob(self, target: Tensor) -> Tensor:
        """Log-density of the mixture at every number of a target (B, ...)."""
        return mean_log_probs(normal_log_prob(target, self.sample_means, self.sample_log_variances))

    def nonconformity(self, target: Tensor) -> Tensor:
        """The distance from the mean in standard deviations."""
        return (target - self.mean).abs() / self.std

    def set_size(self, coverage: float) -> Tensor:
        """The length of every interval."""
        return 2 * self.threshold(coverage) * self.std

    def _repr_html_(self) -> str:
        both = zip(self.mean[:MOST_SHOWN].flatten(1), self.std[:MOST_SHOWN].flatten(1), strict=True)
        answers = [", ".join(f"{m:.4g} ± {s:.2g}" for m, s in zip(*pair, strict=True)) for pair in both]
        return _card(self, "mean ± std", answers)

    def unfamiliarity(self) -> dict[str, Tensor]:
        """The variance, and the part of it that comes from disagreement between weight samples."""
        return {"variance": _per_example(self.variance), "epistemic_variance": _per_example(self.epistemic)}


def class_log_prob(log_probs: Tensor, target: Tensor) -> Tensor:
    """Entries of log-probabilities (B, C, ...) at labels (B, ...), or at the labels of each rater (B, R, ...)."""
    index = target.long()
    if target.ndim == log_probs.ndim:
        return log_probs.gather(1, index)
    return log_probs.gather(1, index.unsqueeze(1)).squeeze(1)


def _card(prediction: Prediction, name: str, answers: Sequence[str]) -> str:
    """What a notebook shows: the first answers, with the uncertainty of each."""
    parts = prediction.total, prediction.aleatoric, prediction.epistemic
    columns = [_per_example(values).tolist() for values in parts]
    rows = [
        [str(number), answer, *(f"{column[number]:.4g}" for column in columns)]
        for number, answer in enumerate(answers[:MOST_SHOWN])
    ]
    header = ["example", name, "uncertainty", "aleatoric", "epistemic"]
    count = len(columns[0])
    line = f"{count:,} examples" + (f", the first {MOST_SHOWN} shown" if count > MOST_SHOWN else "")
    return card(type(prediction).__name__, line, html_table(header, rows, names=2, styled=True))


def _per_example(values: Tensor) -> Tensor:
    """The mean over the positions of each example."""
    return values if values.ndim == 1 else values.flatten(1).mean(1)


NO_THRESHOLDS: Mapping[float, float] = {}
"""The thresholds of a prediction without a calibration."""
