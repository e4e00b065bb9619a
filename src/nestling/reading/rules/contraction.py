"""Rules of operations that sum over an axis against a second tensor: convolution, linear, matrix products, einsum."""

import numpy as np

from nestling.reading.labels import Ids
from nestling.reading.trace import Call, Result
from nestling.reading.traced_value import Factor, Value


def convolution(call: Call) -> Result:
    """Input channels unite with weight axis 1; output channels are weight axis 0, as is the bias."""
    return _convolve(call, transposed=False)


def transposed_convolution(call: Call) -> Result:
    """As a convolution with weight axes 0 and 1 swapped."""
    return _convolve(call, transposed=True)


def any_convolution(call: Call) -> Result:
    """The overload that carries ``transposed`` as an argument."""
    return _convolve(call, transposed=bool(call.arguments["transposed"]))


def linear(call: Call) -> Result:
    """The input's last axis unites with weight axis 1; the output's last axis is weight axis 0, as is the bias."""
    value, weight, bias = call.value("input"), call.value("weight"), call.optional("bias")
    last = len(value.shape) - 1
    _contract(call, value, last, weight, len(weight.shape) - 1)
    return _with_output(call, value, last, weight, bias)


def matmul(call: Call) -> Result:
    """Batch axes unite, the inner axes are summed over."""
    left, right = (call.value(name) for name in [argument.name for argument in call.schema.arguments][:2])
    return _matmul(call, left, right)


def addmm(call: Call) -> Result:
    """A matrix product with a bias along its last axis."""
    product = _matmul(call, call.value("mat1"), call.value("mat2"))
    bias = call.value("self")
    if bias.shape[-1] > 1:
        call.unite_along(product, len(product.shape) - 1, bias, len(bias.shape) - 1)
    return product


def einsum(call: Call) -> Result:
    """Axes of the same letter unite; letters that are missing from the output are summed over."""
    equation = str(call.arguments["equation"]).replace(" ", "")
    inputs, arrow, output = equation.partition("->")
    names = inputs.split(",")
    if not arrow or "." in equation or any(len(set(letters)) < len(letters) for letters in names):
        return call.unknown()
    values = [_keep_heads(call, tensor) for tensor in call.tensors("tensors")]
    operands = list(zip(names, values, strict=True))
    letters = dict.fromkeys(inputs.replace(",", ""))
    return call.output([_letter(call, letter, operands, output) for letter in letters])


def _keep_heads(call: Call, value: Value) -> Value:
    """Of axes that were split off together, only the first can be cut: it counts heads."""
    for factor in value.factors:
        if len(factor.axes) > 1:
            call.labels.mark(factor.ids, "head")
            for axis in factor.axes[:0:-1]:
                value = call.settle(value, axis, "multiplies along the axis")
    return value


def _letter(call: Call, letter: str, operands: list[tuple[str, Value]], output: str) -> Factor | None:
    """Unite the axes of one letter of an einsum; the factor that the letter has on the output, if any."""
    axes = [(value, letters.index(letter)) for letters, value in operands if letter in letters]
    lines = [(value, call.along(value, axis)) for value, axis in axes if value.shape[axis] > 1]
    labelled = [ids for _, ids in lines if ids is not None]
    for ids in labelled[1:]:
        call.labels.unite(labelled[0], ids)
    summed = letter not in output
    for value, line in lines:
        if summed and line is not None and not value.from_input:
            call.labels.mark(line, "read")
    if not labelled:
        return None
    if len(labelled) < len(lines) or (summed and len(lines) == 1):
        call.freeze(labelled[0], "sums over the axis" if summed else "meets an axis of fixed size")
        return None
    return None if summed else Factor((output.index(letter),), labelled[0])


def _convolve(call: Call, *, transposed: bool) -> Value:
    value, weight, bias = call.value("input"), call.value("weight"), call.optional("bias")
    num_spatial = len(weight.shape) - 2
    channel = len(value.shape) - num_spatial - 1
    groups = call.number("groups")
    for axis in range(channel + 1, len(value.shape)):
        value = call.settle(value, axis, "slides over the axis")
    for axis in range(2, len(weight.shape)):
        kernel = weight.factor(axis)
        if kernel is not None:
            call.labels.mark(kernel.ids, "kernel")
        weight = call.settle(weight, axis, "slides over the axis")
    read, write = (0, 1) if transposed else (1, 0)
    if groups == 1:
        _contract(call, value, channel, weight, read)
        out = call.along(weight, write)
    else:
        out = _grouped(call, value, channel, weight, groups, transposed=transposed)
    if out is not None:
        call.labels.mark(out, "channel")
    if bias is not None and bias.shape[0] > 1:
        out = call.unite_lines(out, call.along(bias, 0), "adds a bias of fixed size")
    kept = [factor for factor in value.factors if channel not in factor.axes]
    return call.output([*kept, None if out is None else Factor((channel,), out)])


