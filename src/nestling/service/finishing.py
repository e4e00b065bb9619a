"""What a file answers, completed with what a service adds: calibrated probabilities, uncertainty, conformal sets."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from nestling.runtime import Answers
from nestling.service.width import Arrays, Width

IN_SET = "in_set"
"""The output that says which classes are in the conformal set."""
USUAL_COVERAGE = 0.9
"""Sets are for the coverage nearest to this."""


def finished(outputs: Arrays, width: Width, about: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The outputs of a width; where it has probabilities also the uncertainty, and the conformal sets if it has them.

    A temperature divides the logits. Outputs that a file computes with draws of weights have theirs in them already.
    """
    found = dict(outputs)
    if "probs" not in found:
        return found
    if width.temperature != 1 and "logits" in found:
        found["probs"] = softmax(found["logits"] / found["logits"].dtype.type(width.temperature))
    answers = Answers(found, {**about, "thresholds": width.thresholds})
    found |= {name: values.astype(found["probs"].dtype) for name, values in answers.uncertainty.items()}
    if width.thresholds:
        found[IN_SET] = answers.in_set(usual_coverage(width))
    return found


def usual_coverage(width: Width) -> float:
    """The coverage of the sets in the output ``in_set``."""
    return min(width.thresholds, key=lambda known: abs(known - USUAL_COVERAGE))


def softmax(logits: np.ndarray) -> np.ndarray:
    """Probabilities (B, C, ...) of logits."""
    powers = np.exp(logits - logits.max(1, keepdims=True))
    probs: np.ndarray = powers / powers.sum(1, keepdims=True)
    return probs
