"""Takes the part of each tensor that a cut keeps: a view if the kept rows come first, else a copy."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nestling.reading import Cut, Group, Groups, Slice


@dataclass(frozen=True)
class Take:
    """The rows kept along one axis of a tensor: the first ``length`` rows, or the rows ``index``."""

    axis: int
    length: int
    index: Tensor | None = None

    def of(self, tensor: Tensor) -> Tensor:
        """The kept rows of a tensor."""
        if self.index is None:
            return tensor.narrow(self.axis, 0, self.length)
        return tensor.index_select(self.axis, self.index.to(tensor.device))


def _taken(tensor: Tensor, takes: Sequence[Take]) -> Tensor:
    """The rows kept along several axes; where gradients are needed, a dense copy with a backward pass of one step."""
    if len(takes) > 1 and tensor.requires_grad and torch.is_grad_enabled() and all(t.index is None for t in takes):
        return _Corner.apply(tensor, takes)  # type: ignore[no-untyped-call,no-any-return]
    for take in takes:
        tensor = take.of(tensor)
    return tensor


class _Corner(torch.autograd.Function):
    """The first rows along several axes; the gradient has the memory layout of the whole tensor."""

    generate_vmap_rule = True

    @staticmethod
    def forward(tensor: Tensor, takes: Sequence[Take]) -> Tensor:
        for take in takes:
            tensor = take.of(tensor)
        return tensor.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Sequence[Take]], output: Tensor) -> None:  # noqa: ANN401
        ctx.shape, ctx.strides, ctx.takes = inputs[0].shape, inputs[0].stride(), inputs[1]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # noqa: ANN401
        whole = corner = gradient.new_empty_strided(ctx.shape, ctx.strides).zero_()
        for take in ctx.takes:
            corner = take.of(corner)
        corner.copy_(gradient)
        return whole, None


class Slicer:
    """Knows for every group and width which rows of which tensor are kept, and remembers the answers."""

    def __init__(self, groups: Groups, shapes: Mapping[str, torch.Size]) -> None:
        self._owners: dict[tuple[str, int], list[tuple[Group, Tensor]]] = defaultdict(list)
        for group in groups.free:
            for piece in group.slices:
                self._owners[piece.tensor, piece.axis].append((group, piece.rows))
        self._sizes = {(name, axis): shapes[name][axis] for name, axis in self._owners}
        self._takes: dict[tuple[tuple[str, int], tuple[int, ...]], Take | None] = {}

    def cut(self, tensors: Mapping[str, Tensor], cut: Cut) -> dict[str, Tensor]:
        """The smaller tensors, by name; tensors that keep their size are left out."""
        takes: dict[str, list[Take]] = defaultdict(list)
        widths = cut.as_dict()
        for place, owners in self._owners.items():
            take = self._take(place, tuple(widths[group.name] for group, _ in owners))
            if take is not None:
                takes[place[0]].append(take)
        return {name: _taken(tensors[name], tensor_takes) for name, tensor_takes in takes.items()}

    def give_back(self, tensors: Mapping[str, Tensor], smaller: Mapping[str, Tensor], cut: Cut) -> None:
        """Write running statistics that had to be copied back to the rows that they came from."""
        widths = cut.as_dict()
        for place, owners in self._owners.items():
            name, axis = place
            if name.endswith(("running_mean", "running_var")):
                take = self._take(place, tuple(widths[group.name] for group, _ in owners))
                if take is not None and take.index is not None:
                    tensors[name].index_copy_(axis, take.index.to(tensors[name].device), smaller[name])

    def _take(self, place: tuple[str, int], widths: tuple[int, ...]) -> Take | None:
        key = (place, widths)
        if key not in self._takes:
            self._takes[key] = self._compute_take(place, widths)
        return self._takes[key]

    def _compute_take(self, place: tuple[str, int], widths: tuple[int, ...]) -> Take | None:
        kept = torch.ones(self._sizes[place], dtype=torch.bool)
        for (group, rows), width in zip(self._owners[place], widths, strict=True):
            kept[rows[group.units(width) :].reshape(-1)] = False
        length = int(kept.sum())
        if length == len(kept):
            return None
        return Take(place[1], length, None if bool(kept[:length].all()) else kept.nonzero().squeeze(1))


class Scaler:
    """Scales tensors by one number per block of the groups that they belong to."""

    def __init__(self, groups: Groups, tensors: Mapping[str, Tensor]) -> None:
        self._pieces: dict[str, list[tuple[Group, Slice]]] = defaultdict(list)
        for group in groups.free:
            for piece in group.slices:
                self._pieces[piece.tensor].append((group, piece))
        reading = {name: [piece for piece in pieces if piece[1].reads] for name, pieces in self._pieces.items()}
        self._readers = {name: pieces for name, pieces in reading.items() if pieces}

    def scaled(self, tensors: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The tensors that read a group, with each unit's column scaled by the value (K,) of its block."""
        return {
            name: tensors[name] * self._factor(tensors[name], pieces, values) for name, pieces in self._readers.items()
        }

    def shares(self, name: str, tensor: Tensor, values: Mapping[str, Tensor]) -> Tensor:
        """The product, for each entry of a tensor, of the values of all the blocks it belongs to."""
        return self._factor(tensor, self._pieces.get(name, []), values).expand_as(tensor)

    def _factor(self, tensor: Tensor, pieces: Sequence[tuple[Group, Slice]], values: Mapping[str, Tensor]) -> Tensor:
        product = tensor.new_ones(())
        for group, piece in pieces:
            by_unit = values[group.name].to(tensor)[group.blocks().to(tensor.device)]
            rows = piece.rows.to(tensor.device)
            factor = tensor.new_ones(tensor.shape[piece.axis])
            factor = factor.index_put((rows,), by_unit.unsqueeze(1).expand(rows.shape))
            product = product * factor.view(-1, *[1] * (tensor.ndim - piece.axis - 1))
        return product
