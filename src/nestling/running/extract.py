"""``extract``: takes a smaller network out of a nested one."""

from collections.abc import Mapping

from torch import nn

from nestling.reading import Cut, make_cut
from nestling.running.agreement import check_same
from nestling.running.modes import in_mode
from nestling.running.nested import Nested


def extract(nested: Nested, cut: float | Mapping[str, int] | Cut, *, uncertainty: bool = False) -> nn.Module:
    """Take a smaller, plain network out of a nested one; that both give the same answers is verified on the example.

    Its weights are the posterior means, and it runs without nestling.

    Args:
        nested: The network. It is not changed.
        cut: A fraction of every group, widths by group name, or a ``Cut``.
        uncertainty: Keep the variational layers instead, so that the small network can draw its weights.

    Returns:
        A new module in eval mode, with smaller tensors.

    Raises:
        ArgumentError: If the cut can't be used.
        NestlingError: If the small network's answers differ from those of the nested one.

    Examples:
        >>> small = nl.extract(nested, 0.5)
        >>> with nested.at(0.5):
        ...     same = torch.allclose(small(images), nested(images), atol=1e-5)
        >>> same, type(small).__name__
        (True, 'MLP')
    """
    wanted = make_cut(nested.groups, cut)
    small = nested.extracted(wanted, uncertainty=uncertainty)
    with in_mode(nested, training=False), nested.at(wanted):
        check_same(nested, small, [nested.example], "extracted")
    return small
