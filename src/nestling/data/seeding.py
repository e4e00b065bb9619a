"""Generators that depend on a few whole numbers alone, so that any batch of any epoch can be made again."""

from enum import IntEnum

import numpy as np
import torch


class Purpose(IntEnum):
    """What the random numbers are for; no two purposes share a stream."""

    SPLIT = 1
    SHUFFLE = 2
    AUGMENT = 3
    LOADER = 4


def generator(purpose: Purpose, seed: int, epoch: int = 0, batch: int = 0) -> torch.Generator:
    """A fresh generator for this purpose, seed, epoch and batch."""
    return torch.Generator().manual_seed(mixed(purpose, seed, epoch, batch))


def mixed(purpose: Purpose, seed: int, epoch: int = 0, batch: int = 0) -> int:
    """One number from four, such that neighbours have nothing in common."""
    state = np.random.SeedSequence([int(purpose), seed, epoch, batch]).generate_state(1, np.uint32)
    return int(state[0])
