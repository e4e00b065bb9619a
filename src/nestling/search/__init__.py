"""Search: what each cut costs and is worth, and the best network for every budget."""

from nestling.search.curve import Curve, Row, Tried
from nestling.search.search import search

__all__ = ["Curve", "Row", "Tried", "search"]
