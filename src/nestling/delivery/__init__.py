"""Delivery: networks in files that run without nestling."""

from typing import TYPE_CHECKING

from nestling.lazily import imports_lazily

if TYPE_CHECKING:
    from nestling.delivery.about import known_of
    from nestling.delivery.all_widths import all_widths_model
    from nestling.delivery.export import Exported, export
    from nestling.delivery.formats import FORMATS
    from nestling.delivery.options import FormatName, Layout
    from nestling.delivery.small import ABOUT_FILE, PROGRAM_FILE, Packing, load_small, save_small, write_program

__all__ = ["Exported", "Packing", "all_widths_model", "export", "load_small", "save_small"]

imports_lazily(__name__)
