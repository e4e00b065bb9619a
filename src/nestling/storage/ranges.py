"""Whole numbers in a regular order, such as the rows of a group, written as ranges."""

from typing import Any

import numpy as np

from nestling.errors import ArgumentError
from nestling.reading import Ids

MOST_NUMBERS = 2**31
"""No list of a network has more entries, and no entry is larger."""


def to_ranges(values: Ids) -> list[Any] | None:
    """Values as [first, [count, step], ...], as nested loops give them, outermost first; None if they are irregular."""
    flat, loops = values.ravel(), list[list[int]]()
    while len(flat) > 1:
        steps = np.diff(flat)
        other = steps != steps[0]
        count = int(other.argmax()) + 1 if other.any() else len(flat)
        if len(flat) % count:
            return None
        rows = flat.reshape(-1, count)
        if (rows != rows[:, :1] + steps[0] * np.arange(count)).any():
            return None
        loops.insert(0, [count, int(steps[0])])
        flat = rows[:, 0]
    return [int(flat[0]), *loops]


def from_ranges(saved: Any, most: int) -> Ids:  # noqa: ANN401
    """The values that ``to_ranges`` wrote, at most ``most`` of them, each within 0 and 2^31."""
    first, *loops = saved
    values = np.array([whole(first)])
    for count, step in loops:
        if len(values) * whole(count, 1) > most:
            raise ArgumentError("ranges", f"more than {most} numbers", "as many as a tensor has rows", "Train again.")
        values = (values[:, None] + whole(step, -MOST_NUMBERS) * np.arange(count)).ravel()
        if values.min() < 0 or values.max() > MOST_NUMBERS:
            raise ArgumentError("ranges", f"{values.min()} to {values.max()}", "rows of a tensor", "Train again.")
    return values


def whole(value: Any, least: int = 0, most: int = MOST_NUMBERS) -> int:  # noqa: ANN401
    """Return a value from a file if it is a whole number within bounds."""
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        needed = f"a whole number within {least} and {most}"
        raise ArgumentError("a number of the file", repr(value)[:40], needed, "Restore it from a copy, or train again.")
    return value
