"""Finds the groups of a module and a way to run it at any cut, and checks both on the example."""

import traceback
import warnings
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import torch
from torch import nn

from nestling.errors import TraceError
from nestling.network.check import TOGETHER, CutCheck, other_sizes, scratch, tensors_of
from nestling.reading import (
    Branch,
    Choice,
    Graph,
    Group,
    Groups,
    Holders,
    Trace,
    attribute_sizes,
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
from nestling.running import Call, GraphRunner, ModuleRunner, Runner, in_mode
from nestling.running.layers import layer_type


def discover(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], choice: Choice, rules: dict[str, Rule]
) -> tuple[Groups, Runner]:
    """Find the groups of a module, and a runner with which every free group can be cut.

    The module's code is tried first. If that code contains fixed sizes, or whole layers are to be dropped, the graph
    is run instead. A group that neither can cut is frozen and says why.
    """
    search = _Search(module, args, kwargs, choice, rules)
    discovery = search.by_module()
    if search.has_layers or not discovery.sound:
        by_graph = search.by_graph(discovery)
        if by_graph is not None and by_graph.sound >= discovery.sound:
            discovery = by_graph
    return search.freeze_faulty(discovery)


def run_example(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401
    """What a module returns on the example; a wrong example must not be mistaken for a network without a graph."""
    try:
        with in_mode(module, training=False), torch.no_grad():
            return module(*args, **kwargs)
    except Exception as fault:
        raise TraceError(_does_not_run(module, fault)) from fault


@dataclass(frozen=True)
class _Discovery:
    """Groups, their runner, and whether all of them can be cut at once."""

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
        self.calls = [(args, kwargs), *other_sizes(module, (args, kwargs))]

    def by_module(self) -> _Discovery:
        """The groups, run by the module's code."""
        traced = trace(self._export(), self.rules)
        self.has_layers = bool(self._layers(traced))
        groups = self.choice.apply(self._groups(traced), self.names)
        sizes = [size for size in attribute_sizes(traced, groups) if not self._is_of_layer(size.attribute)]
        runner, tried = (ModuleRunner(module, sizes, groups) for module in (self.module, scratch(self.module)))
        return self._check(groups, runner, tried)

    def _is_of_layer(self, attribute: str) -> bool:
        """Whether an attribute belongs to a layer that is registered, with its sizes."""
        path, _, name = attribute.rpartition(".")
        return name in layer_type(self.module.get_submodule(path)).computes_with

    def by_graph(self, by_module: _Discovery) -> _Discovery | None:
        """The groups, run by the exported graph, if the graph computes the same as the module."""
        graph = self._dynamic_graph()
        if graph is None:
            return None
        traced = trace(graph, self.rules)
        layers = self._layers(traced)
        groups = self.choice.apply(find_groups(traced) + layer_groups(layers), self.names)
        plan = make_plan(traced, groups, {branch.add.name: branch for branches in layers for branch in branches})
        runner = GraphRunner(self.module, plan, groups, dict(self.module.state_dict(keep_vars=True)))
        result = self._check(groups, runner, runner)
        return result if result.check.agrees_with(by_module.check) else None

    def freeze_faulty(self, discovery: _Discovery) -> tuple[Groups, Runner]:
        """Freeze the groups that can't be cut on the example; if each can be cut alone, freeze all that are free."""
        while not discovery.sound:
            names = [group.name for group in discovery.groups.free]
            faults = discovery.check.faults() or dict.fromkeys(names, TOGETHER)
            reasons = [faults.get(group.name, group.frozen_because) for group in discovery.groups]
            pairs = zip(discovery.groups, reasons, strict=True)
            groups = Groups([replace(group, frozen_because=reason) for group, reason in pairs])
            discovery = self._check(groups, discovery.runner, discovery.check.runner)
        return discovery.groups, discovery.runner

    def _groups(self, traced: Trace) -> list[Group]:
        """The groups; none is free if the recorded path leaves out tensors that another path may couple."""
        groups = find_groups(traced)
        unused = sorted(name for name in traced.tensors.keys() - traced.used if not name.endswith("tracked"))
        if not traced.graph.recorded or not unused:
            return groups
        reason = f"the path depends on the data, and the example does not run through {unused[0]}"
        return [replace(group, frozen_because=group.frozen_because or reason) for group in groups]

    def _layers(self, traced: Trace) -> list[list[Branch]]:
        """The residual branches that may be dropped, in one list or in one list per stage."""
        if "layer" not in self.choice.kinds:
            return []
        branches = find_branches(traced)
        lists = stages(branches) if self.choice.layers == "stage" else [branches]
        return [branches for branches in lists if len(branches) > 1]

    def _check(self, groups: Groups, runner: Runner, tried: Runner) -> _Discovery:
        """Check groups, with ``tried`` on a scratch copy: code that caches results must not cache disturbed weights."""
        check = CutCheck(tried, groups, self.calls)
        return _Discovery(groups, runner, check, check.sound())

    def _dynamic_graph(self) -> Graph | None:
        """The graph with open sizes, in train mode, in which it must be able to run; None if there is none.

        torch takes a size of one for a constant, so a batch of one example is doubled; and sides of images are opened
        only if the network runs on images of other sides.
        """
        sides = any(_sides(call) != _sides(self.calls[0]) for call in self.calls[1:])
        batch = [call for call in self.calls[1:] if _batch(self.calls[0]) == 1 and _batch(call) > 1]
        for call, opened in product([*batch, self.calls[0]], dict.fromkeys((sides, False))):
            try:
                with in_mode(self.module, training=True):
                    return export_graph(self.module, *call, dynamic=True, sides=opened)
            except TraceError:
                continue
        return None

    def _export(self) -> Graph:
        """Export the module in train mode, where all code runs; if that fails (a norm of one example), in eval mode.

        Code that takes its path from the data can't be exported: the path of the example is recorded instead.
        """
        for training in (True, False):
            try:
                with in_mode(self.module, training=training):
                    return export_graph(self.module, self.args, self.kwargs)
            except TraceError as fault:
                line = str(fault)
        try:
            with in_mode(self.module, training=False), torch.no_grad():
                graph = recorded_graph(self.module, self.args, self.kwargs)
        except Exception as fault:
            raise TraceError(_cannot_be_traced(line)) from fault
        warnings.warn(_recording_note(line), stacklevel=5)
        return graph


def _sides(call: Call) -> list[torch.Size]:
    """The sides of the images in a call."""
    return [tensor.shape[2:] for tensor in tensors_of(call) if tensor.ndim > 3]


def _batch(call: Call) -> int:
    """The size of the first axis of the first tensor in a call; 0 without tensors."""
    return next((tensor.shape[0] for tensor in tensors_of(call) if tensor.ndim), 0)


def _recording_note(line: str) -> str:
    return (
        f"the network takes its path from the data{_at(line)}, so only the example's path was searched for groups; "
        "give an example that runs through every part of it"
    )


def _cannot_be_traced(line: str) -> str:
    return (
        f"the network can be neither exported nor recorded{_at(line)}. "
        "Rewrite that line with tensor operations, or nest the parts of the network separately."
    )


def _does_not_run(module: nn.Module, fault: Exception) -> str:
    paths_by_id = {id(submodule): path for path, submodule in module.named_modules()}
    frames = [frame for frame, _ in traceback.walk_tb(fault.__traceback__)]
    owners = [id(frame.f_locals.get("self")) for frame in frames]
    paths = [paths_by_id[owner] for owner in owners if owner in paths_by_id]
    inside = f" in {paths[-1]!r}" if paths and paths[-1] else ""
    line = user_line("".join(traceback.format_exception(fault)))
    first_line = str(fault).strip().split("\n")[0].rstrip(":. ")
    return (
        f"the network does not run on the example{inside}{_at(line)}: {first_line}. "
        "Pass what the network is called with: a tensor, a tuple of arguments, or a dictionary of keyword arguments."
    )


def _at(line: str) -> str:
    return f" at {line}" if line else ""
