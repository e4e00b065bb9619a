"""Rules of operations that work element by element."""

from nestling.reading.trace import Call, Result
from nestling.reading.traced_value import Factor, Value

UNARY = """
    abs alias acos asin atan bernoulli bitwise_not ceil celu clamp clamp_max clamp_min clone contiguous cos cosh
    detach dropout alpha_dropout elu erf erfc exp expm1 floor frac gelu hardshrink hardsigmoid hardswish hardtanh
    isfinite isinf isnan leaky_relu lift_fresh_copy log log10 log1p log2 log_sigmoid logical_not logit mish
    nan_to_num neg negative ones_like rand_like randn_like reciprocal relu relu6 round rsqrt selu sgn sigmoid sign
    silu sin sinh softplus softshrink softsign sqrt square tan tanh tanhshrink threshold to _to_copy type_as trunc
    zeros_like full_like empty_like rrelu positive feature_dropout feature_alpha_dropout
""".split()
NARY = """
    sub rsub mul div true_divide multiply divide subtract maximum minimum fmax fmin where pow lerp addcmul addcdiv atan2
    fmod remainder eq ne lt le gt ge logical_and logical_or logical_xor masked_fill floor_divide copysign hypot xlogy
    bitwise_and bitwise_or
""".split()


def unary(call: Call) -> Result:
    """The output carries the labels of the only tensor."""
    return call.passed(call.all_tensors()[0])


def nary(call: Call) -> Result:
    """Axes are aligned from the right; labelled axes that meet are united, broadcast ones give way."""
    return aligned(call, call.all_tensors())


def add(call: Call) -> Result:
    """Like any other operation, but two labelled tensors that depend on the input make a residual stream."""
    tensors = call.all_tensors()
    labelled = [value for value in tensors if value.from_input and value.factors]
    return aligned(call, tensors, stream=len(labelled) > 1)


def prelu(call: Call) -> Result:
    """Slopes per channel go with axis 1 of the input; a single slope goes with no axis."""
    value, weight = call.value("self"), call.value("weight")
    if weight.shape[0] > 1:
        call.unite_along(value, 1, weight, 0)
    return call.passed(value)


def glu(call: Call) -> Result:
    """The two halves of an axis are multiplied position by position."""
    value = call.value("self")
    axis = call.axis("dim", len(value.shape))
    ids = call.along(value, axis)
    factors: list[Factor | None] = [factor for factor in value.factors if axis not in factor.axes]
    if ids is not None:
        half = len(ids) // 2
        call.labels.unite(ids[:half], ids[half:])
        factors.append(Factor((axis,), ids[:half]))
    return call.output(factors)


def aligned(call: Call, tensors: list[Value], *, stream: bool = False) -> Value:
    """Unite the factors of tensors that are broadcast together and give the output's."""
    shape = call.shape
    kept: dict[tuple[int, ...], Factor] = {}
    for value in _reconcile(call, [_widened(value, len(shape)) for value in tensors]):
        for factor in value.factors:
            first = kept.setdefault(factor.axes, factor)
            call.labels.unite(first.ids, factor.ids, stream=stream)
    return call.output(list(kept.values()), shape)


def _widened(value: Value, ndim: int) -> Value:
    """The value with axes of size one in front."""
    offset = ndim - len(value.shape)
    return value.moved({axis: axis + offset for axis in range(len(value.shape))}, (1,) * offset + value.shape)


def _reconcile(call: Call, values: list[Value]) -> list[Value]:
    """The values, changed so that each axis is labelled in all values of its full size, split alike, or in none."""
    while (disagreement := _disagreement(values)) is not None:
        index, axis = disagreement
        values[index] = call.settle(values[index], axis, "meets an axis of fixed size")
    return values


def _disagreement(values: list[Value]) -> tuple[int, int] | None:
    """A value, by its index, and an axis of it that must keep its size because of another value."""
    for index, value in enumerate(values):
        for factor in value.factors:
            for other in values:
                axis = _axis_to_settle(factor, other)
                if axis is not None:
                    return index, axis
    return None


def _axis_to_settle(factor: Factor, other: Value) -> int | None:
    """The axis along which a factor can't be cut because another value has it fixed or split off in another way.

    If two values were split in different ways, the axis they share is cut, unless it is the last: that is the inside of
    a head (as in rotary position embeddings), and the heads are cut instead.
    """
    last = len(other.shape) - 1
    for axis in factor.axes:
        other_factor = other.factor(axis)
        if other_factor is None:
            if other.shape[axis] > 1:
                return axis
        elif other_factor.axes != factor.axes:
            shared = [factor_axis for factor_axis in factor.axes if factor_axis in other_factor.axes]
            if shared == [last]:
                return last
            alone = [factor_axis for factor_axis in factor.axes if factor_axis not in shared]
            if alone:
                return alone[-1]
    return None
