"""The names of weight posteriors and of ways to draw weights; imports no torch."""

from typing import Literal

PosteriorName = Literal["gaussian", "ivon"]
Sampling = Literal["local", "channel", "shared", "each"]
"""How the weights of a layer are drawn: see ``VariationalLayer``."""
SAMPLINGS: tuple[Sampling, ...] = ("local", "channel", "shared", "each")
