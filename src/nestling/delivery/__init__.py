"""Delivery: networks in files that run without nestling."""

from typing import TYPE_CHECKING

from nestling.lazily import imports_lazily

if TYPE_CHECKING:
    from nestling.delivery.small import (
        PROGRAM_FILE,
        PRUNED_FILE,
        SmallNetwork,
        load_small,
        save_small,
        write_about,
        write_small,
    )
    from nestling.delivery.small_record import data_record, small_record
    from nestling.storage import Packing

__all__ = ["Packing", "SmallNetwork", "data_record", "load_small", "save_small", "small_record"]

imports_lazily(__name__)
