"""Train and eval mode for a while, each submodule getting back the mode it had; what its parts are called with."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
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


@torch.no_grad()
def called_with(
    parts: Mapping[str, nn.Module], module: nn.Module, call: tuple[tuple[Any, ...], dict[str, Any]]
) -> dict[str, tuple[Any, ...]]:
    """The arguments of those parts of a module that are called on an example in eval mode, in the order they run."""
    seen: dict[str, tuple[Any, ...]] = {}
    with in_mode(module, training=False), ExitStack() as stack:
        for name, part in parts.items():
            handle = part.register_forward_pre_hook(lambda _part, args, name=name: seen.update({name: args}))
            stack.callback(handle.remove)
        module(*call[0], **call[1])
    return seen
