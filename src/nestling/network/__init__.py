"""Networks of any width: finds groups on the graph, cuts networks while they run, and extracts smaller ones."""

from typing import TYPE_CHECKING

from nestling.lazily import imports_lazily

if TYPE_CHECKING:
    from nestling.network.discovery import run_example
    from nestling.network.group_orders import order_maker, orders_of
    from nestling.network.nest import nest
    from nestling.network.options import Nesting
    from nestling.network.sorting import permute
    from nestling.reading import Bits, Cut, Group, Groups, Slice
    from nestling.running import Cost, Nested, cost, extract, recalibrate

__all__ = ["Bits", "Cost", "Cut", "Group", "Groups", "Nested", "Slice", "cost", "extract", "nest", "recalibrate"]

imports_lazily(__name__)
