"""The width multiplier of a network: how many hidden units a layer gets at a given multiple of its usual size."""

from nestling.arguments import positive_number


def multiplied(size: int, width: float) -> int:
    """``size`` hidden units times ``width``, rounded to a whole number and never below one."""
    return max(1, round(size * positive_number("width", width)))
