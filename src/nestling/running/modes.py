"""Train and eval mode for a while, after which each submodule gets its mode back; and the arguments of submodules."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

from nestling.running.batches import Call


@contextmanager
def in_mode(module: nn.Module, *, training: bool) -> Iterator[None]:
    """Put a module in train or eval mode inside the ``with`` statement; a module already in it is left alone."""
    before = [(submodule, submodule.training) for submodule in module.modules()]
    try:
        if any(mode != training for _, mode in before):
            module.train(training)
        yield
    finally:
        for submodule, mode in before:
            if submodule.training != mode:
                submodule.training = mode


@torch.no_grad()
def called_with(submodules: Mapping[str, nn.Module], module: nn.Module, call: Call) -> dict[str, tuple[Any, ...]]:
    """The arguments of those submodules that an example runs in eval mode, in the order they run."""
    arguments: dict[str, tuple[Any, ...]] = {}
    with in_mode(module, training=False), ExitStack() as stack:
        for name, submodule in submodules.items():
            handle = submodule.register_forward_pre_hook(lambda _, args, name=name: arguments.update({name: args}))
            stack.callback(handle.remove)
        module(*call[0], **call[1])
    return arguments
