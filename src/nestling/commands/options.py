"""What commands share, to be had without torch: names of devices, and how much is scored at a time."""

from typing import Literal

Device = Literal["auto", "cpu", "cuda"]

BATCH = 500
"""Examples that are scored or predicted at a time."""
