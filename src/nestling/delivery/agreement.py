"""How far the answers of a quantised file are from those of the file in float."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from nestling.errors import ArgumentError, NonFiniteError
from nestling.runtime import Session

PROBABILITIES = "probs"
"""The output that has a probability per class."""


@dataclass(frozen=True)
class Agreement:
    """How far the answers of a quantised file are from those of the file in float.

    Attributes:
        num_examples: The held-out examples that both files answered.
        same_class: The share of examples that keep their class, or of pixels for masks; None for a file without
            classes.
        largest: The largest difference of an entry, for each output of real numbers.

    Examples:
        >>> print(nl.delivery.Agreement(64, 0.984375, {"probs": 0.021}))
        of 64 held-out examples 98.44% keep their class, largest differences: probs 0.021
    """

    num_examples: int
    same_class: float | None
    largest: Mapping[str, float]

    def __str__(self) -> str:
        kept = "" if self.same_class is None else f"{self.same_class:.2%} keep their class, "
        gaps = ", ".join(f"{name} {gap:.2g}" for name, gap in self.largest.items())
        return f"of {self.num_examples} held-out examples {kept}largest differences: {gaps}"


def agreement_of(float_file: Session, quantised: Session, batches: Iterable[Mapping[str, np.ndarray]]) -> Agreement:
    """Compare two open files with the same inputs and outputs on batches of examples.

    Raises:
        ArgumentError: if there is no batch.
        NonFiniteError: if the quantised file gives NaN or infinity.
    """
    largest: dict[str, float] = {}
    count, same = 0, 0.0
    for batch in batches:
        expected, answers = float_file.run(batch), quantised.run(batch)
        real = [name for name, array in expected.items() if array.dtype.kind == "f"]
        for name in real:
            if not np.isfinite(answers[name]).all():
                raise NonFiniteError(name, "NaN or infinity from the quantised file", "finite", "Leave it in float.")
            largest[name] = max(largest.get(name, 0.0), float(np.abs(expected[name] - answers[name]).max()))
        size = len(next(iter(batch.values())))
        count += size
        if PROBABILITIES in real:
            classes = expected[PROBABILITIES].argmax(1) == answers[PROBABILITIES].argmax(1)
            same += size * float(classes.mean())
    if not count:
        raise ArgumentError("held_out", "no batch", "at least one batch of real inputs", "Pass validation data.")
    return Agreement(count, same / count if PROBABILITIES in largest else None, largest)
