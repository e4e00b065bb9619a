"""Finds the groups of a module and a way to run it at any cut, and proves both on the example."""

import traceback
import warnings
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from nestling.errors import TraceError
from nestling.network.check import TOGETHER, CutCheck, scratch
from nestling.reading import (
    Branch,
    Choice,
    Graph,
    Group,
    Groups,
    Holders,
    Trace,
    export_graph,
    find_branches,
    find_groups,
    layer_groups,
    make_plan,
    recorded_graph,
    stages,
    trace,
    user_line,
)
from nestling.reading.rules import Rule
from nestling.running import GraphRunner, ModuleRunner, Runner, in_mode


def discover(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], choice: Choice, rules: dict[str, Rule]
) -> tuple[Groups, Runner]:
    """The groups of a module, and a runner under which every free one can be cut.

    The module's own code is tried first. Where it has sizes of its own, or whole layers are to be dropped, the graph
    is run instead; a group that neither can cut is frozen and says why.
    """
    search = _Search(module, args, kwargs, choice, rules)
    search.try_example()
    found = search.by_module()
    if search.has_layers or not found.sound:
        by_graph = search.by_graph(found)
        if by_graph is not None and by_graph.sound >= found.sound:
            found = by_graph
    return search.settled(found)


@dataclass(frozen=True)
class _Found:
    """Groups, what runs them, and whether all of them can be cut at once."""

    groups: Groups
    runner: Runner
    check: CutCheck
    sound: bool


class _Search:
    def __init__(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], choice: Choice, rules: dict[str, Rule]
    ) -> None:
        self.module, self.args, self.kwargs = module, args, kwargs
        self.choice, self.rules = choice, rules
        self.names = Holders(module).canonical
        self.has_layers = False

    def try_example(self) -> None:
        """Run the example once, so that a wrong one is told apart from a network that can't be traced."""
        try:
            with in_mode(self.module, training=False), torch.no_grad():
                self.module(*self.args, **self.kwargs)
        except Exception as fault:
            raise TraceError(_does_not_run(self.module, fault)) from fault

    def by_module(self) -> _Found:
        """The groups with the module's own code to run them."""
        found = trace(self._export(dynamic=False), self.rules)
        self.has_layers = bool(self._layers(found))
        groups = self.choice.apply(self._groups(found), self.names)
        return self._checked(groups, ModuleRunner(self.module), ModuleRunner(scratch(self.module)))

    def by_graph(self, own: _Found) -> _Found | None:
        """The same with the exported graph, if it computes what the module does."""
        try:
            found = trace(self._export(dynamic=True), self.rules)
        except TraceError:
            return None
        layers = self._layers(found)
        groups = self.choice.apply(find_groups(found) + layer_groups(layers), self.names)
        plan = make_plan(found, groups, {b.add.name: b for branches in layers for b in branches})
        runner = GraphRunner(self.module, plan, groups, dict(self.module.state_dict(keep_vars=True)))
        result = self._checked(groups, runner, runner)
        return result if result.check.agrees_with(own.check) else None

    def settled(self, found: _Found) -> tuple[Groups, Runner]:
        """Freeze the groups that can't be cut on the example; where no single one is to blame, all that are left."""
        while not found.sound:
            faults = found.check.faults() or dict.fromkeys((g.name for g in found.groups.free), TOGETHER)
            frozen = [replace(g, frozen_because=faults[g.name]) if g.name in faults else g for g in found.groups]
            found = self._checked(Groups(frozen), found.runner, found.check.runner)
        return found.groups, found.runner

    def _groups(self, found: Trace) -> list[Group]:
        """The groups; none is free on a recorded path that leaves out tensors which another path may couple."""
        groups = find_groups(found)
        unused = sorted(set(found.tensors) - found.used - {name for name in found.tensors if name.endswith("tracked")})
        if not found.graph.recorded or not unused:
            return groups
        reason = f"the path depends on the data, and the example does not run through {unused[0]}"
        return [replace(group, frozen_because=group.frozen_because or reason) for group in groups]

    def _layers(self, found: Trace) -> list[list[Branch]]:
        """The residual branches that may be dropped, in one list or in one for each stage."""
        if "layer" not in self.choice.kinds:
            return []
        branches = find_branches(found)
        lists = stages(branches) if self.choice.layers == "stage" else [branches]
        return [branches for branches in lists if len(branches) > 1]

    def _checked(self, groups: Groups, runner: Runner, tried: Runner) -> _Found:
        """Checked on a scratch copy: code that remembers what it computed must not remember disturbed weights."""
        check = CutCheck(tried, groups, self.args, self.kwargs)
        return _Found(groups, runner, check, check.sound())

    def _export(self, *, dynamic: bool) -> Graph:
        """In train mode, where nothing is dead code; to find groups in eval mode if that fails (a norm of one example).

        A graph that is to be run (``dynamic``) must know how to train, so it is never one of eval mode. Code that takes
        its path from the data can't be exported at all: the path of the example is recorded instead.
        """
        for training in (True,) if dynamic else (True, False):
            try:
                with in_mode(self.module, training=training):
                    return export_graph(self.module, self.args, self.kwargs, dynamic=dynamic)
            except TraceError as fault:
                line = str(fault)
        if dynamic:
            raise TraceError(_cannot_be_traced(line))
        try:
            with in_mode(self.module, training=False), torch.no_grad():
                graph = recorded_graph(self.module, self.args, self.kwargs)
        except Exception as fault:
            raise TraceError(_cannot_be_traced(line)) from fault
        warnings.warn(_recorded(line), stacklevel=5)
        return graph


def _recorded(line: str) -> str:
    return (
        f"the network takes its path from the data{_at(line)}, so its groups were found on the example's path alone; "
        "give an example that runs through every part of it"
    )


def _cannot_be_traced(line: str) -> str:
    return (
        f"the network can be neither exported nor recorded{_at(line)}. "
        "Rewrite that line with tensor operations, or nest the parts of the network on their own."
    )


def _does_not_run(module: nn.Module, fault: Exception) -> str:
    parts = {id(part): path for path, part in module.named_modules()}
    frames = [frame for frame, _ in traceback.walk_tb(fault.__traceback__)]
    paths = [parts[id(owner)] for frame in frames if id(owner := frame.f_locals.get("self")) in parts]
    inside = f" in {paths[-1]!r}" if paths and paths[-1] else ""
    line = user_line("".join(traceback.format_exception(fault)))
    first = str(fault).strip().split("\n")[0].rstrip(":. ")
    return (
        f"the network does not run on the example{inside}{_at(line)}: {first}. "
        "Pass what the network is called with: a tensor, a tuple of arguments, or a dictionary of keyword arguments."
    )


def _at(line: str) -> str:
    return f" at {line}" if line else ""
