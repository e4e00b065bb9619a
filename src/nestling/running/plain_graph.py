"""A plain network that runs as a graph: made of a plan and of tensors, without the code of the network."""

from collections.abc import Collection, Mapping
from typing import Any

from torch import Tensor, nn

from nestling.reading import Plan
from nestling.running.graph_module import graph_module, hold_at, refused_sizes


class PlainGraph(nn.Module):
    """Runs the graph of a plan, which was exported in eval mode, on tensors that it holds under their names.

    ``tensors`` has the tensors that the plan names and any others of the network's state. Those called ``hidden`` are
    left out of the state, ``buffers`` are no parameters, and ``shared`` maps further names to those of their tensors.
    """

    def __init__(
        self,
        plan: Plan,
        tensors: Mapping[str, Tensor],
        *,
        buffers: Collection[str],
        hidden: Collection[str],
        shared: Mapping[str, str],
    ) -> None:
        super().__init__()
        self.eval()
        held = {name: tensor if name in buffers else nn.Parameter(tensor) for name, tensor in tensors.items()}
        held |= {name: held[first] for name, first in shared.items()}
        for name, tensor in held.items():
            hold_at(self, name, tensor, persistent=name not in hidden)
        for node, tensor in plan.constants.items():
            hold_at(self, f"constant_{node.name}", tensor, persistent=False)
        state = {name: tensor for name, tensor in held.items() if name not in hidden}
        built, _, _ = graph_module(self, plan, state, follows_mode=False)
        self._run = type(built).forward  # of fx's class this alone: its call prints the graph where an operation fails

    def forward(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        """Run the graph; sizes for which it may not hold are refused."""
        try:
            return self._run(self, *args, **kwargs)
        except RuntimeError as fault:
            refused = refused_sizes(fault, "Store the network with such an example.")
            if refused is None:
                raise
            raise refused from fault
