"""Inputs and targets kept in memory, one row per example."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nestling.errors import ShapeError
from nestling.torch_parts import pytree


@dataclass(frozen=True, eq=False)
class Split:
    """The examples of one split, one row each.

    Args:
        inputs: uint8 or float32, images (N, C, H, W) or vectors (N, D); or, of texts, the tensors by name that a
            tokenizer makes, often ``input_ids`` and ``attention_mask`` (N, L).
        targets: int64 (N,) for classification, uint8 (N, R, H, W) by R graders for segmentation, float32 (N, D) for
            regression.

    Raises:
        ShapeError: If there are not as many targets as inputs.

    Examples:
        >>> examples = nl.data.Split(torch.rand(6, 3), torch.arange(6))
        >>> examples.subset(torch.tensor([4, 0])).targets.tolist(), len(examples.drawn(2))
        ([4, 0], 2)
    """

    inputs: Any
    targets: Tensor

    def __post_init__(self) -> None:
        number = next((len(t) for t in tensors_of(self.inputs).values() if len(t) != len(self.targets)), None)
        if number is not None:
            given = f"{len(self.targets)} for {number} inputs"
            raise ShapeError("targets", given, "one per input", "Check that both come from the same examples.")

    @property
    def has_bytes(self) -> bool:
        """Whether inputs are bytes, which are scaled to [0, 1] before they are normalised."""
        return isinstance(self.inputs, Tensor) and self.inputs.dtype == torch.uint8

    def __repr__(self) -> str:
        named = tensors_of(self.inputs) | {"targets": self.targets}
        parts = (f"{name} {tuple(tensor.shape)} {tensor.dtype}" for name, tensor in named.items())
        return f"Split({', '.join(parts)})"

    def __len__(self) -> int:
        return len(self.targets)

    def subset(self, index: Tensor) -> "Split":
        """Some of the examples.

        Args:
            index: Their positions, in the order that is wanted.

        Returns:
            A new split.
        """
        return Split(pytree.tree_map(lambda tensor: tensor[index], self.inputs), self.targets[index])

    def drawn(self, limit: int | None) -> "Split":
        """Some examples at random, the same ones each time, in their order.

        Args:
            limit: How many at most; None for all.

        Returns:
            A new split, or this one if it is no longer than that.
        """
        if limit is None or limit >= len(self):
            return self
        order = torch.randperm(len(self), generator=torch.Generator().manual_seed(0))
        return self.subset(order[:limit].sort().values)


def joined(splits: list[Split]) -> Split:
    """The examples of several splits, one after the other."""
    first, *others = (split.inputs for split in splits)
    inputs = pytree.tree_map(lambda *parts: torch.cat(parts), first, *others)
    return Split(inputs, torch.cat([split.targets for split in splits]))


def tensors_of(inputs: Tensor | Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of inputs by name; a single one is called ``inputs``."""
    return {"inputs": inputs} if isinstance(inputs, Tensor) else dict(inputs)


def trimmed(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The inputs without the last positions, where no row of ``attention_mask`` attends."""
    mask = inputs.get("attention_mask")
    if mask is None or mask.ndim != 2:
        return dict(inputs)
    attended = mask.ne(0).any(0).nonzero()
    length = int(attended.max()) + 1 if len(attended) else 1
    return {name: t[:, :length] if t.shape == mask.shape else t for name, t in inputs.items()}
