"""Rules of operations that only move, merge, split up or rename axes."""

from collections.abc import Iterator

import numpy as np

from nestling.reading.trace import Call, Result
from nestling.reading.traced_value import Factor, Value, simplified


def permute(call: Call) -> Result:
    """Axes in a new order."""
    value = call.value("self")
    order = call.axes("dims", len(value.shape))
    return _permuted(call, value, order)


def transpose(call: Call) -> Result:
    """Two axes swapped."""
    value = call.value("self")
    ndim = len(value.shape)
    names = ("dim0", "dim1") if "dim0" in call.arguments else ("axis0", "axis1")
    order = list(range(ndim))
    if ndim:
        first, second = (call.axis(name, ndim) for name in names)
        order[first], order[second] = second, first
    return _permuted(call, value, order)


def matrix_transpose(call: Call) -> Result:
    """The last two axes swapped (``t``, ``mT``), or all in the opposite order (``numpy_T``)."""
    value = call.value("self")
    order = list(range(len(value.shape)))
    if call.name == "numpy_T":
        order.reverse()
    elif len(order) > 1:
        order[-2:] = order[:-3:-1]
    return _permuted(call, value, order)


def movedim(call: Call) -> Result:
    """Some axes move to new places; the others keep their order."""
    value = call.value("self")
    ndim = len(value.shape)
    source, target = call.axes("source", ndim), call.axes("destination", ndim)
    order = [axis for axis in range(ndim) if axis not in source]
    for place, axis in sorted(zip(target, source, strict=True)):
        order.insert(place, axis)
    return _permuted(call, value, order)


def squeeze_or_unsqueeze(call: Call) -> Result:
    """Axes of size one come and go; all others keep their order."""
    return _same_order(call, call.value("self"))


def expand(call: Call) -> Result:
    """Axes of size one grow, with the labels of the other tensor if there is one; labelled axes keep their size."""
    value, other = call.value("self"), call.optional("other")
    offset = len(call.shape) - len(value.shape)
    result = value.moved({axis: axis + offset for axis in range(len(value.shape))}, call.shape)
    for factor in result.factors:
        call.sizes("size", factor)
    grown = [axis for axis in range(len(call.shape)) if axis < offset or value.shape[axis - offset] < call.shape[axis]]
    taken = [] if other is None else [call.single(other, axis) for axis in grown]
    return call.output([*result.factors, *taken])


def reshape(call: Call) -> Result:
    """The labels of runs of axes with the same number of elements are laid out in the new shape."""
    value, shape = call.value("self"), call.shape
    runs = list(_runs(value.shape, shape))
    touched = [[run for run in runs if set(run[0]) & set(factor.axes)] for factor in value.factors]
    factors: list[Factor] = []
    for factor, factor_runs in zip(value.factors, touched, strict=True):
        if any(run in other_runs for run in factor_runs for other_runs in touched if other_runs is not factor_runs):
            call.freeze(factor.ids, "merges two axes that can be cut")
            continue
        before, after = (sum((run[side] for run in factor_runs), ()) for side in (0, 1))
        laid = simplified(after, _laid_out(value, factor, before, tuple(shape[axis] for axis in after)))
        if laid is not None:
            factors.append(laid)
            first = call.axis("dim", len(value.shape)) if call.name == "unflatten" else 0
            call.sizes(next((name for name in ("size", "shape", "sizes") if name in call.arguments), ""), laid, first)
            if len(laid.axes) > 1:
                call.labels.keep_rectangular(laid.ids)
    return call.output(factors, shape)


def pixel_shuffle(call: Call) -> Result:
    """r * r channels become the pixels of one channel: together they are one unit."""
    value = call.value("self")
    axis = len(value.shape) - 3
    factor = call.number("upscale_factor")
    ids = call.along(value, axis)
    other_factors = [other for other in value.factors if axis not in other.axes]
    if ids is None:
        return call.output(other_factors)
    rows = ids.reshape(-1, factor * factor)
    call.labels.unite(np.broadcast_to(rows[:, :1], rows.shape), rows)
    return call.output([*other_factors, Factor((axis,), rows[:, 0])])


def pixel_unshuffle(call: Call) -> Result:
    """The pixels of one channel become r * r channels, all of one unit."""
    value = call.value("self")
    axis = len(value.shape) - 3
    ids = call.along(value, axis)
    other_factors = [other for other in value.factors if axis not in other.axes]
    square = call.number("downscale_factor") ** 2
    return call.output([*other_factors, None if ids is None else Factor((axis,), np.repeat(ids, square))])


def channel_shuffle(call: Call) -> Result:
    """Channels are taken from all groups in turn: the grid of groups and channels must stay rectangular."""
    value = call.value("self")
    ids = call.along(value, 1)
    other_factors = [other for other in value.factors if 1 not in other.axes]
    if ids is None:
        return call.output(other_factors)
    grid = ids.reshape(call.number("groups"), -1)
    call.labels.unite(np.broadcast_to(grid[:1], grid.shape), grid)
    return call.output([*other_factors, Factor((1,), grid.T.reshape(-1))])


def _permuted(call: Call, value: Value, order: list[int]) -> Value:
    places = {old: new for new, old in enumerate(order)}
    return call.output(value.moved(places, call.shape).factors)


def _same_order(call: Call, value: Value) -> Value:
    kept = [axis for axis, size in enumerate(value.shape) if size > 1]
    new = [axis for axis, size in enumerate(call.shape) if size > 1]
    return call.output(value.moved(dict(zip(kept, new, strict=True)), call.shape).factors)


def _runs(before: tuple[int, ...], after: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Pair the smallest runs of axes, left to right, that have the same number of elements."""
    i = j = 0
    while i < len(before) and j < len(after):
        before_run, after_run = [i], [j]
        before_size, after_size = before[i], after[j]
        while before_size != after_size:
            if before_size < after_size:
                i += 1
                before_run.append(i)
                before_size *= before[i]
            else:
                j += 1
                after_run.append(j)
                after_size *= after[j]
        yield tuple(before_run), tuple(after_run)
        i, j = i + 1, j + 1


def _laid_out(value: Value, factor: Factor, run: tuple[int, ...], shape: tuple[int, ...]) -> np.ndarray:
    """The labels of every element of a run of axes, laid out in another shape."""
    index = tuple(slice(None) if axis in factor.axes else None for axis in run)
    full = np.broadcast_to(factor.ids[index], tuple(value.shape[axis] for axis in run))
    return full.reshape(shape)
