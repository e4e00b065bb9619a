"""What a file answers, completed with what a service adds: calibrated probabilities, uncertainty, conformal sets."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from nestling.runtime import Answers
from nestling.service.width import Arrays, Calibrated

IN_SET = "in_set"
"""The output that says which classes are in the conformal set."""
USUAL_COVERAGE = 0.9
"""Sets are for the coverage nearest to this."""


def finished(outputs: Arrays, calibrated: Calibrated, about: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The outputs of a width; with probabilities also their uncertainty, and conformal sets if there are thresholds."""
    found = dict(outputs)
    if "probs" not in found:
        return found
    if calibrated.temperature != 1 and "logits" in found:
        found["probs"] = _softmax(found["logits"] / found["logits"].dtype.type(calibrated.temperature))
    answers = Answers(found, {**about, "thresholds": calibrated.thresholds})
    found |= {name: values.astype(found["probs"].dtype) for name, values in answers.uncertainty.items()}
    if calibrated.thresholds:
        usual = min(calibrated.thresholds, key=lambda known: abs(known - USUAL_COVERAGE))
        found[IN_SET] = answers.in_set(usual)
    return found


def _softmax(logits: np.ndarray) -> np.ndarray:
    """Probabilities (B, C, ...) of logits; a single logit (B, 1) is that of class 1 against class 0."""
    if logits.shape[1] == 1:
        logits = np.concatenate((np.zeros_like(logits), logits), 1)
    powers = np.exp(logits - logits.max(1, keepdims=True))
    probs: np.ndarray = powers / powers.sum(1, keepdims=True)
    return probs
