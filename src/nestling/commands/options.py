"""What commands share: the names of devices and the batch size of scoring; this file imports no torch."""

from typing import Literal

Device = Literal["auto", "cpu", "cuda"]

BATCH = 500
"""How many examples are scored or predicted at a time."""
