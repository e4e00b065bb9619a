"""Rules of normalisations: affine parameters go with the channels; statistics over a cut axis make it inexact."""

import numpy as np

from nestling.reading.trace import Call, Result
from nestling.reading.traced_value import Factor, Value


def batch_norm(call: Call) -> Result:
    """Weight, bias and both running buffers go with axis 1; each channel has its own statistics."""
    value = call.value("input")
    if len(value.shape) < 2 or value.shape[1] == 1:
        return call.passed(value)
    for name in ("weight", "bias", "running_mean", "running_var"):
        affine = call.optional(name)
        if affine is not None:
            call.unite_along(value, 1, affine, 0)
    return _axis_kept(call, value, 1)


def layer_norm(call: Call) -> Result:
    """Affine parameters go with the last axes; statistics run over them."""
    value = call.value("input")
    num_axes = len(call.numbers("normalized_shape"))
    first = len(value.shape) - num_axes
    for axis in range(first, len(value.shape)):
        factor = value.factor(axis)
        if factor is not None and any(other < first for other in factor.axes):
            value = call.settle(value, axis, "normalises over the axis")
            factor = None
        for name in ("weight", "bias"):
            affine = call.optional(name)
            if affine is not None and affine.shape[axis - first] > 1:
                call.unite_along(value, axis, affine, axis - first)
        if factor is not None:
            ids = call.along(value, axis)
            assert ids is not None
            call.labels.mark(ids, "inexact")
            call.size(("normalized_shape", axis - first), ids)
    return call.passed(value)


def group_norm(call: Call) -> Result:
    """Whole norm groups are units, so that each keeps its statistics; a single norm group makes the axis inexact."""
    value = call.value("input")
    num_groups = call.number("num_groups")
    ids = call.along(value, 1)
    if ids is None:
        return call.passed(value)
    if num_groups == 1:
        call.labels.mark(ids, "inexact")
    else:
        by_group = ids.reshape(num_groups, -1)
        call.labels.unite(np.broadcast_to(by_group[:, :1], by_group.shape), by_group)
        call.size(("num_groups",), ids)
    for name in ("weight", "bias"):
        affine = call.optional(name)
        if affine is not None:
            call.unite_along(value, 1, affine, 0)
    return _axis_kept(call, value, 1)


def _axis_kept(call: Call, value: Value, axis: int) -> Value:
    """The output with ``axis`` labelled alone: affine parameters fix the sizes of the axes it was split with."""
    factor = value.factor(axis)
    if factor is None or len(factor.axes) == 1:
        return call.passed(value)
    ids = call.along(value, axis)
    assert ids is not None
    others = value.without(factor)
    return call.output([*others.factors, Factor((axis,), ids)])
