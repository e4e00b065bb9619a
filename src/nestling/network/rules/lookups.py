"""Rules of attention and of tables that are read by index."""

import numpy as np

from nestling.network.trace import Call, Result
from nestling.network.values import Factor


def attention(call: Call) -> Result:
    """Heads of queries, keys and values unite, a key's head with all the queries that share it; sizes stay."""
    query, key, value = (call.value(name) for name in ("query", "key", "value"))
    last = len(query.shape) - 1
    tensors = []
    for tensor in (query, key, value):
        for axis in (last - 1, last):
            tensor = call.settle(tensor, axis, "attends over the axis")
        tensors.append(tensor)
    factors: list[Factor | None] = []
    for axis in range(last - 1):
        lines = [call.along(tensor, axis) for tensor in tensors]
        if all(line is None for line in lines):
            continue
        if any(line is None for line in lines):
            call.freeze_all("meets heads of a fixed number")
            continue
        queries, keys, values = (line for line in lines if line is not None)
        if len(queries) != len(keys):
            shared = queries.reshape(len(keys), -1)
            call.labels.unite(np.broadcast_to(keys[:, None], shared.shape), shared)
        else:
            call.labels.unite(queries, keys)
        call.labels.unite(keys, values)
        call.labels.mark(queries, "head")
        factors.append(Factor((axis,), queries))
    mask = call.optional("attn_mask")
    if mask is not None and mask.factors:
        call.freeze_all("uses a mask that can be cut")
    return call.output(factors)


def embedding(call: Call) -> Result:
    """Rows are read by index and stay; columns are the output's last axis."""
    weight, indices = call.value("weight"), call.value("indices")
    weight = call.settle(weight, 0, "reads the axis by index")
    ids = call.along(weight, 1)
    last = len(indices.shape)
    return call.output([None if ids is None else Factor((last,), ids)])
