"""A nested network's own code at a cut, on views of its weights, also where a graph runs otherwise."""

from itertools import takewhile
from typing import Any

import torch
from torch import Tensor, nn

from nestling.errors import ArgumentError
from nestling.reading import Branch, Cut
from nestling.running.nested import Nested
from nestling.running.runner import BoundNetwork, ModuleRunner
from nestling.running.twin import Twin


@torch.no_grad()
def code_at(nested: Nested, cut: Cut) -> BoundNetwork:
    """The module's code at a cut, which takes arguments that the example did not have, such as a cache.

    Its tensors are views of the network's, where a cut keeps first rows. The residual branches that the cut drops add
    nothing. The caller compares it with the nested network where that runs as a graph: its code may have fixed sizes.
    """
    smaller = nested.tensors_at(cut)
    if nested.plan is None:
        return nested.bound(cut, smaller)
    network = ModuleRunner(nested.module).bound(cut, smaller)
    dropped = nested.dropped(cut)
    branches = () if nested.plan is None else nested.plan.branches.values()
    for branch in branches:
        if branch.tensors and dropped.issuperset(branch.tensors):
            _drop(nested.module, network, branch)
    return network


def _drop(module: nn.Module, network: BoundNetwork, branch: Branch) -> None:
    """Let the submodule that is a branch give zero in the network."""
    levels = zip(*(name.split(".")[:-1] for name in branch.tensors), strict=False)
    path = ".".join(parts[0] for parts in takewhile(lambda parts: len(set(parts)) == 1, levels))
    layers = tuple({name.rpartition(".")[0] + "." for name in branch.tensors})
    others = [name for name in module.state_dict() if name.startswith(f"{path}.") and not name.startswith(layers)]
    if not path or others or not isinstance(network, Twin):
        given = f"a cut that drops {branch.tensors[0]} and what goes with it"
        needed = "one whose dropped branches are submodules of their own, as in nl.models.GPT"
        raise ArgumentError("cut", given, needed, "Choose a cut that keeps all layers.")
    network.module.set_submodule(path, _Nothing())


class _Nothing(nn.Module):
    """A branch that adds zero to the stream."""

    def forward(self, x: Tensor, *_: Any) -> Tensor:  # noqa: ANN401
        return x.new_zeros(())
