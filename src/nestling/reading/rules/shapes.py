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
    """Some axes to new places, the others in their order."""
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
    """Axes of size one grow, to those of another tensor with its labels; labelled ones keep their size."""
    value, other = call.value("self"), call.optional("other")
    offset = len(call.shape) - len(value.shape)
    result = value.moved({axis: axis + offset for axis in range(len(value.shape))}, call.shape)
    for factor in result.factors:
        call.sizes("size", factor)
    grown = [axis for axis in range(len(call.shape)) if axis < offset or value.shape[axis - offset] < call.shape[axis]]
    taken = [] if other is None else [call.single(other, axis) for axis in grown]
    return call.output([*result.factors, *taken])


def reshape(call: Call) -> Result:
    """Runs of axes with the same number of elements are laid out anew, label by label."""
    value, shape = call.value("self"), call.shape
    runs = list(_runs(value.shape, shape))
    touched = [[run for run in runs if set(run[0]) & set(factor.axes)] for factor in value.factors]
    factors: list[Factor] = []
    for factor, own in zip(value.factors, touched, strict=True):
        if any(run in others for run in own for others in touched if others is not own):
            call.freeze(factor.ids, "merges two axes that can be cut")
            continue
        before, after = (sum((run[side] for run in own), ()) for side in (0, 1))
        laid = simplified(after, _laid_out(value, factor, before, tuple(shape[axis] for axis in after)))
        if laid is not None:
            factors.append(laid)
            first = call.axis("dim", len(value.shape)) if call.name == "unflatten" else 0
            call.sizes(next((n for n in ("size", "shape", "sizes") if n in call.arguments), ""), laid, first)
            if len(laid.axes) > 1:
                call.labels.keep_rectangular(laid.ids)
    return call.output(factors, shape)


def pixel_shuffle(call: Call) -> Result:
    """r * r channels become the pixels of one: they are one unit."""
    value = call.value("self")
    axis = len(value.shape) - 3
    factor = call.number("upscale_factor")
    ids = call.along(value, axis)
    rest = [f for f in value.factors if axis not in f.axes]
    if ids is None:
        return call.output(rest)
    rows = ids.reshape(-1, factor * factor)
    call.labels.unite(np.broadcast_to(rows[:, :1], rows.shape), rows)
    return call.output([*rest, Factor((axis,), rows[:, 0])])


def pixel_unshuffle(call: Call) -> Result:
    """The pixels of one channel become r * r channels that go with it."""
    value = call.value("self")
    axis = len(value.shape) - 3
    ids = call.along(value, axis)
    rest = [f for f in value.factors if axis not in f.axes]
    square = call.number("downscale_factor") ** 2
    return call.output([*rest, None if ids is None else Factor((axis,), np.repeat(ids, square))])


def channel_shuffle(call: Call) -> Result:
    """Channels of all groups in turn: the grid of groups and channels must stay rectangular."""
    value = call.value("self")
    ids = call.along(value, 1)
    rest = [f for f in value.factors if 1 not in f.axes]
    if ids is None:
        return call.output(rest)
    grid = ids.reshape(call.number("groups"), -1)
    call.labels.unite(np.broadcast_to(grid[:1], grid.shape), grid)
    return call.output([*rest, Factor((1,), grid.T.reshape(-1))])


def _permuted(call: Call, value: Value, order: list[int]) -> Value:
    places = {old: new for new, old in enumerate(order)}
    return call.output(value.moved(places, call.shape).factors)


def _same_order(call: Call, value: Value) -> Value:
    kept = [axis for axis, size in enumerate(value.shape) if size > 1]
    new = [axis for axis, size in enumerate(call.shape) if size > 1]
    return call.output(value.moved(dict(zip(kept, new, strict=True)), call.shape).factors)


def _runs(before: tuple[int, ...], after: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Pair the smallest runs of axes, left to right, that hold the same number of elements."""
    i = j = 0
    while i < len(before) and j < len(after):
        left, right = [i], [j]
        have, want = before[i], after[j]
        while have != want:
            if have < want:
                i += 1
                left.append(i)
                have *= before[i]
            else:
                j += 1
                right.append(j)
                want *= after[j]
        yield tuple(left), tuple(right)
        i, j = i + 1, j + 1


def _laid_out(value: Value, factor: Factor, run: tuple[int, ...], shape: tuple[int, ...]) -> np.ndarray:
    """The labels of every element of a run of axes, laid out in another shape."""
    index = tuple(slice(None) if axis in factor.axes else None for axis in run)
    full = np.broadcast_to(factor.ids[index], tuple(value.shape[axis] for axis in run))
    return full.reshape(shape)
