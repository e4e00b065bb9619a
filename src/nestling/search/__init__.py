"""Search: the cost and the quality of each cut, and the best network for every budget."""

from typing import TYPE_CHECKING

from nestling.lazily import imports_lazily

if TYPE_CHECKING:
    from nestling.search.curve import CURVE_FILE, Curve, Row, Tried
    from nestling.search.options import CostName, Searching
    from nestling.search.search import search

__all__ = ["Curve", "Row", "Tried", "search"]

imports_lazily(__name__)
