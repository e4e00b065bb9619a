"""Checks groups against the network itself: a cut must compute what the whole does with the cut entries set to zero."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from nestling.network.cut import Cut, full_cut
from nestling.network.group import Group, Groups
from nestling.network.modes import in_mode
from nestling.network.runner import Runner
from nestling.network.slicing import Slicer


class CutCheck:
    """Runs a network on an example with disturbed weights, so that no norm of one or bias of zero hides a mistake."""

    def __init__(self, runner: Runner, groups: Groups, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.runner = runner
        self.groups = groups
        generator = torch.Generator().manual_seed(0)
        own = runner.holders.tensors()
        self.slicer = Slicer(groups, {name: tensor.shape for name, tensor in own.items()})
        self.tensors = {name: _disturbed(name, tensor, generator) for name, tensor in own.items()}
        self.args, self.kwargs = pytree.tree_map_only(Tensor, _double, (args, kwargs))

    def failing(self) -> list[tuple[Group, str]]:
        """The groups that a cut does not take out rightly, each with what went wrong; none if all is well."""
        free = list(self.groups.free)
        if not free or self._fault(free) is None:
            return []
        faults = [(group, self._fault([group])) for group in free]
        return [(group, fault) for group, fault in faults if fault is not None]

    def agrees_with(self, other: "CutCheck") -> bool:
        """Whether two runners of one network compute the same at full width."""
        whole = full_cut(self.groups)
        return _alike(self._run(whole, self.tensors), other._run(full_cut(other.groups), other.tensors))

    def _fault(self, chosen: list[Group]) -> str | None:
        """What goes wrong when every chosen group is cut at once, the exact ones compared with zeroing."""
        cut = self._probe(chosen)
        try:
            small = self._run(cut, self.tensors | self.slicer.cut(self.tensors, cut))
        except (RuntimeError, ValueError, IndexError, AssertionError, TypeError) as error:
            return f"its code does not run at a smaller size ({_first_line(error)})"
        exact = [group for group in chosen if group.exact and group.slices]
        if len(exact) < len(chosen):
            return self._fault(exact) if exact else None
        whole = self._run(full_cut(self.groups), self._zeroed(cut, exact))
        return None if _alike(small, whole) else "cutting it on the example changed what the rest computes"

    def _probe(self, chosen: list[Group]) -> Cut:
        """Each chosen group at a width of its own, so that two that must go together can't hide it."""
        names = [group.name for group in chosen]
        widths = (
            (g.name, _uneven(g, names.index(g.name)) if g.name in names else g.num_blocks) for g in self.groups.free
        )
        return Cut(tuple(widths))

    def _zeroed(self, cut: Cut, chosen: list[Group]) -> dict[str, Tensor]:
        tensors = dict(self.tensors)
        for group in chosen:
            kept = group.units(cut[group.name])
            for piece in group.slices:
                gone = piece.rows[kept:].reshape(-1).to(tensors[piece.tensor].device)
                tensors[piece.tensor] = tensors[piece.tensor].index_fill(piece.axis, gone, 0)
        return tensors

    def _run(self, cut: Cut, tensors: Mapping[str, Tensor]) -> Any:  # noqa: ANN401
        with torch.no_grad(), in_mode(self.runner.module, training=False):
            return self.runner.run(cut, tensors, self.args, self.kwargs)


def _uneven(group: Group, position: int) -> int:
    """A width of at least one block less than full, different from one group to the next."""
    span = group.num_blocks - group.num_always
    return group.num_blocks - (1 + position % span if span else 0)


def _disturbed(name: str, tensor: Tensor, generator: torch.Generator) -> Tensor:
    """The tensor in double precision with a little noise; buffers that are not a norm's statistics are left alone."""
    if not tensor.is_floating_point():
        return tensor.clone()
    wide = tensor.detach().to(torch.float64)
    if not isinstance(tensor, torch.nn.Parameter) and not name.endswith(("running_mean", "running_var")):
        return wide
    scale = 0.1 * (wide.square().mean().sqrt() + 0.1)
    noise = torch.randn(tensor.shape, generator=generator, dtype=torch.float64).to(tensor.device)
    return (wide + scale * noise).abs() + 0.1 if name.endswith("running_var") else wide + scale * noise


def _double(tensor: Tensor) -> Tensor:
    return tensor.detach().to(torch.float64) if tensor.is_floating_point() else tensor


def _alike(left: Any, right: Any) -> bool:  # noqa: ANN401
    pairs = zip(pytree.tree_leaves(left), pytree.tree_leaves(right), strict=True)
    return all(_close(a, b) for a, b in pairs if isinstance(a, Tensor))


def _close(left: Tensor, right: Tensor) -> bool:
    if left.shape != right.shape:
        return False
    if not left.is_floating_point():
        return bool((left == right).all())
    scale = right.abs().max().clamp_min(1e-12) if right.numel() else torch.ones(())
    return bool(((left - right).abs() <= 1e-7 * scale).all())


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0][:120]
