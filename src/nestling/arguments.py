"""Checks of the numbers that a caller passes, done once, so that the mathematics behind them can trust them."""

import math

from nestling.errors import DtypeError, RangeError


def positive_number(name: str, value: float) -> float:
    """Return ``value`` as a float if it is a finite number above zero."""
    number = finite_number(name, value)
    if not number > 0:
        raise RangeError(name, value, "a finite number > 0", "Use a small positive value to come close to zero.")
    return number


def finite_number(name: str, value: float) -> float:
    """Return ``value`` as a float if it is a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise DtypeError(
            name, f"{value!r}", "a plain number", "Pass a float; for a tensor with one entry, its .item()."
        )
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise RangeError(name, number, "a finite number", "Look for a division by zero or a schedule that ran away.")
    return number


def probability(name: str, value: float) -> float:
    """Return ``value`` as a float if it lies in [0, 1]."""
    number = finite_number(name, value)
    if not 0 <= number <= 1:
        raise RangeError(name, value, "within [0, 1]", "Pass a probability, not a percentage or a logit.")
    return number


def inner_probability(name: str, value: float) -> float:
    """Return ``value`` as a float if it lies strictly between 0 and 1."""
    number = probability(name, value)
    if number in (0.0, 1.0):
        raise RangeError(name, value, "strictly between 0 and 1", "At an end its logit is infinite: stay off it.")
    return number


def count(name: str, value: int, meaning: str, most: int | None = None) -> int:
    """Return ``value`` if it is a whole number from 1 to ``most``; ``meaning`` says what it counts."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise DtypeError(name, f"{value!r}", "a whole number", f"Pass an int: {meaning}.")
    if value < 1:
        raise RangeError(name, value, "at least 1", f"Pass {meaning}.")
    if most is not None and value > most:
        raise RangeError(name, value, f"at most {most:,}", f"Pass {meaning}.")
    return value


def natural_number(name: str, value: int) -> int:
    """Return ``value`` if it is a whole number of at least 0."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise RangeError(name, repr(value), "a whole number of at least 0", "Pass an int.")
    return value


def block_counts(num_blocks: int, num_always: int) -> None:
    """Check that ``num_always`` blocks out of ``num_blocks`` can be kept at every width."""
    count("num_always", num_always, "how many blocks the smallest width keeps")
    count("num_blocks", num_blocks, "how many blocks the full width has")
    if num_always > num_blocks:
        needed = f"between 1 and the number of blocks ({num_blocks})"
        raise RangeError("num_always", num_always, needed, "The smallest width keeps this many blocks.")
