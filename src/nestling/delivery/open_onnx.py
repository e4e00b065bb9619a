"""The edits that make an ONNX model with open widths as fast as a smaller one, once its widths are fixed."""

from collections.abc import Mapping, Sequence

import onnx

from nestling.delivery.edited_graph import EditedGraph
from nestling.delivery.folded_norms import fold_norms, join_slices
from nestling.delivery.open_convolutions import write_branches


def edited(model: onnx.ModelProto, rows: Sequence[Mapping[str, int]]) -> onnx.ModelProto:
    """The model, edited in place; ``rows`` has the sizes of its dimensions at each cut of its table."""
    graph = EditedGraph(model)
    join_slices(graph)
    fold_norms(graph)
    write_branches(graph, rows)
    graph.write()
    return model
