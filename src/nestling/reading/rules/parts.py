"""Rules of operations that join tensors along an axis, or take parts of one."""

from collections.abc import Iterator

import numpy as np
from torch import fx

from nestling.reading.graph import hint, shape_of
from nestling.reading.trace import Call, Result, rows_along
from nestling.reading.traced_value import Factor, Value, simplified

PADS = """
    pad constant_pad_nd reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d
    replication_pad3d
""".split()


def cat(call: Call) -> Result:
    """Labels are joined along the axis; the other axes unite."""
    tensors = [value for value in call.tensors("tensors") if value.shape != (0,)]  # an empty cache, say
    if len(tensors) == 1:
        return call.passed(tensors[0])
    axis = call.axis("dim", len(call.shape))
    lines = [call.along(value, axis) for value in tensors]
    factors = [_join(call, tensors, other, other) for other in range(len(call.shape)) if other != axis]
    if any(line is not None for line in lines):
        pairs = zip(tensors, lines, strict=True)
        joined = [_fixed_part(call, value.shape[axis]) if line is None else line for value, line in pairs]
        factors.append(Factor((axis,), np.concatenate(joined)))
    return call.output(factors)


def stack(call: Call) -> Result:
    """Tensors of one shape on a new axis: their axes unite."""
    tensors = call.tensors("tensors")
    axis = call.axis("dim", len(call.shape))
    return call.output([_join(call, tensors, other, other + (other >= axis)) for other in range(len(call.shape) - 1)])


def chunk(call: Call) -> Result:
    """Equal parts of an axis must stay equal: they unite position by position."""
    value = call.value("self")
    axis = call.axis("dim", len(value.shape))
    pieces = _pieces(call, value, axis, [shape[axis] for shape in call.shapes()])
    _stay_equal(call, pieces, axis)
    return pieces


def split(call: Call) -> Result:
    """Parts of listed sizes shrink independently; parts of one common size shrink together."""
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
            others = [[factor for factor in piece.factors if axis not in factor.axes] for piece in pieces]
            return tuple(call.output(kept, piece.shape) for kept, piece in zip(others, pieces, strict=True))
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
    """A range of an axis: the whole axis passes, ranges that cover it once are a split, any other range is frozen."""
    value = call.value("self")
    axis = call.axis("dim", len(value.shape))
    if call.shape[axis] == value.shape[axis]:
        return call.passed(value)
    factor, bounds = value.factor(axis), _range(call.node, axis, value)
    if factor is not None and len(factor.axes) == 1 and bounds is not None and _cover_the_axis(call.node, axis, value):
        return _part(call, value, factor, *bounds)
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


def _join(call: Call, tensors: list[Value], axis: int, place: int) -> Factor | None:
    """Unite an axis along which tensors lie side by side, unless it has a fixed size in some of them."""
    lines = [call.along(value, axis) for value in tensors]
    labelled = [line for line in lines if line is not None]
    for line in labelled[1:]:
        call.labels.unite(labelled[0], line)
    if labelled and len(labelled) < len(lines):
        call.freeze(labelled[0], "joins it with an axis of fixed size")
        return None
    return Factor((place,), labelled[0]) if labelled else None


def _padding(amounts: list[int], from_the_end: int) -> tuple[int, int]:
    """The padding before and after an axis; ``amounts`` begin with the last axis."""
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
            factors: list[Factor | None] = list(value.factors)
        else:
            position = factor.axes.index(axis)
            ids = factor.ids.take(range(start, start + size), position)
            factors = [*value.without(factor).factors, simplified(factor.axes, ids)]
        shape = tuple(size if other == axis else other_size for other, other_size in enumerate(value.shape))
        pieces.append(call.output(factors, shape))
        start += size
    return tuple(pieces)


def _cover_the_axis(node: fx.Node, axis: int, value: Value) -> bool:
    """Whether the slices of one tensor, of which ``node`` is one, cover an axis and take each element once."""
    source = node.all_input_nodes[0]
    while _is_whole(source):
        source = source.all_input_nodes[0]
    ranges = sorted({bounds for user in _readers(source) if (bounds := _range(user, axis, value)) is not None})
    ends = [0, *(end for _, end in ranges)]
    return [start for start, _ in ranges] == ends[:-1] and ends[-1] == value.shape[axis]


def _readers(node: fx.Node) -> Iterator[fx.Node]:
    """The nodes that use a tensor, directly or through a slice that takes all of it."""
    for user in node.users:
        if _is_whole(user):
            yield from _readers(user)
        else:
            yield user


def _is_whole(node: fx.Node) -> bool:
    return str(node.target) == "aten.slice.Tensor" and shape_of(node) == shape_of(node.all_input_nodes[0])


def _range(node: fx.Node, axis: int, value: Value) -> tuple[int, int] | None:
    """Start and end of the range that a node takes of an axis, if it is a slice of several elements without gaps."""
    if str(node.target) != "aten.slice.Tensor" or not node.users:
        return None
    arguments = [hint(argument) for argument in node.args[1:]]
    dim, start, end, step = arguments + [0, None, None, 1][len(arguments) :]
    if dim % len(value.shape) != axis or step != 1 or min(start or 0, end or 0) < 0:
        return None
    first, after, _ = slice(start, end).indices(value.shape[axis])
    return (first, after) if after - first > 1 else None


def _part(call: Call, value: Value, factor: Factor, start: int, end: int) -> Value:
    """One of the ranges that cover an axis; its start and end depend on how many elements before them are kept."""
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
    shape = tuple(size for old, size in enumerate(value.shape) if old != axis)
    places = {old: old - (old > axis) for old in range(len(value.shape)) if old != axis}
    factors: list[Factor | None] = []
    for old_factor in value.factors:
        if old_factor is factor:
            other_axes = tuple(places[old] for old in old_factor.axes if old != axis)
            factors.append(simplified(other_axes, np.take(old_factor.ids, index, axis=old_factor.axes.index(axis))))
        else:
            factors.append(Factor(tuple(places[old] for old in old_factor.axes), old_factor.ids))
    return call.output(factors, shape)


def _grown(call: Call, reason: str) -> Value:
    value = call.value("self")
    offset = len(call.shape) - len(value.shape)
    for axis, size in enumerate(value.shape):
        if call.shape[axis + offset] != size:
            value = call.settle(value, axis, reason)
    moved = value.moved({axis: axis + offset for axis in range(len(value.shape))}, call.shape)
    return call.output(moved.factors)
