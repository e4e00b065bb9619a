"""Delivery: networks in files that run without nestling."""

from typing import TYPE_CHECKING

from nestling.lazily import imports_lazily

if TYPE_CHECKING:
    from nestling.delivery.about import data_record, known_of
    from nestling.delivery.agreement import Agreement
    from nestling.delivery.all_widths import all_widths_model
    from nestling.delivery.cascaded import averages_draws, cascade_record, with_its_cuts
    from nestling.delivery.checkpoint import write_transformers
    from nestling.delivery.drawn import drawn_graph
    from nestling.delivery.export import Exported, export
    from nestling.delivery.formats import FORMATS
    from nestling.delivery.hub import load_hub, push_hub, write_hub
    from nestling.delivery.int8 import to_int8
    from nestling.delivery.moment_graph import moments_graph
    from nestling.delivery.options import Destination, Layout, UncertaintyName
    from nestling.delivery.packed_weights import to_packed
    from nestling.delivery.quantised import Quantised
    from nestling.delivery.small import (
        ABOUT_FILE,
        PROGRAM_FILE,
        SmallNetwork,
        load_small,
        save_small,
        write_about,
        write_small,
    )
    from nestling.delivery.small_record import small_record
    from nestling.delivery.triton import write_triton
    from nestling.storage import Packing

__all__ = [
    "Agreement",
    "Exported",
    "Packing",
    "Quantised",
    "SmallNetwork",
    "all_widths_model",
    "data_record",
    "drawn_graph",
    "export",
    "load_hub",
    "load_small",
    "moments_graph",
    "push_hub",
    "save_small",
    "small_record",
    "to_int8",
    "to_packed",
    "write_hub",
    "write_transformers",
    "write_triton",
]

imports_lazily(__name__)
