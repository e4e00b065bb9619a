"""How often a test that draws its cases tries: a part of them in each run, all of them with ``make soak``."""

import os

SOAK = os.environ.get("NESTLING_SOAK") == "1"


def tries(all_of_them: int, usual: int) -> int:
    """The number of cases to draw."""
    return all_of_them if SOAK else usual
