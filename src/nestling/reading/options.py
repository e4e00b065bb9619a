"""The values that options of ``nest`` may have, and the record of its options for bits; imports no torch."""

from dataclasses import dataclass
from typing import Literal, get_args

from nestling.arguments import count
from nestling.errors import ArgumentError, DtypeError

Kind = Literal["neuron", "channel", "head", "path", "layer", "bit"]
KINDS: tuple[Kind, ...] = ("neuron", "channel", "head", "path", "layer", "bit")
UNIT_KINDS: tuple[Kind, ...] = ("channel", "neuron", "head", "path")
"""The kinds that are cut by default: parts of layers, whose removal gives the same result as setting them to zero."""
How = Literal["straight_through", "sigmoid"]
HOWS: tuple[How, ...] = ("straight_through", "sigmoid")
QuantiserName = Literal["steps", "dorefa"]


@dataclass(frozen=True)
class Bits:
    """How weights are quantised, where ``kinds`` of ``nest`` includes ``"bit"``.

    Raises:
        ArgumentError: If an entry is not one of the choices.

    Examples:
        >>> bits = nl.nest(module, example, kinds=("bit",), weights=None, bits=nl.Bits(ends=True))
        >>> {group.kind for group in bits.groups.free}
        {'bit'}
    """

    num_groups: int | None = None
    """The number of groups of consecutive layers, each with its own number of bits; None means one group per layer."""
    ends: bool = False
    """Quantise the first and the last layer too."""
    quantiser: QuantiserName = "steps"
    """steps is FN3's nested quantiser with a learned scale; dorefa is the quantiser of AdaBits, for comparison."""
    how: How = "straight_through"
    """How gradients pass the steps: straight through, or through sigmoids that get steeper during training."""

    def __post_init__(self) -> None:
        if self.num_groups is not None:
            count("num_groups", self.num_groups, "into how many groups the quantised layers are divided")
        if not isinstance(self.ends, bool):
            raise DtypeError("ends", repr(self.ends), "True or False", "False leaves the first and last layer alone.")
        for name, options in (("quantiser", get_args(QuantiserName)), ("how", HOWS)):
            if getattr(self, name) not in options:
                needed = f"one of {', '.join(options)}"
                raise ArgumentError(name, repr(getattr(self, name)), needed, "Check its spelling.")
