"""How many cases a test draws, a part of them or all with ``make soak``, and how long tests wait."""

import os

PATIENCE = 600
"""Seconds after which a test gives up on a process or thread: never reached, however busy the machine is."""
SOAK = os.environ.get("NESTLING_SOAK") == "1"


def tries(all_of_them: int, usual: int) -> int:
    """The number of cases to draw."""
    return all_of_them if SOAK else usual
