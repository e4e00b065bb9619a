"""Proves that a pruned network computes what the network it was taken from does."""

from typing import Any

import torch
from torch import Tensor, nn

from nestling.errors import NestlingError
from nestling.network.modes import in_mode
from nestling.torch_parts import pytree

TOLERANCE = 1e-4
"""Largest difference, as a part of the largest output, that rounding may make."""


def check_same(expected: nn.Module, found: nn.Module, call: tuple[tuple[Any, ...], dict[str, Any]]) -> None:
    """Compare two networks on the example and on noise of its shape, in eval mode."""
    seeded = torch.Generator().manual_seed(0)

    def noise(tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point():
            return tensor
        return torch.randn(tensor.shape, generator=seeded, dtype=tensor.dtype).to(tensor.device)

    for args, kwargs in (call, pytree.tree_map_only(Tensor, noise, call)):
        worst = difference(expected, found, args, kwargs)
        if not worst <= TOLERANCE:
            raise NestlingError(
                f"the pruned network differs from the one it was taken from by {worst:.2g} of its largest output; "
                "nothing was returned. This is a fault of nestling: please report the network."
            )


@torch.no_grad()
def difference(expected: nn.Module, found: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> float:
    """The largest difference of two networks' outputs, as a part of the largest output."""
    with in_mode(expected, training=False), in_mode(found, training=False):
        pairs = zip(
            pytree.tree_leaves(expected(*args, **kwargs)), pytree.tree_leaves(found(*args, **kwargs)), strict=True
        )
        return max((_relative(a, b) for a, b in pairs if isinstance(a, Tensor)), default=0.0)


def _relative(expected: Tensor, found: Tensor) -> float:
    if expected.shape != found.shape:
        return float("inf")
    if not expected.numel():
        return 0.0
    return float((expected.double() - found.double()).abs().max() / expected.double().abs().max().clamp_min(1e-12))
