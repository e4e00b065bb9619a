"""Tests that bound an error rate with a guarantee for finitely many examples: learn then test, in a fixed sequence."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nestling.cascade.outcomes import Floats

_Z = 1.645
"""The width of the bound that puts thresholds in order; the guarantee does not depend on it."""


@dataclass(frozen=True)
class Guarantee:
    """With probability ``1 - delta`` or more, at most a share ``most`` of what is answered early is wrong.

    Attributes:
        most: The largest share of wrong early answers.
        delta: The probability with which this may fail, over the draw of the examples.
        num_examples: The examples that only the test saw.
        num_early: How many of them were answered before the last stage.
        num_errors: How many of these answers were wrong.

    Examples:
        >>> sure = nl.cascade(nested, (0.5, 1.0), loader, goal="early_errors=0.45", delta=0.5, samples=0)
        >>> sure.guarantee.most, sure.guarantee.num_examples
        (0.45, 72)
    """

    most: float
    delta: float
    num_examples: int
    num_early: int
    num_errors: int


def p_values(num_early: Floats, num_errors: Floats, most: float) -> Floats:
    """P(X <= num_errors) for X binomial with ``num_early`` trials of probability ``most``: the exact test.

    If more than a share ``most`` of the answers is wrong, the p-value is at most u with a probability of at most u.
    """
    from scipy.stats import binom

    return np.asarray(binom.cdf(num_errors, num_early, most), dtype=np.float64)


def num_proven(p_values: Sequence[float] | Floats, delta: float) -> int:
    """How many hypotheses a test in a fixed sequence rejects: those before the first p-value above delta.

    All of these rejections are right with probability ``1 - delta`` or more, if the sequence was chosen without the
    data behind the p-values (Angelopoulos et al. 2021, Learn then Test, section 2.3 on fixed-sequence testing).
    """
    above = np.flatnonzero(np.asarray(p_values) > delta)
    return int(above[0]) if len(above) else len(p_values)


def cautious_rate(num_early: Floats, num_errors: Floats) -> Floats:
    """The upper end of Wilson's interval for an error rate; 1 where nothing was answered.

    It puts thresholds in the order in which they are tested, the safest first.
    """
    trials = np.maximum(num_early, 1)
    rate = num_errors / trials
    centre = rate + _Z**2 / (2 * trials)
    half = _Z * np.sqrt(rate * (1 - rate) / trials + (_Z / (2 * trials)) ** 2)
    return np.where(num_early > 0, (centre + half) / (1 + _Z**2 / trials), 1.0)