def _grouped(call: Call, value: Value, channel: int, weight: Value, groups: int, *, transposed: bool) -> Ids | None:
    """One group of a convolution is one unit: all its inputs with all its outputs."""
    inputs, rows = call.along(value, channel), call.along(weight, 0)
    weight = call.settle(weight, 1, "has a fixed number of channels in each group")
    num_out = call.shape[channel]
    if rows is None:
        return None
    by_group = rows.reshape(groups, -1)
    call.labels.unite(np.broadcast_to(by_group[:, :1], by_group.shape), by_group)
    if inputs is None:
        call.freeze(rows, "takes its input groups from an axis of fixed size")
        return None
    paired = inputs.reshape(groups, -1)
    call.labels.unite(np.broadcast_to(by_group[:, :1], paired.shape), paired)
    if paired.shape[1] > 1 or num_out > groups:
        call.labels.mark(rows, "path")
    call.size(("groups",), inputs)
    return rows if not transposed else np.repeat(by_group[:, 0], num_out // groups)


def _contract(call: Call, value: Value, axis: int, weight: Value, weight_axis: int) -> None:
    """Sum ``value`` along an axis against a weight, which so reads the elements of that axis."""
    if value.shape[axis] == 1:
        return
    call.unite_along(value, axis, weight, weight_axis)
    read = call.along(weight, weight_axis)
    if read is not None:
        call.labels.mark(read, "read")


def _with_output(call: Call, value: Value, last: int, weight: Value, bias: Value | None) -> Value:
    kept = [factor for factor in value.factors if last not in factor.axes]
    if len(weight.shape) == 1:
        return call.output(kept)
    out = call.along(weight, 0)
    if bias is not None and bias.shape[0] > 1:
        out = call.unite_lines(out, call.along(bias, 0), "adds a bias of fixed size")
    return call.output([*kept, None if out is None else Factor((last,), out)])


def _matmul(call: Call, left: Value, right: Value) -> Value:
    if len(left.shape) < 2 or len(right.shape) < 2:
        call.freeze_all("multiplies by a vector")
        return call.output([])
    for value in (left, right):
        _mark_heads(call, value)
    rows, inner_left = len(left.shape) - 2, len(left.shape) - 1
    inner_right, columns = len(right.shape) - 2, len(right.shape) - 1
    if left.shape[inner_left] > 1:
        _sum_over(call, left, inner_left, right, inner_right)
    out: list[Factor | None] = []
    ndim = len(call.shape)
    for axis in range(ndim - 2):
        out.append(_batch_axis(call, left, right, axis, ndim))
    for value, axis, place in ((left, rows, ndim - 2), (right, columns, ndim - 1)):
        ids = _free_axis(call, value, axis)
        out.append(None if ids is None else Factor((place,), ids))
    return call.output(out)


def _mark_heads(call: Call, value: Value) -> None:
    """Mark as heads the batch axes of a product that were split off together with a matrix axis."""
    for factor in value.factors:
        if factor.axes[-1] >= len(value.shape) - 2 and factor.axes[0] < len(value.shape) - 2:
            call.labels.mark(factor.ids, "head")


def _sum_over(call: Call, left: Value, left_axis: int, right: Value, right_axis: int) -> None:
    """Unite the inner axes of a product; they keep their size if one was split off with a batch axis (head size)."""
    factors = left.factor(left_axis), right.factor(right_axis)
    if any(factor is not None and len(factor.axes) > 1 for factor in factors):
        call.settle(left, left_axis, "sums over the axis")
        call.settle(right, right_axis, "sums over the axis")
        return
    if left.from_input and right.from_input:
        call.unite_along(left, left_axis, right, right_axis)
    elif right.from_input:
        _contract(call, right, right_axis, left, left_axis)
    else:
        _contract(call, left, left_axis, right, right_axis)


def _free_axis(call: Call, value: Value, axis: int) -> Ids | None:
    factor = value.factor(axis)
    if factor is None or len(factor.axes) == 1:
        return None if factor is None else factor.ids
    call.settle(value, axis, "is multiplied along the axis")
    return None


def _batch_axis(call: Call, left: Value, right: Value, axis: int, ndim: int) -> Factor | None:
    lines: list[Ids] = []
    fixed = False
    for value in (left, right):
        value_axis = axis - (ndim - len(value.shape))
        if value_axis < 0 or value.shape[value_axis] == 1:
            continue
        ids = call.along(value, value_axis)
        if ids is None:
            fixed = True
        else:
            lines.append(ids)
    for ids in lines[1:]:
        call.labels.unite(lines[0], ids)
    if lines and fixed:
        call.freeze(lines[0], "meets an axis of fixed size")
    return Factor((axis,), lines[0]) if lines and not fixed else None
