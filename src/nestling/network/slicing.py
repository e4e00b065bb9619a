"""Takes the part of each tensor that a cut keeps: views where the kept rows come first, copies where they don't."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from nestling.distributions.orders import Order
from nestling.network.cut import Cut
from nestling.network.group import Group, Groups


@dataclass(frozen=True)
class Take:
    """The rows kept along one axis of a tensor: the first ``length``, or those of ``index``."""

    axis: int
    length: int
    index: Tensor | None = None

    def of(self, tensor: Tensor) -> Tensor:
        """The kept rows of a tensor."""
        if self.index is None:
            return tensor.narrow(self.axis, 0, self.length)
        return tensor.index_select(self.axis, self.index.to(tensor.device))


class Slicer:
    """Knows for every group and width which rows of which tensor are left; what it worked out once it remembers."""

    def __init__(self, groups: Groups, shapes: Mapping[str, torch.Size]) -> None:
        self._owners: dict[tuple[str, int], list[tuple[Group, Tensor]]] = defaultdict(list)
        for group in groups.free:
            for piece in group.slices:
                self._owners[piece.tensor, piece.axis].append((group, piece.rows))
        self._sizes = {(name, axis): shapes[name][axis] for name, axis in self._owners}
        self._known: dict[tuple[tuple[str, int], tuple[int, ...]], Take | None] = {}

    def cut(self, tensors: Mapping[str, Tensor], cut: Cut) -> dict[str, Tensor]:
        """The smaller tensors, by name; those that keep their size are left out."""
        smaller: dict[str, Tensor] = {}
        widths = cut.as_dict()
        for place, owners in self._owners.items():
            kept = tuple(widths[group.name] for group, _ in owners)
            take = self._take(place, kept)
            if take is not None:
                name = place[0]
                smaller[name] = take.of(smaller.get(name, tensors[name]))
        return smaller

    def give_back(self, tensors: Mapping[str, Tensor], smaller: Mapping[str, Tensor], cut: Cut) -> None:
        """Write running statistics, where they had to be copied, back to the rows they came from."""
        widths = cut.as_dict()
        for place, owners in self._owners.items():
            name, axis = place
            if name.endswith(("running_mean", "running_var")):
                take = self._take(place, tuple(widths[group.name] for group, _ in owners))
                if take is not None and take.index is not None:
                    tensors[name].index_copy_(axis, take.index.to(tensors[name].device), smaller[name])

    def _take(self, place: tuple[str, int], widths: tuple[int, ...]) -> Take | None:
        key = (place, widths)
        if key not in self._known:
            self._known[key] = self._work_out(place, widths)
        return self._known[key]

    def _work_out(self, place: tuple[str, int], widths: tuple[int, ...]) -> Take | None:
        kept = torch.ones(self._sizes[place], dtype=torch.bool)
        for (group, rows), width in zip(self._owners[place], widths, strict=True):
            kept[rows[group.units(width) :].reshape(-1)] = False
        length = int(kept.sum())
        if length == len(kept):
            return None
        return Take(place[1], length, None if bool(kept[:length].all()) else kept.nonzero().squeeze(1))


class Scaler:
    """Scales the tensors that read a group by the keep probabilities of its blocks, as FN3 does at test time."""

    def __init__(self, groups: Groups, tensors: Mapping[str, Tensor]) -> None:
        self._readers = [
            (group, piece, tensors[piece.tensor].shape[piece.axis])
            for group in groups.free
            for piece in group.slices
            if piece.reads
        ]

    def scaled(self, tensors: Mapping[str, Tensor], orders: Mapping[str, Order]) -> dict[str, Tensor]:
        """The readers with every unit's column scaled."""
        scaled: dict[str, Tensor] = {}
        for group, piece, size in self._readers:
            tensor = scaled.get(piece.tensor, tensors[piece.tensor])
            keep = orders[group.name].keep_probs().detach().to(tensor)[group.blocks().to(tensor.device)]
            factor = torch.ones(size, dtype=tensor.dtype, device=tensor.device)
            factor[piece.rows.to(tensor.device)] = keep.unsqueeze(1)
            scaled[piece.tensor] = tensor * factor.view(-1, *[1] * (tensor.ndim - piece.axis - 1))
        return scaled
