"""What the options of ``nest`` may be, by name, and the record of those of its bits: to be had without torch."""

from dataclasses import dataclass
from typing import Literal, get_args

from nestling.arguments import count
from nestling.errors import ArgumentError, DtypeError

Kind = Literal["neuron", "channel", "head", "path", "layer", "bit"]
KINDS: tuple[Kind, ...] = ("neuron", "channel", "head", "path", "layer", "bit")
UNIT_KINDS: tuple[Kind, ...] = ("channel", "neuron", "head", "path")
"""What is cut unless the caller says otherwise: parts of layers, of which a cut computes what zeros would give."""
How = Literal["straight_through", "sigmoid"]
HOWS: tuple[How, ...] = ("straight_through", "sigmoid")
QuantiserName = Literal["steps", "dorefa"]


@dataclass(frozen=True)
class Bits:
    """How weights are quantised, where ``kinds`` of ``nest`` includes "bit"."""

    num_groups: int | None = None
    """Into how many groups of consecutive layers, each with a number of bits of its own; None is one for each layer."""
    ends: bool = False
    """Quantise the first and the last layer too."""
    quantiser: QuantiserName = "steps"
    """steps is FN3's nested quantiser with a learned scale; dorefa is that of AdaBits, to compare with."""
    how: How = "straight_through"
    """How gradients pass the steps: straight through, or by sigmoids that grow sharper while training goes on."""

    def __post_init__(self) -> None:
        if self.num_groups is not None:
            count("num_groups", self.num_groups, "into how many groups the quantised layers are divided")
        if not isinstance(self.ends, bool):
            raise DtypeError("ends", repr(self.ends), "True or False", "False leaves the first and last layer alone.")
        for name, options in (("quantiser", get_args(QuantiserName)), ("how", HOWS)):
            if getattr(self, name) not in options:
                needed = f"one of {', '.join(options)}"
                raise ArgumentError(name, repr(getattr(self, name)), needed, "Check its spelling.")
