"""All hand-written test networks: `CASES`, and `BY_NAME`."""

import zoo_attention
import zoo_channels
import zoo_convolution
import zoo_frozen
import zoo_sequence
from zoo_case import CASES, Anchor, Case

FILES = (zoo_convolution, zoo_channels, zoo_sequence, zoo_attention, zoo_frozen)
BY_NAME = {case.name: case for case in CASES}

__all__ = ["BY_NAME", "CASES", "FILES", "Anchor", "Case"]
