"""The groups of a network: units that can be cut, with every slice of every tensor that goes with them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from nestling.errors import ArgumentError
from nestling.reading.options import Kind
from nestling.tables import text_table

BIT_SUFFIX = ".bits"
"""The end of a bit group's name, after the name of its first layer; ``only`` passes such names on to bits."""


@dataclass(frozen=True)
class Slice:
    """The rows of one tensor that go with the units of a group.

    Attributes:
        tensor: The name of a parameter or buffer.
        axis: The axis along which the rows lie.
        rows: Their places (size, rows per unit), one line per unit.
        reads: Whether these rows read the units, and do not produce them.

    Examples:
        >>> piece = nested.groups["layers.1"].slices[0]
        >>> piece.axis, tuple(piece.rows.shape)
        (0, (32, 1))
    """

    tensor: str
    axis: int
    rows: Tensor = field(repr=False)
    reads: bool = False


@dataclass(frozen=True)
class Group:
    """Units of a network that are cut together, with every slice of every tensor that goes with them.

    The units are divided into blocks. A width is a number of blocks, of which the first ``num_always`` are never cut.

    Attributes:
        name: The name of the layer that produces the units.
        kind: ``"neuron"``, ``"channel"``, ``"head"``, ``"path"``, ``"layer"`` or ``"bit"``.
        size: The number of units.
        slices: What is cut of each tensor.
        num_blocks: The number of blocks.
        num_always: The number of blocks that are never cut.
        exact: False where a norm's statistics run over the axis, so that a cut changes what is left.
        inner: False for a residual stream, which ``where="inner"`` leaves whole.
        frozen_because: Why the group can't be cut; None if it can be.
        drops: For a group of layers, the residual branch of each of its units; such a group has no slices.
        quantises: For a group of bits, the tensors that it quantises; such a group has no slices.

    Examples:
        >>> group = nested.groups["layers.1"]
        >>> group.kind, group.size, group.num_blocks, group.units(3)
        ('neuron', 32, 8, 12)
    """

    name: str
    kind: Kind
    size: int
    slices: tuple[Slice, ...]
    num_blocks: int = 1
    num_always: int = 1
    exact: bool = True
    inner: bool = True
    frozen_because: str | None = None
    drops: tuple[str, ...] = ()
    quantises: tuple[str, ...] = ()

    @property
    def tensors(self) -> tuple[str, ...]:
        """The tensors that the width of the group changes."""
        return tuple(dict.fromkeys((*(piece.tensor for piece in self.slices), *self.quantises)))

    @property
    def free(self) -> bool:
        """Whether the group can be cut."""
        return self.frozen_because is None

    def units(self, width: int) -> int:
        """How many units the first blocks have; block sizes differ by one unit at most, larger first.

        Args:
            width: The number of blocks.

        Returns:
            The number of units that a cut of this width keeps.

        Examples:
            >>> group = nested.groups["layers.3"]
            >>> group.size, group.units(group.num_blocks), group.units(0)
            (16, 16, 0)
        """
        small, extra = divmod(self.size, self.num_blocks)
        return width * small + min(width, extra)

    def blocks(self) -> Tensor:
        """The block (size,) that each unit belongs to."""
        counts = torch.tensor([self.units(block + 1) - self.units(block) for block in range(self.num_blocks)])
        return torch.repeat_interleave(torch.arange(self.num_blocks), counts)


class Groups(Sequence[Group]):
    """The groups of a network in the order in which it runs; prints as a table.

    Args:
        groups: The groups, those that can't be cut included.

    Raises:
        ArgumentError: On use, if there is no group of a name.

    Examples:
        >>> print(nested.groups)
        group     kind    units  blocks  always  tensors  note
        ------------------------------------------------------
        layers.1  neuron     32       8       2        5
        layers.3  neuron     16       8       2        5
        layers.5  neuron     10       -       -        3  frozen: returned to the caller
        >>> [group.name for group in nested.groups.free]
        ['layers.1', 'layers.3']
    """

    def __init__(self, groups: Sequence[Group]) -> None:
        self._groups = tuple(groups)
        self._by_name = {group.name: group for group in groups}

    def __len__(self) -> int:
        return len(self._groups)

    def __iter__(self) -> Iterator[Group]:
        return iter(self._groups)

    def __getitem__(self, key: int | str) -> Group:  # type: ignore[override]
        if not isinstance(key, str):
            return self._groups[key]
        if key not in self._by_name:
            names = ", ".join(group.name for group in self.free) or "none"
            raise ArgumentError(
                "group", repr(key), f"the name of a group ({names})", "Print nested.groups for a table."
            )
        return self._by_name[key]

    @property
    def free(self) -> tuple[Group, ...]:
        """The groups that can be cut."""
        return tuple(group for group in self._groups if group.free)

    @property
    def frozen(self) -> tuple[Group, ...]:
        """The groups that can't be cut; ``frozen_because`` says why."""
        return tuple(group for group in self._groups if not group.free)

    def __repr__(self) -> str:
        header = ("group", "kind", "units", "blocks", "always", "tensors", "note")
        return text_table(header, [_row(group) for group in self._groups], names=1)


def _row(group: Group) -> tuple[str, ...]:
    note = (
        f"frozen: {group.frozen_because}"
        if group.frozen_because
        else ""
        if group.exact
        else "inexact: a norm runs over it"
    )
    blocks, always = (str(group.num_blocks), str(group.num_always)) if group.free else ("-", "-")
    num_tensors = len(group.slices) + len(group.quantises)
    return group.name, group.kind, str(group.size), blocks, always, str(num_tensors), note
