"""Rules of operations that summarise, normalise or resample along axes: reductions, softmax, pooling, interpolation."""

from nestling.reading.rules.patterns import is_norm
from nestling.reading.trace import Call, Result
from nestling.reading.traced_value import Factor, Value

POOLS = """
    max_pool1d max_pool2d max_pool3d avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d
    adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d upsample_nearest1d
    upsample_nearest2d upsample_nearest3d upsample_bilinear2d upsample_bicubic2d upsample_linear1d upsample_trilinear3d
    _upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_bilinear2d_aa _upsample_bicubic2d_aa
    max_pool2d_with_indices max_pool3d_with_indices
""".split()
REDUCTIONS = """
    mean sum amax amin max min prod var std norm linalg_vector_norm logsumexp any all argmax argmin var_mean std_mean
    median nansum nanmean
""".split()
ALONG = "softmax log_softmax _softmax _log_softmax cumsum cumprod sort topk".split()


def reduce(call: Call) -> Result:
    """The axes that are summarised over keep their size; the others pass."""
    value = call.all_tensors()[0]
    ndim = len(value.shape)
    name = next((argument for argument in ("dim", "dims") if argument in call.arguments), None)
    if name is None and ndim and call.name in ("max", "min") and len(call.all_tensors()) == 2:
        call.freeze_all("is an operation without a rule")
        return call.unknown()
    axes = call.axes(name, ndim) if name else list(range(ndim))
    if call.name == "mean" and is_norm(call.node):
        value = _statistics_of_kept(call, value, axes)
    for axis in axes:
        value = call.settle(value, axis, "summarises over the axis")
    keeps_axes = bool(call.arguments.get("keepdim", False))
    kept = [axis for axis in range(ndim) if axis not in axes]
    places = {axis: axis if keeps_axes else axis - sum(reduced < axis for reduced in axes) for axis in kept}
    factors = [Factor(tuple(places[axis] for axis in factor.axes), factor.ids) for factor in value.factors]
    return _outputs(call, factors)


def along_axis(call: Call) -> Result:
    """Every element of the axis depends on the others: it keeps its size (softmax, cumulative sums, sorting)."""
    value = call.all_tensors()[0]
    axis = call.axis("dim", len(value.shape))
    return _outputs(call, list(call.settle(value, axis, "works along the axis").factors))


def rearrange(call: Call) -> Result:
    """Elements change places along some axes (flip, roll), which keep their size."""
    value = call.value("self")
    for axis in call.axes("dims", len(value.shape)):
        value = call.settle(value, axis, "rearranges the axis")
    return call.output(value.factors)


def pool(call: Call) -> Result:
    """Batch and channels pass; the spatial axes, which change, must carry no label."""
    value = call.all_tensors()[0]
    for axis in range(len(value.shape)):
        if axis >= len(value.shape) - _num_spatial(call.name):
            value = call.settle(value, axis, "resamples the axis")
    return _outputs(call, list(value.factors))


def _statistics_of_kept(call: Call, value: Value, axes: list[int]) -> Value:
    """The value of a written-out norm, which takes its statistics over the kept elements, as torch's norms do."""
    for axis in axes:
        factor = value.factor(axis)
        if factor is not None and len(factor.axes) == 1:
            call.labels.mark(factor.ids, "inexact")
            value = value.without(factor)
    return value


def _num_spatial(name: str) -> int:
    return int(next(character for character in name if character.isdigit()))


def _outputs(call: Call, factors: list[Factor]) -> Value | tuple[Value, ...]:
    if isinstance(call.node.meta["val"], tuple | list):
        return tuple(call.output(factors, shape) for shape in call.shapes())
    return call.output(factors)
