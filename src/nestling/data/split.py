"""Inputs and targets kept in memory, one row per example."""

from dataclasses import dataclass

import torch
from torch import Tensor

from nestling.errors import ShapeError


@dataclass(frozen=True, eq=False)
class Split:
    """The examples of one split.

    ``inputs`` are uint8 or float32, images (N, C, H, W) or vectors (N, D). ``targets`` are int64 (N,) for
    classification, uint8 (N, R, H, W) by R graders for segmentation, float32 (N, D) for regression.
    """

    inputs: Tensor
    targets: Tensor

    def __post_init__(self) -> None:
        if len(self.inputs) != len(self.targets):
            given = f"{len(self.targets)} for {len(self.inputs)} inputs"
            raise ShapeError("targets", given, "one per input", "Check that both come from the same examples.")

    def __repr__(self) -> str:
        parts = (f"{name} {tuple(tensor.shape)} {tensor.dtype}" for name, tensor in vars(self).items())
        return f"Split({', '.join(parts)})"

    def __len__(self) -> int:
        return len(self.inputs)

    def subset(self, index: Tensor) -> "Split":
        """The examples at the positions ``index``, in that order."""
        return Split(self.inputs[index], self.targets[index])

    def drawn(self, limit: int | None) -> "Split":
        """At most ``limit`` examples (None: all), drawn at random with a fixed seed, in their order."""
        if limit is None or limit >= len(self):
            return self
        order = torch.randperm(len(self), generator=torch.Generator().manual_seed(0))
        return self.subset(order[:limit].sort().values)


def joined(splits: list[Split]) -> Split:
    """The examples of several splits, one after the other."""
    return Split(torch.cat([split.inputs for split in splits]), torch.cat([split.targets for split in splits]))
