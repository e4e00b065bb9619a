"""``extract``: takes a smaller network out of a nested one."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from nestling.errors import NestlingError
from nestling.network.cut import Cut, make_cut
from nestling.network.modes import in_mode
from nestling.network.nested import Nested
from nestling.torch_parts import pytree


def extract(nested: Nested, cut: float | Mapping[str, int] | Cut, *, uncertainty: bool = False) -> nn.Module:
    """A plain, smaller module that computes what ``nested`` does at ``cut``, which is verified on the example.

    Its weights are the posterior's means, and nothing of nestling is needed to run it. ``uncertainty`` keeps the
    variational layers instead, so that the small network can draw its weights.
    """
    wanted = make_cut(nested.groups, cut)
    small = nested.extracted(wanted, uncertainty=uncertainty)
    _verify(nested, wanted, small)
    return small


def _verify(nested: Nested, cut: Cut, small: nn.Module) -> None:
    args, kwargs = nested.example
    with torch.no_grad(), in_mode(nested, training=False), in_mode(small, training=False), nested.at(cut):
        expected, found = nested(*args, **kwargs), small(*args, **kwargs)
    worst = max((_difference(a, b) for a, b in _pairs(expected, found)), default=0.0)
    if worst > 1e-4:
        raise NestlingError(
            f"the extracted network differs from the nested one on the example by {worst:.2g} of its largest output; "
            "nothing was returned. This is a fault of nestling: please report the network."
        )


def _pairs(left: Any, right: Any) -> list[tuple[Tensor, Tensor]]:  # noqa: ANN401
    pairs = zip(pytree.tree_leaves(left), pytree.tree_leaves(right), strict=True)
    return [(a, b) for a, b in pairs if isinstance(a, Tensor)]


def _difference(expected: Tensor, found: Tensor) -> float:
    if expected.shape != found.shape:
        return float("inf")
    scale = expected.abs().max().clamp_min(1e-12).double() if expected.numel() else 1.0
    return float(((expected.double() - found.double()).abs().max() if expected.numel() else 0.0) / scale)
