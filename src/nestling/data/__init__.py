"""Data sets by name or by path, kept in memory and served in batches that can be reproduced."""

from typing import TYPE_CHECKING

from nestling.lazily import imports_lazily

if TYPE_CHECKING:
    from nestling.data.batches import Batches, Grader
    from nestling.data.dataset_batches import DatasetBatches
    from nestling.data.faults import DamagedError, DataError, MissingError
    from nestling.data.files import data_root
    from nestling.data.formats.images import decoded_image
    from nestling.data.inputs import normalised, read_inputs
    from nestling.data.listing import Found, found
    from nestling.data.loading import load, names
    from nestling.data.options import Augment, AugmentChoice
    from nestling.data.record import Data, Task
    from nestling.data.split import Split
    from nestling.data.statistics import mean_and_std

__all__ = [
    "Augment",
    "Batches",
    "DamagedError",
    "Data",
    "DataError",
    "DatasetBatches",
    "Found",
    "Grader",
    "MissingError",
    "Split",
    "Task",
    "data_root",
    "found",
    "load",
    "names",
]

imports_lazily(__name__)
