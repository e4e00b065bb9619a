"""``extract``: takes a smaller network out of a nested one."""

from collections.abc import Mapping

from torch import nn

from nestling.reading import Cut, make_cut
from nestling.running.agreement import check_same
from nestling.running.modes import in_mode
from nestling.running.nested import Nested


def extract(nested: Nested, cut: float | Mapping[str, int] | Cut, *, uncertainty: bool = False) -> nn.Module:
    """A plain, smaller module that computes what ``nested`` computes at ``cut``; this is verified on the example.

    Its weights are the posterior means, and it runs without nestling. ``uncertainty`` keeps the variational layers
    instead, so that the small network can draw its weights.
    """
    wanted = make_cut(nested.groups, cut)
    small = nested.extracted(wanted, uncertainty=uncertainty)
    with in_mode(nested, training=False), nested.at(wanted):
        check_same(nested, small, [nested.example], "extracted")
    return small
