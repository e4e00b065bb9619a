"""FN3's nested quantiser: weights as sums of step functions in symmetric pairs, of which a cut keeps the first few."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from nestling.arguments import count, positive_number
from nestling.errors import ArgumentError, DtypeError, RangeError, ShapeError
from nestling.reading import HOWS, How
from nestling.tensor_arguments import floating_tensor, probabilities, real_tensor, whole_tensor

LEVELS = (0.0, 1.0, 2.0, 4.0, 8.0)
"""The values that |tau w| can have; each pair of steps adds the next one, on both sides (FN3)."""
STEPS = (1.0, 1.0, 2.0, 4.0)
"""The height a_j of both steps of each pair: the gap that it bridges."""
THRESHOLDS = (0.5, 1.5, 3.0, 6.0)
"""Where |tau w| passes each pair: halfway between two levels, a choice that FN3 leaves open (erratum E24)."""
NUM_PAIRS = len(STEPS)

_BOUNDS = (1.5, 2.5, 5.0, 10.0)  # half a step beyond the outermost level of each number of pairs
_REACH = 5 * LEVELS[-1] / 4  # tau times the largest weight, at FN3's start
_SATURATED = 10.0  # where Quantization Networks stop the argument of a sigmoid
_GRID = 129  # scales that a fit tries first
_ROOM = 16.0  # between 1 / tau and the ends of a dtype, so that no level overflows


def levels(num_pairs: int) -> tuple[float, ...]:
    """The levels, in units of 1 / tau, of weights with that many pairs of steps, smallest first."""
    kept = LEVELS[1 : check_num_pairs(num_pairs) + 1]
    return (*(-level for level in reversed(kept)), 0.0, *kept)


def quantise(
    weight: Tensor,
    log_tau: Tensor,
    num_pairs: int = NUM_PAIRS,
    *,
    how: How = "straight_through",
    sharpness: float = 20.0,
) -> Tensor:
    """S(w) = [sum_j a_j H(tau w - z_j) - sum_j a_j / 2] / tau over the steps of the first pairs (FN3 eq. 5, E24).

    ``log_tau`` is one number, or one number per channel in a shape that broadcasts over the weight. A weight on a
    threshold takes the level nearer to zero. A weight that is NaN or infinite becomes NaN, so that divergence is seen.

    ``"straight_through"`` has the gradient of the identity up to half a step beyond the outermost level, and zero
    beyond that. Since S(c w, tau / c) = c S(w, tau), dS/dlog tau = w dS/dw - S for any choice of dS/dw, so the scale's
    gradient is w - S inside and -S outside. ``"sigmoid"`` has sigmoid(T x), with T x limited to +-10, in place of
    H(x). T is the ``sharpness``, for which Quantization Networks take 20 in the first epoch, 40 in the second and at
    most 2000. It is for training; test with hard steps.
    """
    kept = check_num_pairs(num_pairs)
    _check(weight, log_tau, how, sharpness)
    mask = weight.new_ones(kept)
    if how == "sigmoid":
        return _sigmoid_steps(weight, log_tau, mask, sharpness)
    return _hard_steps(weight, log_tau, mask, mask[-1:], _BOUNDS[kept - 1 : kept])


def quantise_masked(
    weight: Tensor, log_tau: Tensor, mask: Tensor, *, how: How = "straight_through", sharpness: float = 20.0
) -> Tensor:
    """``quantise`` with both steps of each pair scaled by its entry in ``mask`` (4,), as a relaxed order draws it.

    This is the mixture of the quantisers with 0 to 4 pairs, weighted by the falls of the mask, in value and gradient;
    the gradient of the mask is exact. k ones followed by zeros give exactly ``quantise`` with k pairs.
    """
    _check(weight, log_tau, how, sharpness)
    if not isinstance(mask, Tensor) or mask.shape != (NUM_PAIRS,):
        description = f"shape {tuple(mask.shape)}" if isinstance(mask, Tensor) else f"a {type(mask).__name__}"
        needed = f"a tensor of shape ({NUM_PAIRS},), with an entry for each pair"
        raise ShapeError(
            "mask", description, needed, "Give the order as many blocks as there are pairs, and draw one mask."
        )
    mask = probabilities("mask", mask).to(weight.dtype)
    if how == "sigmoid":
        return _sigmoid_steps(weight, log_tau, mask, sharpness)
    falls = mask.detach() - torch.cat([mask.detach()[1:], mask.new_zeros(1)])
    return _hard_steps(weight, log_tau, mask, falls, _BOUNDS)


def codes(weight: Tensor, log_tau: Tensor, num_pairs: int = NUM_PAIRS) -> Tensor:
    """The number of each weight's level, as int8 from -num_pairs to num_pairs, with 0 for level zero.

    A code counts the pairs that a weight has passed. Pairs are passed in order, so the codes with fewer pairs are the
    codes with more pairs, clamped.
    """
    kept = check_num_pairs(num_pairs)
    _check_scale(real_tensor("weight", weight), log_tau)
    fixed, edge = weight.detach(), _scale(weight, log_tau).detach()
    size, passed = fixed.abs(), torch.zeros_like(fixed)
    for threshold in THRESHOLDS[:kept]:
        passed += _above(size, threshold * edge)
    return (passed * fixed.sign()).to(torch.int8)


def dequantise(codes: Tensor, log_tau: Tensor) -> Tensor:
    """The weights that codes stand for, in the dtype of ``log_tau``: bit for bit those of ``quantise``."""
    check_codes(codes, NUM_PAIRS)
    table = torch.tensor(levels(NUM_PAIRS), dtype=floating_tensor("log_tau", log_tau).dtype, device=codes.device)
    value = table[codes.long() + NUM_PAIRS]
    _check_scale(value, log_tau)
    return _scale(value, log_tau) * value


def initial_log_tau(weight: Tensor, channel_axis: int | None = None) -> Tensor:
    """log tau of FN3: tau = 5 p / (4 q) with p = 8, the largest level, and q the largest |w|.

    One number for the tensor, or with ``channel_axis`` one number per channel, in a shape that broadcasts over the
    weight. A channel of zeros takes the tensor's q, and a tensor of zeros takes 1.
    """
    largest = _largest(_rows(weight, channel_axis))
    return _broadcastable(math.log(_REACH) - largest.log(), weight, channel_axis)


def fitted_log_tau(weight: Tensor, num_pairs: int | None = None, channel_axis: int | None = None) -> Tensor:
    """log tau of the least squared error for a number of pairs, or for None, on average over 1 to 4 pairs.

    FN3's initial value makes weights with one pair too small: on Gaussian weights their error is three times that of
    four pairs, all weights are far off if one is an outlier, and a layer without a norm after it learns worse
    (benchmarks/quantiser.py).
    Shapes and zeros as in ``initial_log_tau``.
    """
    last = NUM_PAIRS if num_pairs is None else check_num_pairs(num_pairs)
    shares = [1 - pair / NUM_PAIRS if num_pairs is None else 1.0 for pair in range(last)]
    rows = _rows(weight, channel_axis)
    largest, alive = _largest(rows), rows.any(1)
    scale = torch.full_like(largest, 1 / _REACH)
    if bool(alive.any()):
        size = (rows / largest[:, None])[alive].sort(1).values
        scale[alive] = _least_squares_scale(size, shares)
    return _broadcastable(-scale.log() - largest.log(), weight, channel_axis)


def check_num_pairs(num_pairs: int) -> int:
    """Return ``num_pairs`` if it is a whole number from 1 to 4."""
    if count("num_pairs", num_pairs, "how many pairs of steps are kept") > NUM_PAIRS:
        needed = f"between 1 and {NUM_PAIRS}"
        raise RangeError("num_pairs", num_pairs, needed, "Each pair adds a level on both sides; the last is +-8.")
    return num_pairs


def check_codes(codes: Tensor, num_pairs: int) -> Tensor:
    """Return ``codes`` if they are whole numbers from -num_pairs to num_pairs."""
    if whole_tensor("codes", codes).numel():
        low, high = (int(end) for end in codes.aminmax())
        if low < -num_pairs or high > num_pairs:
            needed = f"between -{num_pairs} and {num_pairs}, the codes of that many pairs"
            raise RangeError("codes", f"values from {low} to {high}", needed, "Clamp them to get those of fewer pairs.")
    return codes


def _check(weight: Tensor, log_tau: Tensor, how: How, sharpness: float) -> None:
    _check_scale(floating_tensor("weight", weight), log_tau)
    positive_number("sharpness", sharpness)
    if how not in HOWS:
        raise ArgumentError("how", repr(how), f"one of {', '.join(HOWS)}", "'straight_through' needs no schedule.")


def _check_scale(weight: Tensor, log_tau: Tensor) -> None:
    """Refuse a log tau that does not broadcast over the weight, or that might broadcast along the wrong axis."""
    sizes = tuple(floating_tensor("log_tau", log_tau).shape)
    fits = len(sizes) == weight.ndim and all(
        count in (1, size) for count, size in zip(sizes, weight.shape, strict=True)
    )
    if sizes and not fits:
        needed = f"one number, or as many axes as the weight {tuple(weight.shape)}, each of its size or 1"
        raise ShapeError("log_tau", f"shape {sizes}", needed, "Use initial_log_tau(weight, channel_axis).")


def _hard_steps(weight: Tensor, log_tau: Tensor, mask: Tensor, shares: Tensor, bounds: Sequence[float]) -> Tensor:
    """Hard steps; the weight's gradient is the sum of the shares of those windows |tau w| <= bound that contain it."""
    value: Tensor = _HardSteps.apply(weight, _scale(weight, log_tau), _heights(mask), shares, bounds)  # type: ignore[no-untyped-call]
    return value


