"""Pruning: networks made permanently smaller by Bayesian dropout of single weights or of whole units."""

from typing import TYPE_CHECKING

from nestling.lazily import imports_lazily

if TYPE_CHECKING:
    from nestling.pruning.delivered import Delivered
    from nestling.pruning.gated import without_widths
    from nestling.pruning.options import PRETRAINING, PRUNING, Pruning
    from nestling.pruning.prune import prune
    from nestling.pruning.pruned import LayerReport, Pruned
    from nestling.pruning.sparse import SparseLinear, to_dense, to_sparse
    from nestling.pruning.sparse_files import PRUNED_FILE, load_pruned, save_pruned

__all__ = ["LayerReport", "Pruned", "SparseLinear", "load_pruned", "prune", "save_pruned", "to_dense", "to_sparse"]

imports_lazily(__name__)
