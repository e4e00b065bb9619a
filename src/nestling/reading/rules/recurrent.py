"""Rules of recurrent layers: one hidden unit of an LSTM, GRU or RNN is a row of every gate and a column that reads."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import fx

from nestling.reading.labels import Ids
from nestling.reading.trace import Call, Result, SizeArgument
from nestling.reading.traced_value import Factor, Value


def recurrent(call: Call) -> Result:
    """All layers and directions share their hidden units, because torch's layers have one hidden size.

    A unit whose weights are zero stays at the state of zero that it starts from. Sequences that are packed, projected
    states and states that the caller gives are not cut.
    """
    biases, layers = bool(call.arguments.get("has_biases")), call.arguments.get("num_layers")
    if "input" not in call.arguments or layers is None:
        return call.unknown()
    directions = 2 if call.arguments["bidirectional"] else 1
    tensors, per_cell = call.tensors("params"), 4 if biases else 2
    units = call.along(tensors[1], 1) if len(tensors) == layers * directions * per_cell else None
    if units is None or not _starts_from_zeros(call, units):
        call.freeze_all("has states that are projected, or given by the caller")
        return call.unknown()
    value = call.value("input")
    read = call.along(value, len(value.shape) - 1)
    for layer in range(layers):
        for direction in range(directions):
            first = (layer * directions + direction) * per_cell
            _unite_cell(call, tensors[first : first + per_cell], units, read)
        read = np.tile(units, directions)
    sequence, *states = call.shapes()
    outputs = [(sequence, np.tile(units, directions)), *((state, units) for state in states)]
    return tuple(call.output([Factor((len(shape) - 1,), ids)], shape) for shape, ids in outputs)


def _unite_cell(call: Call, tensors: Sequence[Value], units: Ids, read: Ids | None) -> None:
    """Unite the units with their rows in each gate, and with the columns that read them or the layer's input."""
    for tensor in tensors:
        rows = call.along(tensor, 0)
        assert rows is not None
        gates = rows.reshape(-1, len(units))
        call.labels.unite(np.broadcast_to(units, gates.shape), gates)
    for tensor, source in zip(tensors[:2], (read, units), strict=True):
        columns = call.along(tensor, 1)
        if columns is not None:
            call.unite_lines(source, columns, "reads an axis of fixed size")
            call.labels.mark(columns, "read")


def _starts_from_zeros(call: Call, units: Ids) -> bool:
    """Whether the first states are zeros that the layer itself makes, whose size then follows the units."""
    states = call.arguments["hx"]
    nodes = states if isinstance(states, Sequence) else [states]
    made = [node for node in nodes if isinstance(node, fx.Node) and node.target is torch.ops.aten.zeros.default]
    for node in made:
        call.traced.sizes.append(SizeArgument(node, ("size", 2), units))
    return len(made) == len(nodes)
