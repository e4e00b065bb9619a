"""Separate norms for each of a few cuts: the switchable batch norm of slimmable networks."""

from collections.abc import Callable, Mapping, Sequence

from torch import Tensor, nn

from nestling.errors import ArgumentError
from nestling.reading import Cut, Groups, make_cut
from nestling.running.norms import scales_of_norms


class PrivateNorms(nn.Module):
    """Weights and biases of norms that belong to one of the cuts alone; others use those of the network.

    ``sliced_at`` gives the part of each tensor that a cut keeps: the initial values of the private weights and biases.
    """

    def __init__(
        self,
        module: nn.Module,
        groups: Groups,
        cuts: Sequence[float | Mapping[str, int]],
        sliced_at: Callable[[Cut], Mapping[str, Tensor]],
    ) -> None:
        super().__init__()
        shared = scales_of_norms(module, groups)
        if cuts and not shared:
            needed = "a network with batch norms that have weights, or with other norms over units that are cut"
            raise ArgumentError("private", f"{len(cuts)} cuts of a network without them", needed, "Leave it out.")
        self.names = tuple(shared)
        self.cuts = tuple(dict.fromkeys(make_cut(groups, cut) for cut in cuts))
        sliced = [{**shared, **{name: t for name, t in sliced_at(cut).items() if name in shared}} for cut in self.cuts]
        self._norms = nn.ParameterList(
            nn.Parameter(tensors[name].detach().clone()) for tensors in sliced for name in self.names
        )

    def at(self, cut: Cut) -> dict[str, Tensor]:
        """The norms' tensors at a cut, in place of the network's; none unless the cut has private norms."""
        if cut not in self.cuts:
            return {}
        first = self.cuts.index(cut) * len(self.names)
        return {name: self._norms[first + number] for number, name in enumerate(self.names)}
