"""What a file answers for a batch: classes with their probabilities, conformal sets and uncertainty, or numbers."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nestling.errors import ArgumentError
from nestling.tables import text_table

UNCERTAINTIES = ("entropy", "aleatoric", "epistemic")
"""The outputs of a file that say how unsure it is."""


@dataclass(frozen=True, eq=False)
class Answers:
    """What a file answers for a batch; it prints as a table with one line per example.

    Attributes:
        outputs: The arrays of the file by name, each with the batch first.
        about: The record of the file: classes, thresholds, calibration.

    Examples:
        >>> answers = nl.runtime.open("digits.onnx").predict(data.test.inputs[:2].numpy())
        >>> len(answers), sorted(answers.uncertainty), answers["probs"].shape
        (2, ['entropy'], (2, 10))
        >>> print(answers)
        class  probability  entropy  set at 0.9
        ---------------------------------------
        ...
    """

    outputs: Mapping[str, np.ndarray]
    about: Mapping[str, Any] = field(repr=False)

    def __getitem__(self, name: str) -> np.ndarray:
        """An output by its name."""
        if name not in self.outputs:
            given, needed = repr(name), f"one of {', '.join(self.outputs)}"
            raise ArgumentError("output", given, needed, "See about['outputs'] of the open file.")
        return self.outputs[name]

    def __len__(self) -> int:
        return len(next(iter(self.outputs.values())))

    @property
    def probs(self) -> np.ndarray:
        """Probabilities (B, C), or (B, C, H, W) for masks."""
        return self["probs"]

    @property
    def labels(self) -> np.ndarray:
        """The numbers (B, ...) of the most probable classes."""
        labels: np.ndarray = self.probs.argmax(1)
        return labels

    @property
    def names(self) -> list[str]:
        """The name of each example's most probable class."""
        return [self._class_name(label) for label in self._per_example(self.labels).tolist()]

    @property
    def confidence(self) -> np.ndarray:
        """The probability (B, ...) of the most probable class."""
        confidence: np.ndarray = self.probs.max(1)
        return confidence

    @property
    def uncertainty(self) -> dict[str, np.ndarray]:
        """How unsure the network is, in nats: its entropy, and in a file with uncertainty the parts of it."""
        parts = {name: self.outputs[name] for name in UNCERTAINTIES if name in self.outputs}
        if not parts and "probs" in self.outputs:
            logs = np.log(self.probs, out=np.zeros_like(self.probs), where=self.probs > 0)
            return {"entropy": -(self.probs * logs).sum(1)}
        return parts

    def in_set(self, coverage: float = 0.9) -> np.ndarray:
        """Conformal sets (B, C, ...), true for each class in the set.

        Args:
            coverage: The share of sets that should contain the right class; one that the file was calibrated for.

        Returns:
            An array of booleans in the shape of the probabilities.

        Raises:
            ArgumentError: If the file has no threshold for this coverage.
        """
        inside: np.ndarray = 1 - self.probs <= self._threshold(coverage)
        return inside

    def sets(self, coverage: float = 0.9) -> list[tuple[str, ...]]:
        """The conformal set of each example by the names of its classes.

        Args:
            coverage: The share of sets that should contain the right class; one that the file was calibrated for.

        Returns:
            A tuple of names per example; it may be empty.

        Raises:
            ArgumentError: If the file has no threshold for this coverage, or answers about pixels.
        """
        self._per_example(self.labels)
        return [
            tuple(self._class_name(label) for label in np.flatnonzero(row).tolist()) for row in self.in_set(coverage)
        ]

    def interval(self, coverage: float = 0.9) -> tuple[np.ndarray, np.ndarray]:
        """The ends of the conformal interval of each number.

        Args:
            coverage: The share of intervals that should contain the right number; one that the file was calibrated for.

        Returns:
            The lower and the upper ends (B, D).

        Raises:
            ArgumentError: If the file has no threshold for this coverage.
        """
        reach = self._threshold(coverage) * self["std"]
        return self["mean"] - reach, self["mean"] + reach

    def __repr__(self) -> str:
        if "probs" in self.outputs and self.labels.ndim == 1:
            columns = self._columns()
            return text_table(list(columns), list(zip(*columns.values(), strict=True)), names=1)
        shapes = (f"{name} {array.shape}" for name, array in self.outputs.items())
        return f"Answers({', '.join(shapes)})"

    def _columns(self) -> dict[str, list[str]]:
        """The table that is printed, for one class per example."""
        columns = {"class": self.names, "probability": [f"{share:.4f}" for share in self.confidence]}
        columns |= {name: [f"{nats:.3g}" for nats in values] for name, values in self.uncertainty.items()}
        if self.about.get("thresholds"):
            coverage = min(map(float, self.about["thresholds"]), key=lambda known: abs(known - 0.9))
            columns[f"set at {coverage:g}"] = [", ".join(names) or "-" for names in self.sets(coverage)]
        return columns

    def _threshold(self, coverage: float) -> float:
        thresholds = {float(known): float(value) for known, value in (self.about.get("thresholds") or {}).items()}
        for known, threshold in thresholds.items():
            if math.isclose(known, coverage):
                return threshold
        needed = f"one that the file was calibrated for ({', '.join(map(str, thresholds)) or 'there is none'})"
        raise ArgumentError("coverage", coverage, needed, "Export with a calibration for it.")

    def _class_name(self, label: int) -> str:
        classes = self.about.get("classes") or ()
        return str(classes[label]) if label < len(classes) else str(label)

    def _per_example(self, labels: np.ndarray) -> np.ndarray:
        if labels.ndim != 1:
            given, needed = f"labels of shape {labels.shape}", "one class per example"
            raise ArgumentError("names", given, needed, "For masks use labels, confidence and in_set.")
        return labels
