"""The width multiplier of a network: the number of hidden units of a layer at a multiple of its usual size."""

from nestling.arguments import positive_number


def multiplied(size: int, width: float) -> int:
    """``size`` hidden units times ``width``, rounded to a whole number of at least one."""
    return max(1, round(size * positive_number("width", width)))
