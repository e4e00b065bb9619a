"""Checks groups on the network: a cut must compute what the whole network does with the cut entries set to zero."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from nestling.errors import ShapeError
from nestling.reading import Cut, Group, Groups, full_cut
from nestling.running import Call, Runner, Slicer, gap, in_mode
from nestling.torch_parts import pytree

CHANGED = "cutting it changed what the rest of the network computes on the example, or on other sizes of it"
TOGETHER = f"{CHANGED}, if other groups are cut too"


class CutCheck:
    """Runs a network on examples with disturbed weights, so that no norm of one or bias of zero hides a mistake.

    ``calls`` are the example and the same example in other sizes, for code that takes another path for these.
    """

    def __init__(self, runner: Runner, groups: Groups, calls: Sequence[Call]) -> None:
        self.runner = runner
        self.groups = groups
        tensors = runner.holders.tensors()
        self.slicer = Slicer(groups, {name: tensor.shape for name, tensor in tensors.items()})
        for dtype, noise in ((torch.float64, 0.1), (torch.float64, 0.0), (None, 0.1), (None, 0.0)):
            self.tolerance = 1e-7 if dtype is torch.float64 else 1e-3
            generator = torch.Generator().manual_seed(0)
            self.tensors = {name: _disturbed(name, tensor, dtype, noise, generator) for name, tensor in tensors.items()}
            self.calls = pytree.tree_map_only(Tensor, partial(_cast, dtype=dtype), list(calls))
            if self.runs():
                break

    def sound(self) -> bool:
        """Whether all free groups can be cut at once."""
        return self._fault(list(self.groups.free)) is None

    def faults(self) -> dict[str, str]:
        """What goes wrong when each group is cut alone, by the names of the groups with which something goes wrong."""
        faults = {group.name: self._fault([group]) for group in self.groups.free}
        return {name: fault for name, fault in faults.items() if fault is not None}

    def agrees_with(self, other: "CutCheck") -> bool:
        """Whether two runners of one network compute the same outputs at full width; this one may refuse sizes."""
        pairs = zip(other.whole(), self.whole(), strict=True)
        return max(0.0 if outputs is None else gap(expected, outputs) for expected, outputs in pairs) <= self.tolerance

    def whole(self) -> list[Any]:
        """The outputs of the whole network for each call with ``tensors``, which a caller may change."""
        return self._run(full_cut(self.groups), self.tensors)

    def _fault(self, chosen: list[Group]) -> str | None:
        """What goes wrong when all chosen groups are cut at once; the exact ones are compared with zeroing."""
        if not chosen:
            return None
        cut = self._probe(chosen)
        try:
            small = self._run(cut, self.tensors | self.slicer.cut(self.tensors, cut))
        except Exception as error:
            return f"its code does not run at a smaller size ({_first_line(error)})"
        exact = [group for group in chosen if group.exact and group.slices]
        if len(exact) < len(chosen):
            return self._fault(exact)
        with self._zeroed(cut, exact):
            whole = self.whole()
        return None if gap(whole, small) <= self.tolerance else CHANGED

    def _probe(self, chosen: list[Group]) -> Cut:
        """A cut with a different width for each chosen group, so that two groups that must be cut together show it."""
        widths = full_cut(self.groups).as_dict()
        for position, group in enumerate(chosen):
            widths[group.name] = _uneven(group, position)
        return Cut(tuple(widths.items()))

    @contextmanager
    def _zeroed(self, cut: Cut, chosen: list[Group]) -> Iterator[None]:
        """Set to zero, in place and inside the ``with``, the rows that a cut removes from some groups."""
        saved: list[tuple[Tensor, int, Tensor, Tensor]] = []
        for group in chosen:
            kept = group.units(cut[group.name])
            for piece in group.slices:
                tensor = self.tensors[piece.tensor]
                removed = piece.rows[kept:].reshape(-1).to(tensor.device)
                saved.append((tensor, piece.axis, removed, tensor.index_select(piece.axis, removed)))
                tensor.index_fill_(piece.axis, removed, 0)
        try:
            yield
        finally:
            for tensor, axis, removed, rows in reversed(saved):
                tensor.index_copy_(axis, removed, rows)

    def runs(self) -> bool:
        """Whether the whole network runs on these tensors with finite outputs; not all code takes double precision."""
        try:
            outputs = pytree.tree_leaves(self.whole())
        except (RuntimeError, ValueError, TypeError):
            return False
        tensors = [output for output in outputs if isinstance(output, Tensor) and output.is_floating_point()]
        return all(bool(torch.isfinite(tensor).all()) for tensor in tensors)

    def _run(self, cut: Cut, tensors: Mapping[str, Tensor]) -> list[Any]:
        """The outputs for each call, or None for one after the example whose sizes the runner refuses."""
        outputs = []
        with torch.no_grad(), in_mode(self.runner.module, training=False):
            for args, kwargs in self.calls:
                try:
                    outputs.append(self.runner.run(cut, tensors, args, kwargs))
                except ShapeError:
                    if not outputs:
                        raise
                    outputs.append(None)
        return outputs


def other_sizes(module: nn.Module, example: Call) -> list[Call]:
    """The example with another batch size, and with half of each other size, if the network runs on them."""
    copy = scratch(module)
    another_batch = _resized(example, 0)
    smaller = example
    for axis in range(1, max((tensor.ndim for tensor in tensors_of(example)), default=0)):
        halved = _resized(smaller, axis)
        smaller = halved if _runs(copy, halved) else smaller
    return [call for call in (another_batch, smaller) if call is not example and _runs(copy, call)]


def _resized(call: Call, axis: int) -> Call:
    """A call with half the size of an axis, of one example for the first axis; a size of one is doubled.

    All tensors whose axis has the size of the first tensor's change with it.
    """
    size = next(tensor.shape[axis] for tensor in tensors_of(call) if tensor.ndim > axis)
    other = 2 if size == 1 else 1 if axis == 0 else size // 2

    def resized(tensor: Tensor) -> Tensor:
        if tensor.ndim <= axis or tensor.shape[axis] != size or not size:
            return tensor
        return tensor.index_select(axis, torch.arange(other, device=tensor.device) % size)

    result: Call = pytree.tree_map_only(Tensor, resized, call)
    return result


def tensors_of(call: Call) -> list[Tensor]:
    """The tensors in a call."""
    return [leaf for leaf in pytree.tree_leaves(call) if isinstance(leaf, Tensor)]


def _runs(module: nn.Module, call: Call) -> bool:
    args, kwargs = call
    try:
        with torch.no_grad(), in_mode(module, training=False):
            module(*args, **kwargs)
    except Exception:  # the user's code may raise anything for sizes that it was not made for
        return False
    return True


def scratch(module: nn.Module) -> nn.Module:
    """A copy of the module that shares its parameters and buffers; a check always replaces them in the copy."""
    return deepcopy(module, {id(tensor): tensor for tensor in (*module.parameters(), *module.buffers())})


def _uneven(group: Group, position: int) -> int:
    """A width at least one block below full, different from one group to the next."""
    span = group.num_blocks - group.num_always
    return group.num_blocks - (1 + position % span if span else 0)


def _disturbed(
    name: str, tensor: Tensor, dtype: torch.dtype | None, noise: float, generator: torch.Generator
) -> Tensor:
    """The tensor with noise relative to its size; buffers other than the statistics of norms stay as they are."""
    result = _cast(tensor, dtype).clone()
    noisy = isinstance(tensor, nn.Parameter) or name.endswith(("running_mean", "running_var"))
    if not tensor.is_floating_point() or not noisy:
        return result
    added = torch.randn(tensor.shape, generator=generator, dtype=torch.float64).to(result)
    size = torch.linalg.vector_norm(result, dtype=torch.float64) / max(result.numel(), 1) ** 0.5 + 0.1
    result += added.mul_(noise * size)
    return result.abs() + noise if name.endswith("running_var") else result


def _cast(tensor: Tensor, dtype: torch.dtype | None) -> Tensor:
    return tensor.detach().to(dtype) if dtype is not None and tensor.is_floating_point() else tensor.detach()


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0][:120]
