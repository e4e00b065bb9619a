"""Networks of any width: groups found on the graph, cuts while they run, and smaller networks taken out."""

from typing import TYPE_CHECKING

from nestling.lazily import imports_lazily

if TYPE_CHECKING:
    from nestling.network.cost import Cost, cost
    from nestling.network.cut import Cut
    from nestling.network.extract import extract
    from nestling.network.group import Group, Groups, Slice
    from nestling.network.nest import nest
    from nestling.network.nested import Nested
    from nestling.network.options import Bits
    from nestling.network.recalibrate import recalibrate

__all__ = ["Bits", "Cost", "Cut", "Group", "Groups", "Nested", "Slice", "cost", "extract", "nest", "recalibrate"]

imports_lazily(
    __name__,
    {
        "nestling.network.cost": "Cost cost",
        "nestling.network.cut": "Cut",
        "nestling.network.extract": "extract",
        "nestling.network.group": "Group Groups Slice",
        "nestling.network.nest": "nest",
        "nestling.network.nested": "Nested",
        "nestling.network.options": "Bits",
        "nestling.network.recalibrate": "recalibrate",
    },
)
