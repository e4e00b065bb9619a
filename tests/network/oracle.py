"""The referee: decides whether a smaller network is a right cut of a larger one, without asking the library.

Every entry of every tensor gets a value of its own, so that the values left in the small network tell which entries
survived. The original with all other entries set to zero must then compute what the small network computes.

Why zeroing is the definition of a cut. A unit that was cut must have no influence. What a unit emits is not zero even
if all it computes with is zero (sigmoid(0) = 1/2, and a norm adds its bias), so it is not enough to silence the
producer; but the columns with which its consumers read it are zero too, hence whatever it emits is read by nobody.
The small network has neither the rows nor the columns, and adds the same terms without the zeros. A cut that forgot a
consumer, took the wrong columns, or put rows in another order leaves a consumer that reads a living unit by the
wrong column, and the two outputs differ.

Where it is not. (1) A norm whose statistics run over the axis (LayerNorm, RMSNorm, GroupNorm inside a norm-group,
standardised weights): zeros enter its mean and variance, a shorter axis does not hold them. Such a group is inexact;
`norms_over_kept=True` lets the norm *modules* of the zeroed network take statistics over surviving entries alone, and
`hand_built` is right in all cases. (2) An operation that reads the axis as a whole and for which zero is no neutral
element (softmax or mean over channels): such an axis must be frozen. (3) A sum over units that emit something at zero.

What zeroing cannot see: a group that is too large. Who cuts more than needed still gets a consistent network.
`hand_built` sees it: the smaller network written by hand has other shapes.
"""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

TOLERANCE = 1e-9
Kept = dict[str, tuple[Tensor, ...]]


def check_cut(module: nn.Module, small: nn.Module, example: tuple, norms_over_kept: bool = False) -> Kept:
    """Assert that `small` is a cut of `module`, and return which entries survived."""
    kept = survivors(module.state_dict(), small.state_dict())
    expected = outputs(zeroed(module, kept, norms_over_kept), example)
    assert_same(outputs(small, example), expected, "the cut network differs from the original with the cut zeroed")
    return kept


def hand_built(case: Any, sizes: dict[str, int], small: nn.Module) -> nn.Module:
    """Assert that `small` is the network of `case` built by hand at `sizes`; return that one, holding the values."""
    hand = case.smaller(sizes)
    expected = {name: tuple(tensor.shape) for name, tensor in hand.state_dict().items()}
    found = {name: tuple(tensor.shape) for name, tensor in small.state_dict().items()}
    differing = {name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name)}
    lines = [f"{name}: by hand {expected.get(name)}, cut {found.get(name)}" for name in sorted(differing)]
    assert not lines, f"{case.name} at {sizes} has other tensors:\n" + "\n".join(lines)
    hand.load_state_dict(small.state_dict(), strict=True)
    example = case.example()
    assert_same(outputs(small, example), outputs(hand, example), "the cut network differs from the hand-built one")
    return hand


def gradients_agree(nested: Any, cut: Any, hand: nn.Module, example: tuple) -> None:
    """Assert that the full parameters under `nested.at(cut)` get the gradients of `hand`, and zero where cut.

    Both run in eval mode: in train mode a nested network samples its order, dropout samples its masks, and BatchNorm
    would move the running buffers between the two passes. BatchNorm therefore uses its running statistics.
    """
    nested.eval()
    full = dict(nested.module.named_parameters())
    kept = survivors(nested.module.state_dict(), hand.state_dict())
    with nested.at(cut):
        wide = _gradients(nested, full, example)
    narrow = _gradients(hand.eval(), dict(hand.named_parameters()), example)
    for name, gradient in wide.items():
        expected = torch.zeros_like(gradient)
        if name in narrow:
            expected[outer(kept[name])] = narrow[name]
        assert_same(gradient, expected, f"gradient of {name}")
    missing = narrow.keys() - wide.keys()
    assert not missing, f"the nested network has no parameter {sorted(missing)}"