class _HardSteps(torch.autograd.Function):
    """Hard steps in one autograd node: as several operations of torch they take longer and keep three more tensors."""

    generate_vmap_rule = True

    @staticmethod
    def forward(weight: Tensor, scale: Tensor, heights: Tensor, shares: Tensor, bounds: Sequence[float]) -> Tensor:
        size, level = weight.abs(), torch.zeros_like(weight)
        for height, threshold in zip(heights, THRESHOLDS, strict=False):
            level.addcmul_(_above(size, threshold * scale), height)
        return level.copysign_(weight).mul_(scale).add_(size, alpha=0)  # NaN and infinity become NaN

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ANN401
        *tensors, ctx.bounds = inputs
        ctx.save_for_backward(*tensors, output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        """With R = S / scale and R' the slope: dS/dw = R', dS/dscale = R - w R' / scale.

        Second derivatives follow from these formulas, with a slope that is constant.
        """
        weight, scale, heights, shares, output = ctx.saved_tensors
        slope = torch.zeros_like(weight)
        for share, bound in zip(shares, ctx.bounds, strict=True):
            slope.addcmul_(weight.abs().le_(bound * scale), share)
        straight = slope * grad
        for_scale = (grad * output - straight * weight).sum_to_size(scale.shape) / scale
        if not ctx.needs_input_grad[2]:
            return straight, for_scale, None, None, None
        size, signed = weight.abs(), grad * weight.sign() * scale
        passed = [(signed * _above(size, threshold * scale)).sum() for threshold in THRESHOLDS[: len(heights)]]
        return straight, for_scale, torch.stack(passed), None, None


def _above(size: Tensor, edge: Tensor) -> Tensor:
    """1 where a size passes an edge, else 0, in the dtype of the size; in place, which is four times faster."""
    return size.clone().gt_(edge)


def _sigmoid_steps(weight: Tensor, log_tau: Tensor, mask: Tensor, sharpness: float) -> Tensor:
    """Sigmoids for steps.

    tau w is limited to a range well beyond the point where all sigmoids are saturated, and log tau enters through a
    factor of one, so that nothing overflows in the backward pass.
    """
    scale = _scale(weight, log_tau)
    far = 2 * (THRESHOLDS[-1] + _SATURATED / sharpness)
    scaled = (weight * _bounded(weight, log_tau).detach().exp().to(weight.dtype)).clamp(-far, far)
    scaled = scaled * (scale.detach() / scale)
    total = torch.zeros_like(weight)
    for height, threshold in zip(_heights(mask), THRESHOLDS, strict=False):
        above, below = (_sigmoid(sharpness * (scaled + shift)) for shift in (-threshold, threshold))
        total = total + height * (above + below - 1)
    return scale * total


def _sigmoid(x: Tensor) -> Tensor:
    return torch.sigmoid(x.clamp(-_SATURATED, _SATURATED))


def _heights(mask: Tensor) -> Tensor:
    return mask * mask.new_tensor(STEPS[: len(mask)])


def _scale(weight: Tensor, log_tau: Tensor) -> Tensor:
    """1 / tau, the distance from level zero to level one."""
    return torch.exp(-_bounded(weight, log_tau)).to(weight.dtype)


def _bounded(weight: Tensor, log_tau: Tensor) -> Tensor:
    """log tau, limited so that neither tau nor a level leaves the range of the dtype."""
    info = min((torch.finfo(weight.dtype), torch.finfo(log_tau.dtype)), key=lambda limits: limits.max)
    return log_tau.clamp(-math.log(info.max / _ROOM), -math.log(info.tiny * _ROOM))


def _rows(weight: Tensor, channel_axis: int | None) -> Tensor:
    """|w| (channels, weights per channel) in double precision, in one row if no axis is given."""
    size = real_tensor("weight", weight).detach().to("cpu", torch.float64).abs()
    if channel_axis is None:
        return size.reshape(1, -1)
    if isinstance(channel_axis, bool) or not isinstance(channel_axis, int):
        raise DtypeError("channel_axis", repr(channel_axis), "a whole number, or None", "Linear layers have 0.")
    if not -size.ndim <= channel_axis < size.ndim:
        needed = f"an axis of a weight of shape {tuple(size.shape)}"
        raise RangeError("channel_axis", channel_axis, needed, "Output channels are 0, or 1 if transposed.")
    size = size.movedim(channel_axis, 0)
    return size.reshape(len(size), math.prod(size.shape[1:]))


def _largest(rows: Tensor) -> Tensor:
    """The largest entry of each row (C,); where that is zero, the largest of all rows; if all are zero, one."""
    largest = rows.amax(1) if rows.shape[1] else rows.new_zeros(len(rows))
    overall = largest.max() if bool(largest.any()) else largest.new_ones(())
    return torch.where(largest > 0, largest, overall)


def _broadcastable(log_tau: Tensor, weight: Tensor, channel_axis: int | None) -> Tensor:
    """Numbers (C,) in a shape that broadcasts over the weight, in the weight's dtype and on its device."""
    shape = [1] * weight.ndim
    if channel_axis is not None:
        shape[channel_axis] = len(log_tau)
    return log_tau.reshape(shape if channel_axis is not None else ()).to(weight)


def _least_squares_scale(size: Tensor, shares: Sequence[float]) -> Tensor:
    """The scale (C,) of the least squared error for sorted sizes (C, n) up to 1, with a share per pair.

    The error is s^2 B - 2 s A plus a constant. A = sum |w| |level| and B = sum level^2 come from the sums beyond each
    threshold. The best scale of a grid is refined by s = A / B. This never makes it worse, since each weight takes its
    nearest level.
    """
    tails = torch.cat([size.flip(1).cumsum(1).flip(1), size.new_zeros(len(size), 1)], dim=1)
    pairs = slice(len(shares))
    thresholds, share = size.new_tensor(THRESHOLDS[pairs]), size.new_tensor(shares)
    steps = share * size.new_tensor(STEPS[pairs])
    squares = share * size.new_tensor(LEVELS).square().diff()[pairs]

    def moments(scale: Tensor) -> tuple[Tensor, Tensor]:
        edges = scale[..., None] * thresholds
        first = torch.searchsorted(size, edges.flatten(1), right=True)
        beyond, number = tails.gather(1, first).view(edges.shape), (size.shape[1] - first).view(edges.shape)
        return (beyond * steps).sum(-1), (number * squares).sum(-1)

    lowest = size.mean(1, keepdim=True) / (2 * LEVELS[-1])
    grid = lowest * (2 / lowest) ** torch.linspace(0, 1, _GRID, dtype=size.dtype)
    product, square = moments(grid)
    best = (grid.square() * square - 2 * grid * product).argmin(1, keepdim=True)
    scale = grid.gather(1, best)
    for _ in range(20):
        product, square = moments(scale)
        scale = torch.where(square > 0, product / square, scale)
    return scale.squeeze(1)
