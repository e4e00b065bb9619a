"""Finds the groups of a module and a way to run it at any cut, and proves both on the example."""

from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from nestling.errors import TraceError
from nestling.network.branches import Branch, find_branches, stages
from nestling.network.check import CutCheck
from nestling.network.choice import Choice
from nestling.network.graph import Graph, export_graph
from nestling.network.group import Group, Groups
from nestling.network.grouping import find_groups, layer_groups
from nestling.network.modes import in_mode
from nestling.network.rules import Rule
from nestling.network.runner import GraphRunner, ModuleRunner, Runner
from nestling.network.tensors import Holders
from nestling.network.trace import Trace, trace


def discover(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], choice: Choice, rules: dict[str, Rule]
) -> tuple[Groups, Runner]:
    """The groups of a module, and a runner under which every free one can be cut.

    The module's own code is tried first. Where it has sizes of its own, or whole layers are to be dropped, the graph
    is run instead; a group that neither can cut is frozen and says why.
    """
    search = _Search(module, args, kwargs, choice, rules)
    found = search.by_module()
    if found.failing or search.has_layers:
        rescued = search.by_graph(found)
        if rescued is not None and len(rescued.failing) <= len(found.failing):
            found = rescued
    reasons = {group.name: fault for group, fault in found.failing}
    settled = [replace(g, frozen_because=reasons[g.name]) if g.name in reasons else g for g in found.groups]
    return Groups(settled), found.runner


@dataclass(frozen=True)
class _Found:
    groups: Groups
    runner: Runner
    check: CutCheck
    failing: list[tuple[Group, str]]


class _Search:
    def __init__(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], choice: Choice, rules: dict[str, Rule]
    ) -> None:
        self.module, self.args, self.kwargs = module, args, kwargs
        self.choice, self.rules = choice, rules
        self.tensors = list(Holders(module).canonical)
        self.has_layers = False

    def by_module(self) -> _Found:
        """The groups with the module's own code to run them."""
        found = trace(self._export(dynamic=False), self.rules)
        self.has_layers = bool(self._layers(found))
        groups = self.choice.apply(find_groups(found), self.tensors)
        return self._checked(groups, ModuleRunner(self.module))

    def by_graph(self, own: _Found) -> _Found | None:
        """The same with the exported graph, if it computes what the module does."""
        found = trace(self._export(dynamic=True), self.rules)
        layers = self._layers(found)
        groups = self.choice.apply(find_groups(found) + layer_groups(layers), self.tensors)
        runner = GraphRunner(self.module, found, groups, {b.add.name: b for branches in layers for b in branches})
        result = self._checked(groups, runner)
        return result if result.check.agrees_with(own.check) else None

    def _layers(self, found: Trace) -> list[list[Branch]]:
        """The residual branches that may be dropped, in one list or in one for each stage."""
        if "layer" not in self.choice.kinds:
            return []
        branches = find_branches(found)
        lists = stages(branches) if self.choice.layers == "stage" else [branches]
        return [branches for branches in lists if len(branches) > 1]

    def _checked(self, groups: Groups, runner: Runner) -> _Found:
        check = CutCheck(runner, groups, self.args, self.kwargs)
        return _Found(groups, runner, check, check.failing())

    def _export(self, *, dynamic: bool) -> Graph:
        """In train mode, where nothing is dead code; in eval mode if that fails (a norm over a single example)."""
        try:
            with in_mode(self.module, training=True):
                return export_graph(self.module, self.args, self.kwargs, dynamic=dynamic)
        except Exception as first:
            try:
                with in_mode(self.module, training=False):
                    return export_graph(self.module, self.args, self.kwargs, dynamic=dynamic)
            except Exception:
                raise TraceError(str(first)) from first