def randomise(module: nn.Module, generator: torch.Generator) -> nn.Module:
    """Turn the module to float64 and give every entry of every floating parameter and buffer a value of its own.

    Scales and biases lie away from the ones and zeros of fresh norms, which hide mistakes; biases and running means
    are small beside the signal, since a rectifier that never opens hides mistakes too. Running variances are positive.
    """
    module.double()
    drawn = []
    with torch.no_grad():
        for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
            if not tensor.is_floating_point():
                continue
            magnitude = 0.3 + 0.6 * torch.rand(tensor.shape, generator=generator, dtype=torch.float64)
            sign = torch.randint(2, tensor.shape, generator=generator) * 2 - 1
            tensor.copy_(_scale(name, tensor) * (magnitude if name.endswith("running_var") else sign * magnitude))
            drawn.append(tensor.flatten())
    values = torch.cat(drawn)
    assert values.unique().numel() == values.numel(), "two entries drew the same value: use another seed"
    return module


def _scale(name: str, tensor: Tensor) -> float:
    """How large the entries of a tensor are: what keeps the signal near one for matrices and filters."""
    if tensor.ndim > 1:
        return 2.0 / max(tensor[0].numel(), 1) ** 0.5
    return 0.2 if name.endswith(("bias", "running_mean")) else 1.0


def survivors(original: dict[str, Tensor], small: dict[str, Tensor]) -> Kept:
    """For every tensor of `small`, the places along each axis of the original tensor of that name that are in it.

    A tensor of the original that is not in the answer was removed as a whole.
    """
    unknown = small.keys() - original.keys()
    assert not unknown, f"the cut network has tensors which the original has not: {sorted(unknown)}"
    return {name: _located(name, original[name], tensor) for name, tensor in small.items()}


def zeroed(module: nn.Module, kept: Kept, norms_over_kept: bool = False) -> nn.Module:
    """A copy of the module in which all entries that did not survive are neutral: 0, and 1 for a running variance."""
    copy = deepcopy(module)
    for name, tensor in copy.state_dict().items():
        if not tensor.is_floating_point():
            continue
        neutral = torch.full_like(tensor, 1.0 if name.endswith("running_var") else 0.0)
        if name in kept:
            neutral[outer(kept[name])] = tensor[outer(kept[name])]
        tensor.copy_(neutral)
    if norms_over_kept:
        _renorm(copy, kept)
    return copy


def outputs(module: nn.Module, example: tuple) -> Any:
    """What the module returns in eval mode, detached.

    Gradients stay enabled while it runs: without them torch's own encoder layer takes a fused path around its modules.
    """
    result = deepcopy(module).eval()(*example)
    return pytree.tree_map_only(Tensor, Tensor.detach, result)


def assert_same(found: Any, expected: Any, what: str) -> None:
    """Assert that two outputs have one structure and equal finite values."""
    found_leaves, found_shape = pytree.tree_flatten(found)
    expected_leaves, expected_shape = pytree.tree_flatten(expected)
    assert found_shape == expected_shape, f"{what}: {found_shape} is not {expected_shape}"
    for left, right in zip(found_leaves, expected_leaves, strict=True):
        assert right.isfinite().all(), f"{what}: the reference is not finite"
        torch.testing.assert_close(left, right, rtol=TOLERANCE, atol=TOLERANCE, msg=lambda text: f"{what}: {text}")


