"""Rules of operations that only move, split, join or rename axes."""

from collections.abc import Iterator

import numpy as np
from torch import fx

from nestling.network.graph import hint, shape_of
from nestling.network.trace import Call, Result, rows_along
from nestling.network.values import Factor, Value, simplified

PADS = """
    pad constant_pad_nd reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d
    replication_pad3d
""".split()


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


def cat(call: Call) -> Result:
    """Labels follow each other along the axis; the other axes unite."""
    tensors = [value for value in call.tensors("tensors") if value.shape != (0,)]
    shape = call.shape
    axis = call.axis("dim", len(shape))
    parts = [call.along(value, axis) for value in tensors]
    factors: list[Factor | None] = []
    if any(part is not None for part in parts):
        joined = [_fixed_part(call, v.shape[axis]) if p is None else p for v, p in zip(tensors, parts, strict=True)]
        factors.append(Factor((axis,), np.concatenate(joined)))
    for other in (a for a in range(len(shape)) if a != axis and shape[a] > 1):
        lines = [call.along(value, other) for value in tensors]
        known = [line for line in lines if line is not None]
        for line in known[1:]:
            call.labels.unite(known[0], line)
        if known and len(known) < len(lines):
            call.freeze(known[0], "joins it with an axis of fixed size")
        elif known:
            factors.append(Factor((other,), known[0]))
    return call.output(factors)


def stack(call: Call) -> Result:
    """Tensors of one shape on a new axis: their axes unite."""
    tensors, shape = call.tensors("tensors"), call.shape
    axis = call.axis("dim", len(shape))
    factors: list[Factor | None] = []
    for other in range(len(shape) - 1):
        lines = [call.along(value, other) for value in tensors]
        known = [line for line in lines if line is not None]
        for line in known[1:]:
            call.labels.unite(known[0], line)
        if known and len(known) < len(lines):
            call.freeze(known[0], "joins it with an axis of fixed size")
        elif known:
            factors.append(Factor((other + (other >= axis),), known[0]))
    return call.output(factors)


def chunk(call: Call) -> Result:
    """Code that cuts an axis in equal parts must find equal parts again: they unite position by position."""
    value = call.value("self")
    axis = call.axis("dim", len(value.shape))
    pieces = _pieces(call, value, axis, [shape[axis] for shape in call.shapes()])
    _stay_equal(call, pieces, axis)
    return pieces


def split(call: Call) -> Result:
    """Parts of stated sizes, each of which shrinks on its own; of one size, all of which shrink together."""
    value = call.value("self")
    axis = call.axis("dim", len(value.shape))
    sizes = [shape[axis] for shape in call.shapes()]
    pieces = _pieces(call, value, axis, sizes)
    if call.name.startswith("split_with_sizes") or isinstance(call.arguments.get("split_size"), list):
        name = "split_sizes" if "split_sizes" in call.arguments else "split_size"
        for position, piece in enumerate(pieces):
            factor = piece.factor(axis)
            call.size((name, position), None if factor is None else rows_along(factor, axis))
    elif value.factor(axis) is not None:
        if call.name == "tensor_split" or len(set(sizes)) > 1:
            call.freeze_all("splits the axis by a fixed size")
            return tuple(call.output([f for f in p.factors if axis not in f.axes], p.shape) for p in pieces)
        _stay_equal(call, pieces, axis)
        factor = pieces[0].factor(axis)
        call.size(("split_size",), None if factor is None else rows_along(factor, axis))
    return pieces


def unbind(call: Call) -> Result:
    """One tensor for each position of an axis, which disappears."""
    value = call.value("self")
    axis = call.axis("dim", len(value.shape))
    return tuple(_selected(call, value, axis, index) for index in range(value.shape[axis]))


def select(call: Call) -> Result:
    """One position of an axis, which disappears."""
    value = call.value("self")
    axis = call.axis("dim", len(value.shape))
    return _selected(call, value, axis, call.number("index") % value.shape[axis])


def slice_(call: Call) -> Result:
    """A range of an axis: the whole changes nothing, ranges that share it out are a split, any other part is frozen."""
    value = call.value("self")
    axis = call.axis("dim", len(value.shape))
    if call.shape[axis] == value.shape[axis]:
        return call.passed(value)
    factor, own = value.factor(axis), _range(call.node, axis, value)
    if factor is not None and len(factor.axes) == 1 and own is not None and _shared_out(call.node, axis, value):
        return _part(call, value, factor, *own)
    return call.output(call.settle(value, axis, "takes a fixed part of the axis").factors)


def narrow(call: Call) -> Result:
    """A range of an axis by start and length."""
    return slice_(call)


def pad(call: Call) -> Result:
    """New elements at the ends of the last axes. Those beside a labelled axis are a fixed number of zeros."""
    value = call.value("self")
    constant = call.name == "constant_pad_nd" or call.arguments.get("mode") == "constant"
    amounts = call.numbers("pad" if "pad" in call.arguments else "padding")
    factors: list[Factor | None] = []
    for axis in range(len(value.shape)):
        before, after = _padding(amounts, len(value.shape) - 1 - axis)
        factor = value.factor(axis)
        if factor is None or not (before or after):
            continue
        if constant and len(factor.axes) == 1 and before >= 0 and after >= 0:
            parts = [_fixed_part(call, before), factor.ids, _fixed_part(call, after)]
            factors.append(Factor((axis,), np.concatenate(parts)))
            value = value.without(factor)
        else:
            value = call.settle(value, axis, "pads the axis")
    return call.output([*value.factors, *factors])


