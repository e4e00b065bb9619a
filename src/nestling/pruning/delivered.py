"""What a plain network costs as it is delivered: as the files of its graph and its weights, loaded again."""

from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import nn

from nestling.errors import TraceError
from nestling.pruning.gated import without_widths
from nestling.pruning.sparse_files import kept_inputs
from nestling.running import Cost, as_call, batch_of, cost, latencies_ms
from nestling.storage import PlainFiles, plain_files


@dataclass(frozen=True)
class Delivered:
    """A plain network with its files and its costs, each computed when it is first asked for."""

    network: nn.Module
    example: Any

    @cached_property
    def files(self) -> PlainFiles | None:
        """The files of the network in eval mode; None if its graph can't be stored, and it is run as it is."""
        picks = kept_inputs(self.network)
        try:
            return plain_files(self.network, as_call(self.example), notes={"picks": picks} if picks else {})
        except TraceError:
            return None

    @property
    def params(self) -> int:
        """The number of parameters, without weights that are zero."""
        zeros = sum(int((tensor == 0).sum()) for tensor in self.network.parameters() if tensor.ndim > 1)
        return self._cost.params - zeros

    @property
    def macs(self) -> int:
        """The multiply-adds per example, with those of weights that are zero, since they are computed too."""
        return self._cost.macs

    @property
    def bytes(self) -> int:
        """The bytes of its files."""
        return self._cost.bytes if self.files is None else self.files.num_bytes

    @cached_property
    def _cost(self) -> Cost:
        return cost(without_widths(deepcopy(self.network).eval(), self.example), 1.0)


def latencies_of(*networks: Delivered) -> list[float]:
    """Median milliseconds of each, run in turns, for one example, or for the whole example if one alone can't run."""
    args, kwargs = as_call(networks[0].example)
    modules = [deepcopy(each.network).eval() if each.files is None else each.files.module for each in networks]
    try:
        return latencies_ms(modules, batch_of(args, kwargs, 1))
    except Exception:  # of the network's own code, for another number of examples
        return latencies_ms(modules, (args, kwargs))


def costs_of(*networks: Delivered) -> list[Cost]:
    """All costs of each network; latencies are measured in turns."""
    times = latencies_of(*networks)
    return [Cost(each.params, each.macs, each.bytes, ms) for each, ms in zip(networks, times, strict=True)]
