"""Whether two networks, or two outputs, are the same but for rounding."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from nestling.errors import NestlingError
from nestling.running.modes import in_mode
from nestling.torch_parts import pytree

Call = tuple[tuple[Any, ...], dict[str, Any]]
TOLERANCE = 1e-4
"""Largest difference, as a part of the largest output, that rounding may make between two networks."""


def check_same(expected: nn.Module, found: nn.Module, calls: Iterable[Call], what: str) -> None:
    """Refuse to hand out a network that does not compute, in eval mode, what the one it was taken from does."""
    worst = max(difference(expected, found, *call) for call in calls)
    if worst > TOLERANCE:
        raise NestlingError(
            f"the {what} network differs from the one it was taken from by {worst:.2g} of its largest output; "
            "nothing was returned. This is a fault of nestling: please report the network."
        )


def with_noise(call: Call) -> list[Call]:
    """A call, and one with noise of the same shapes in place of its numbers."""
    seeded = torch.Generator().manual_seed(0)

    def noise(tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point():
            return tensor
        return torch.randn(tensor.shape, generator=seeded, dtype=tensor.dtype).to(tensor.device)

    return [call, pytree.tree_map_only(Tensor, noise, call)]


@torch.no_grad()
def difference(expected: nn.Module, found: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> float:
    """The largest difference of two networks' outputs, as a part of the largest output."""
    with in_mode(expected, training=False), in_mode(found, training=False):
        return gap(expected(*args, **kwargs), found(*args, **kwargs))


def gap(expected: Any, found: Any) -> float:  # noqa: ANN401
    """The largest difference of two outputs, as a part of the largest entry of its tensor: infinite if shapes differ,
    or whole numbers, or entries that are not finite."""
    pairs = zip(pytree.tree_leaves(expected), pytree.tree_leaves(found), strict=True)
    return max((_gap(a, b) for a, b in pairs if isinstance(a, Tensor)), default=0.0)


def _gap(expected: Tensor, found: Tensor) -> float:
    if expected.shape != found.shape:
        return torch.inf
    if not expected.is_floating_point() or not expected.numel():
        return 0.0 if torch.equal(expected, found) else torch.inf
    left, right = expected.double(), found.double()
    finite = left.isfinite() & right.isfinite()
    if not bool(((left == right) | (left.isnan() & right.isnan()) | finite).all()):
        return torch.inf
    left, right = left.where(finite, 0.0), right.where(finite, 0.0)
    return float((left - right).abs().max() / left.abs().max().clamp_min(1e-12))
