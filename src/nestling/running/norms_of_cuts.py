"""Norms of its own for each of a few cuts: the switchable batch norm of slimmable networks."""

from collections.abc import Callable, Mapping, Sequence

from torch import Tensor, nn

from nestling.errors import ArgumentError
from nestling.reading import Cut
from nestling.running.norms import batch_norms


class PrivateNorms(nn.Module):
    """Weights and biases of batch norms that belong to one cut alone; at other cuts the network's own are used.

    ``sliced_at`` gives the part of each tensor that a cut keeps, which the private ones start from.
    """

    def __init__(
        self, module: nn.Module, cuts: Sequence[Cut], sliced_at: Callable[[Cut], Mapping[str, Tensor]]
    ) -> None:
        super().__init__()
        own = {
            f"{path}.{key}" if path else key: tensor
            for path, norm in batch_norms(module).items()
            for key, tensor in norm.named_parameters(recurse=False)
        }
        if cuts and not own:
            needed = "a network with batch norms that have weights"
            raise ArgumentError("private", f"{len(cuts)} cuts of one without", needed, "Leave it out.")
        self.names = tuple(own)
        self.cuts = tuple(dict.fromkeys(cuts))
        sliced = [own | {name: t for name, t in sliced_at(cut).items() if name in own} for cut in self.cuts]
        self._norms = nn.ParameterList(
            nn.Parameter(tensors[name].detach().clone()) for tensors in sliced for name in self.names
        )

    def at(self, cut: Cut) -> dict[str, Tensor]:
        """What the norms have at a cut in place of the network's own: nothing unless it is one of the private ones."""
        if cut not in self.cuts:
            return {}
        first = self.cuts.index(cut) * len(self.names)
        return {name: self._norms[first + number] for number, name in enumerate(self.names)}
