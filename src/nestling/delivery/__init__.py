"""Delivery: networks in files that run without nestling."""

from typing import TYPE_CHECKING

from nestling.lazily import imports_lazily

if TYPE_CHECKING:
    from nestling.delivery.all_widths import all_widths_model
    from nestling.delivery.small import PROGRAM_FILE, Packing, load_small, save_small, write_program

__all__ = ["Packing", "all_widths_model", "load_small", "save_small"]

imports_lazily(__name__)
