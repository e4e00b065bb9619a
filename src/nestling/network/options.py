"""The options of ``nest``; imports no torch."""

from dataclasses import dataclass, field
from typing import Any, Literal

from nestling.distributions import PosteriorName, Sampling
from nestling.reading import Bits, Kind


@dataclass(frozen=True)
class Nesting:
    """The options of ``nest`` that a command line can give."""

    order: Literal["downhill", "uniform", "geometric", "full"] = "downhill"
    """How widths are drawn; downhill is learned."""
    weights: PosteriorName | Literal["auto", "plain"] = "auto"
    """gaussian and ivon learn the uncertainty of each weight: by gradients, or by natural gradients (cheaper). auto is
    ivon for a network with convolutions, else gaussian."""
    sampling: Sampling | None = None
    """How weights are drawn, by default local for gaussian and shared for ivon; shared or each for segmentation."""
    num_blocks: int = 32
    """The number of blocks that each group is divided into."""
    num_always: int = 2
    """The number of blocks of each group that are never cut."""
    kinds: tuple[Kind, ...] | None = None
    """What may be cut; by default all channels, neurons, heads and paths."""
    where: Literal["inner", "all"] = "inner"
    """inner cuts all axes except residual streams; all cuts residual streams too."""
    layers: Literal["network", "stage"] = "network"
    """Drop layers from the end of the network, or of each stage."""
    bits: Bits = field(default_factory=Bits)
    """How weights are quantised if kinds has bit."""
    private: tuple[float, ...] = ()
    """Fractions at which batch norms have separate weights, as in slimmable networks."""
    exclude: tuple[str, ...] = ()
    """Modules or tensors that are not cut."""
    only: tuple[str, ...] | None = None
    """Groups to cut; all others stay whole."""
    rescale: bool = False
    """Scale each block by its keep probability at test time, as FN3 does."""
    sort: Literal["auto", "norm", "none"] = "auto"
    """norm puts the units with the largest weights first; auto does so for pretrained weights."""
    output: int | str | None = None
    """Index or key of the tensor to take of what the network returns, by default logits where there are any."""

    def options(self, *, pretrained: bool = False) -> dict[str, Any]:
        """The options as ``nest`` takes them, for a network with or without ``pretrained`` weights."""
        bits = self.bits if "bit" in (self.kinds or ()) else None
        sort = "norm" if pretrained and self.sort == "auto" else self.sort
        return vars(self) | {"weights": None if self.weights == "plain" else self.weights, "bits": bits, "sort": sort}
