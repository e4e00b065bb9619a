"""Random numbers that depend on a few whole numbers alone, so that any batch and any step can be repeated."""

from enum import IntEnum

import numpy as np
import torch


class Purpose(IntEnum):
    """What the random numbers are for; no two purposes share a stream."""

    SPLIT = 1
    SHUFFLE = 2
    AUGMENT = 3
    LOADER = 4
    WIDTHS = 5
    NOISE = 6
    PREDICTION = 7
    DECODING = 8


def generator(purpose: Purpose, seed: int, epoch: int = 0, batch: int = 0) -> torch.Generator:
    """A fresh generator for this purpose, seed, epoch and batch."""
    return torch.Generator().manual_seed(mixed(purpose, seed, epoch, batch))


def reseed(device: torch.device, purpose: Purpose, seed: int, epoch: int = 0, batch: int = 0) -> None:
    """Set torch's random state on the CPU, and on the network's GPU if it has one."""
    number = mixed(purpose, seed, epoch, batch)
    torch.default_generator.manual_seed(number)
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(number)


def mixed(purpose: Purpose, seed: int, epoch: int = 0, batch: int = 0) -> int:
    """One seed from four numbers; the seeds of neighbouring numbers are unrelated."""
    state = np.random.SeedSequence([int(purpose), seed, epoch, batch]).generate_state(1, np.uint32)
    return int(state[0])
