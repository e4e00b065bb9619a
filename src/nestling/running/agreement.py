"""Whether two networks, or two outputs, are the same except for rounding."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from nestling.errors import NestlingError
from nestling.running.batches import Call
from nestling.running.modes import in_mode
from nestling.torch_parts import pytree

TOLERANCE = 1e-4
"""The largest difference that rounding may make between two networks, relative to the largest output."""


def check_same(whole: nn.Module, smaller: nn.Module, calls: Iterable[Call], what: str) -> None:
    """Refuse a network that does not compute, in eval mode, what the network it was taken from computes."""
    worst = max(difference(whole, smaller, *call) for call in calls)
    if worst > TOLERANCE:
        raise NestlingError(
            f"the {what} network differs from the one it was taken from by {worst:.2g} of its largest output; "
            "nothing was returned. This is a fault of nestling: please report the network."
        )


def with_noise(call: Call) -> list[Call]:
    """A call, and the same call with noise in place of its tensors."""
    generator = torch.Generator().manual_seed(0)

    def noise(tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point():
            return tensor
        return torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype).to(tensor.device)

    return [call, pytree.tree_map_only(Tensor, noise, call)]


@torch.no_grad()
def difference(expected: nn.Module, other: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> float:
    """The largest difference between two networks' outputs, relative to the largest output."""
    with in_mode(expected, training=False), in_mode(other, training=False):
        return gap(expected(*args, **kwargs), other(*args, **kwargs))


def gap(expected: Any, other: Any) -> float:  # noqa: ANN401
    """The largest difference between two outputs, relative to the largest entry of its tensor.

    Infinite if shapes, whole numbers or entries that are not finite differ.
    """
    pairs = zip(pytree.tree_leaves(expected), pytree.tree_leaves(other), strict=True)
    return max((_gap(a, b) for a, b in pairs if isinstance(a, Tensor)), default=0.0)


def _gap(expected: Tensor, other: Tensor) -> float:
    if expected.shape != other.shape:
        return torch.inf
    if not expected.is_floating_point() or not expected.numel():
        return 0.0 if torch.equal(expected, other) else torch.inf
    a, b = expected.double(), other.double()
    finite = a.isfinite() & b.isfinite()
    if not bool(((a == b) | (a.isnan() & b.isnan()) | finite).all()):
        return torch.inf
    a, b = a.where(finite, 0.0), b.where(finite, 0.0)
    return float((a - b).abs().max() / a.abs().max().clamp_min(1e-12))
