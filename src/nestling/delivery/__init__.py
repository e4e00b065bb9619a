"""Delivery: networks in files that run without nestling."""

from typing import TYPE_CHECKING

from nestling.lazily import imports_lazily

if TYPE_CHECKING:
    from nestling.delivery.drawn import drawn_graph
    from nestling.delivery.moment_graph import moments_graph
    from nestling.delivery.small import PROGRAM_FILE, Packing, load_small, save_small, write_program

__all__ = ["Packing", "drawn_graph", "load_small", "moments_graph", "save_small"]

imports_lazily(__name__)
