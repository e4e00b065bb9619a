"""Networks of any width: groups found on the graph, cuts while they run, and smaller networks taken out."""

from nestling.network.bits import Bits
from nestling.network.cost import Cost, cost
from nestling.network.cut import Cut
from nestling.network.extract import extract
from nestling.network.group import Group, Groups, Slice
from nestling.network.nest import nest
from nestling.network.nested import Nested
from nestling.network.recalibrate import recalibrate

__all__ = ["Bits", "Cost", "Cut", "Group", "Groups", "Nested", "Slice", "cost", "extract", "nest", "recalibrate"]