def repeat(call: Call) -> Result:
    """Copies along axes without labels."""
    return _grown(call, "repeats the axis")


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


def _padding(amounts: list[int], from_the_end: int) -> tuple[int, int]:
    """What is added before and after an axis; the amounts are those of the last axis first."""
    before, after = (2 * from_the_end, 2 * from_the_end + 1)
    return (amounts[before], amounts[after]) if after < len(amounts) else (0, 0)


def _fixed_part(call: Call, size: int) -> np.ndarray:
    ids = call.labels.new(size)
    call.freeze(ids, "joins it with a part of fixed size")
    return ids


def _pieces(call: Call, value: Value, axis: int, sizes: list[int]) -> tuple[Value, ...]:
    pieces, start = [], 0
    factor = value.factor(axis)
    for size in sizes:
        if factor is None:
            part: list[Factor | None] = list(value.factors)
        else:
            position = factor.axes.index(axis)
            ids = factor.ids.take(range(start, start + size), position)
            part = [*value.without(factor).factors, simplified(factor.axes, ids)]
        shape = tuple(size if a == axis else s for a, s in enumerate(value.shape))
        pieces.append(call.output(part, shape))
        start += size
    return tuple(pieces)


def _shared_out(node: fx.Node, axis: int, value: Value) -> bool:
    """Whether the slices of one tensor, of which ``node`` is one, are the whole of an axis, each element once."""
    source = node.all_input_nodes[0]
    while _is_whole(source):
        source = source.all_input_nodes[0]
    ranges = sorted({found for user in _readers(source) if (found := _range(user, axis, value)) is not None})
    ends = [0, *(end for _, end in ranges)]
    return [start for start, _ in ranges] == ends[:-1] and ends[-1] == value.shape[axis]


def _readers(node: fx.Node) -> Iterator[fx.Node]:
    """The nodes that use a tensor, by itself or as a slice that is the whole of it."""
    for user in node.users:
        if _is_whole(user):
            yield from _readers(user)
        else:
            yield user


def _is_whole(node: fx.Node) -> bool:
    return str(node.target) == "aten.slice.Tensor" and shape_of(node) == shape_of(node.all_input_nodes[0])


def _range(node: fx.Node, axis: int, value: Value) -> tuple[int, int] | None:
    """Start and end of what a node takes of an axis, if it is a slice of several elements without gaps."""
    if str(node.target) != "aten.slice.Tensor" or not node.users:
        return None
    given = [hint(argument) for argument in node.args[1:]]
    dim, start, end, step = given + [0, None, None, 1][len(given) :]
    if dim % len(value.shape) != axis or step != 1 or min(start or 0, end or 0) < 0:
        return None
    first, after, _ = slice(start, end).indices(value.shape[axis])
    return (first, after) if after - first > 1 else None


def _part(call: Call, value: Value, factor: Factor, start: int, end: int) -> Value:
    """One of the ranges that an axis is shared out in; where it starts and ends depends on what is left before it."""
    if start:
        call.size(("start",), factor.ids[:start])
    if end < len(factor.ids):
        call.size(("end",), factor.ids[:end])
    return call.output([*value.without(factor).factors, Factor(factor.axes, factor.ids[start:end])])


def _stay_equal(call: Call, pieces: tuple[Value, ...], axis: int) -> None:
    """Unite equal parts of an axis position by position; unequal ones are frozen."""
    first, *others = [piece.factor(axis) for piece in pieces]
    for other in others:
        if first is not None and other is not None and first.ids.shape == other.ids.shape:
            call.labels.unite(first.ids, other.ids)
        else:
            call.freeze_all("splits the axis unevenly")


def _selected(call: Call, value: Value, axis: int, index: int) -> Value:
    factor = value.factor(axis)
    if factor is not None and len(factor.axes) == 1:
        call.freeze(factor.ids, "picks single positions of the axis")
        value, factor = value.without(factor), None
    shape = tuple(size for a, size in enumerate(value.shape) if a != axis)
    places = {a: a - (a > axis) for a in range(len(value.shape)) if a != axis}
    factors: list[Factor | None] = []
    for f in value.factors:
        if f is factor:
            rest = tuple(places[a] for a in f.axes if a != axis)
            factors.append(simplified(rest, np.take(f.ids, index, axis=f.axes.index(axis))))
        else:
            factors.append(Factor(tuple(places[a] for a in f.axes), f.ids))
    return call.output(factors, shape)


def _grown(call: Call, reason: str) -> Value:
    value = call.value("self")
    offset = len(call.shape) - len(value.shape)
    for axis, size in enumerate(value.shape):
        if call.shape[axis + offset] != size:
            value = call.settle(value, axis, reason)
    moved = value.moved({axis: axis + offset for axis in range(len(value.shape))}, call.shape)
    return call.output(moved.factors)