def outer(indices: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Index lists, one per axis, as one index of their outer product."""
    return tuple(torch.meshgrid(*indices, indexing="ij")) if indices else ()


def _located(name: str, original: Tensor, tensor: Tensor) -> tuple[Tensor, ...]:
    """The places of `tensor` in `original`, found by value."""
    assert tensor.ndim == original.ndim, f"{name}: {tensor.ndim} axes, and {original.ndim} in the original"
    assert tensor.dtype == original.dtype, f"{name}: {tensor.dtype}, and {original.dtype} in the original"
    if not tensor.is_floating_point():
        assert torch.equal(tensor, original), f"{name}: integers that were changed"
        return tuple(torch.arange(size) for size in original.shape)
    assert tensor.numel(), f"{name}: nothing is left of it"
    ranked, order = original.detach().flatten().sort()
    assert (ranked[1:] > ranked[:-1]).all(), f"{name}: values of the original repeat; call randomise first"
    place = torch.searchsorted(ranked, tensor.detach().flatten()).clamp(max=ranked.numel() - 1)
    strange = (ranked[place] != tensor.detach().flatten()).sum()
    assert not strange, f"{name}: {strange} of {tensor.numel()} entries are not values of the original"
    return _outer_product(name, order[place].reshape(tensor.shape), original.shape)


def _outer_product(name: str, place: Tensor, shape: torch.Size) -> tuple[Tensor, ...]:
    """The index list of each axis, if the flat places are an outer product of ascending lists."""
    indices = []
    for axis, coordinate in enumerate(torch.unravel_index(place, shape) if shape else ()):
        rows = coordinate.movedim(axis, 0).reshape(coordinate.shape[axis], -1)
        assert (rows == rows[:, :1]).all(), f"{name}: along axis {axis} its rows mix several rows of the original"
        assert (rows[1:, 0] > rows[:-1, 0]).all(), f"{name}: along axis {axis} the order changed: {rows[:, 0].tolist()}"
        indices.append(rows[:, 0].contiguous())
    return tuple(indices)


def _gradients(run: Callable[..., Any], parameters: dict[str, Tensor], example: tuple) -> dict[str, Tensor]:
    """Gradients of the outputs' sum, each weighed by a fixed random number."""
    generator = torch.Generator().manual_seed(5)
    leaves = pytree.tree_leaves(run(*example))
    loss = sum((leaf * torch.randn(leaf.shape, generator=generator, dtype=leaf.dtype)).sum() for leaf in leaves)
    found = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True, materialize_grads=True)
    return dict(zip(parameters, found, strict=True))


class _KeptNorm(nn.Module):
    """A LayerNorm, RMSNorm or GroupNorm whose statistics run over surviving entries alone."""

    def __init__(self, norm: nn.LayerNorm | nn.RMSNorm | nn.GroupNorm, mask: Tensor) -> None:
        super().__init__()
        self.centred = not isinstance(norm, nn.RMSNorm)
        self.num_groups = norm.num_groups if isinstance(norm, nn.GroupNorm) else 0
        self.weight, self.bias = norm.weight, norm.bias if self.centred else None
        self.eps = norm.eps or torch.finfo(torch.float64).eps
        self.register_buffer("mask", mask)

    def forward(self, x: Tensor) -> Tensor:
        if not self.num_groups:
            return self.scaled(self.normal(x, self.mask.expand_as(x), tuple(range(-self.mask.ndim, 0))))
        grouped = x.unflatten(1, (self.num_groups, -1)).flatten(3)
        mask = self.mask.unflatten(0, (self.num_groups, -1))[:, :, None].expand_as(grouped)
        return self.scaled(self.normal(grouped, mask, (-2, -1)).reshape(x.shape).movedim(1, -1)).movedim(-1, 1)

    def normal(self, x: Tensor, mask: Tensor, axes: tuple[int, ...]) -> Tensor:
        count = mask.sum(axes, keepdim=True).clamp(min=1)
        if self.centred:
            x = x - (x * mask).sum(axes, keepdim=True) / count
        return x * ((x.square() * mask).sum(axes, keepdim=True) / count + self.eps).rsqrt()

    def scaled(self, x: Tensor) -> Tensor:
        return x * self.weight if self.bias is None else x * self.weight + self.bias


def _renorm(module: nn.Module, kept: Kept) -> None:
    """Replace the norm modules of a zeroed network by ones that look at the surviving entries only."""
    norms = (nn.LayerNorm, nn.RMSNorm, nn.GroupNorm)
    for name, norm in [(name, norm) for name, norm in module.named_modules() if isinstance(norm, norms)]:
        if f"{name}.weight" in kept:
            mask = torch.zeros_like(norm.weight, requires_grad=False)
            mask[outer(kept[f"{name}.weight"])] = 1.0
            module.set_submodule(name, _KeptNorm(norm, mask))
