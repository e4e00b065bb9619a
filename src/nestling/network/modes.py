"""Train and eval mode for a while, each submodule getting back the mode it had."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def in_mode(module: nn.Module, *, training: bool) -> Iterator[None]:
    """Put a module in train or eval mode inside the block; one that is in it is left alone, with what it remembers."""
    before = [(part, part.training) for part in module.modules()]
    try:
        if any(mode != training for _, mode in before):
            module.train(training)
        yield
    finally:
        for part, mode in before:
            if part.training != mode:
                part.training = mode
