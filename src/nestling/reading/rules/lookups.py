"""Rules of attention and of tables that are read by index."""

import numpy as np

from nestling.reading.trace import Call, Result
from nestling.reading.traced_value import Factor, Value


def attention(call: Call) -> Result:
    """Heads of queries, keys and values unite, each key head with all query heads that share it; sizes stay."""
    query, key, value = (call.value(name) for name in ("query", "key", "value"))
    last = len(query.shape) - 1
    tensors = []
    for tensor in (query, key, value):
        for axis in (last - 1, last):
            tensor = call.settle(tensor, axis, "attends over the axis")
        tensors.append(tensor)
    mask = _mask(call)
    factors: list[Factor | None] = []
    for axis in range(last - 1):
        lines = [call.along(tensor, axis) for tensor in tensors]
        mask_axis = axis - last - 1
        if mask is not None and -mask_axis <= len(mask.shape) and mask.shape[mask_axis] > 1:
            lines.append(call.along(mask, mask_axis % len(mask.shape)))
        if all(line is None for line in lines):
            continue
        if any(line is None for line in lines):
            call.freeze_all("meets heads of a fixed number")
            continue
        queries, keys, *others = (line for line in lines if line is not None)
        if len(queries) != len(keys):
            shared = queries.reshape(len(keys), -1)
            call.labels.unite(np.broadcast_to(keys[:, None], shared.shape), shared)
        else:
            call.labels.unite(queries, keys)
        for line in others:
            call.labels.unite(line, keys if len(line) == len(keys) else queries)
        call.labels.mark(queries, "head")
        factors.append(Factor((axis,), queries))
    return call.output(factors)


def _mask(call: Call) -> Value | None:
    """The mask, boolean or added to the scores; its axes of queries and keys keep their size."""
    mask = call.optional("attn_mask")
    if mask is not None:
        for axis in (len(mask.shape) - 2, len(mask.shape) - 1):
            mask = call.settle(mask, axis, "attends over the axis")
    return mask


def embedding(call: Call) -> Result:
    """Rows are read by index and keep their number; columns are the last axis of the output."""
    weight, indices = call.value("weight"), call.value("indices")
    weight = call.settle(weight, 0, "reads the axis by index")
    ids = call.along(weight, 1)
    last = len(indices.shape)
    return call.output([None if ids is None else Factor((last,), ids)])


def index(call: Call) -> Result:
    """Axes that index tensors read keep their size; the others pass. The index's axes replace the first read axis."""
    value = call.value("self")
    places = call.arguments["indices"]
    read = [axis for axis, index_tensor in enumerate(places) if index_tensor is not None]
    for index_tensor in (call.traced.values[places[axis]] for axis in read):
        for factor in index_tensor.factors if isinstance(index_tensor, Value) else ():
            call.freeze(factor.ids, "reads places from the axis")
    for axis in read:
        value = call.settle(value, axis, "reads the axis by index")
    first = read[0] if read == list(range(read[0], read[-1] + 1)) else 0
    grown = len(call.shape) - (len(value.shape) - len(read))
    kept = [axis for axis in range(len(value.shape)) if axis not in read]
    passed = [axis for axis in range(len(call.shape)) if not first <= axis < first + grown]
    return call.output(value.moved(dict(zip(kept, passed, strict=True)), call.shape).factors)
