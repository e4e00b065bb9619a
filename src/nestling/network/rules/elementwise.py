"""Rules of operations that work element by element."""

from nestling.network.labels import Ids
from nestling.network.trace import Call, Result
from nestling.network.values import Factor, Value

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
    """Like any other, but two labelled tensors that come from the input make a residual stream."""
    tensors = call.all_tensors()
    labelled = [value for value in tensors if value.from_input and value.factors]
    return aligned(call, tensors, stream=len(labelled) > 1)


def prelu(call: Call) -> Result:
    """A slope for each channel goes with axis 1 of the input, a single one with nothing."""
    value, weight = call.value("self"), call.value("weight")
    if weight.shape[0] > 1:
        call.unite_along(value, 1, weight, 0)
    return call.passed(value)


def glu(call: Call) -> Result:
    """The two halves of an axis are multiplied position by position."""
    value = call.value("self")
    axis = call.axis("dim", len(value.shape))
    ids = call.along(value, axis)
    factors: list[Factor | None] = [f for f in value.factors if axis not in f.axes]
    if ids is not None:
        half = len(ids) // 2
        call.labels.unite(ids[:half], ids[half:])
        factors.append(Factor((axis,), ids[:half]))
    return call.output(factors)


def aligned(call: Call, tensors: list[Value], *, stream: bool = False) -> Value:
    """Unite the factors of tensors that are broadcast together and give the output's."""
    shape = call.shape
    kept: list[Factor] = []
    for value in tensors:
        offset = len(shape) - len(value.shape)
        shifted = value.moved({axis: axis + offset for axis in range(len(value.shape))}, shape)
        for factor in shifted.factors:
            _merge(call, kept, factor, stream)
    for factor in list(kept):
        if any(_fixed(value, axis, shape) for value in tensors for axis in factor.axes):
            call.freeze(factor.ids, "meets an axis of fixed size")
            kept.remove(factor)
    return call.output(kept, shape)


def _merge(call: Call, kept: list[Factor], factor: Factor, stream: bool) -> None:
    """Take a factor in: united with one over the same axes, cut down to the shared axis of one over others."""
    meeting = [other for other in kept if set(other.axes) & set(factor.axes)]
    if not meeting:
        kept.append(factor)
    elif len(meeting) == 1 and meeting[0].axes == factor.axes:
        call.labels.unite(meeting[0].ids, factor.ids, stream=stream)
    else:
        for other in meeting:
            kept.remove(other)
        kept.append(_common(call, [*meeting, factor]))


def _common(call: Call, factors: list[Factor]) -> Factor:
    """One factor over the axis that all of them share; where they share none, all are frozen together."""
    shared = set.intersection(*(set(factor.axes) for factor in factors))
    if not shared:
        for factor in factors:
            call.freeze(factor.ids, "mixes axes that were split in different ways")
        return factors[0]
    axis = min(shared)
    lines = [_line(call, factor, axis) for factor in factors]
    for line in lines[1:]:
        call.labels.unite(lines[0], line)
    return Factor((axis,), lines[0])


def _line(call: Call, factor: Factor, axis: int) -> Ids:
    sizes = dict(zip(factor.axes, factor.ids.shape, strict=True))
    shape = tuple(sizes.get(a, 1) for a in range(max(factor.axes) + 1))
    ids = call.along(Value(shape, (factor,)), axis)
    assert ids is not None
    return ids


def _fixed(value: Value, axis: int, shape: tuple[int, ...]) -> bool:
    """Whether a tensor has the full, unlabelled extent along an axis of the output."""
    own = axis - (len(shape) - len(value.shape))
    return own >= 0 and value.shape[own] > 1 and value.factor(own) is None
