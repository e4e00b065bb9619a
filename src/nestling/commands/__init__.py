"""The commands, each from its arguments to the text that it prints."""

from typing import TYPE_CHECKING

from nestling.lazily import imports_lazily

if TYPE_CHECKING:
    from nestling.commands.building import load_weights
    from nestling.commands.cascading import cascade
    from nestling.commands.exporting import export
    from nestling.commands.options import MODELS, Device
    from nestling.commands.predicting import data, predict
    from nestling.commands.pruning import prune
    from nestling.commands.reporting import report
    from nestling.commands.searching import extract, search
    from nestling.commands.serving import serve
    from nestling.commands.training import evaluate, train

__all__ = [
    "Device",
    "cascade",
    "data",
    "evaluate",
    "export",
    "extract",
    "load_weights",
    "predict",
    "prune",
    "report",
    "search",
    "serve",
    "train",
]

imports_lazily(__name__)
