"""``prune``: trains a network with Bayesian dropout until most of it is noise, and extracts the rest."""

from collections.abc import Collection, Mapping
from copy import deepcopy
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from nestling.budgets import Budgets
from nestling.errors import ArgumentError, DtypeError, TraceError
from nestling.network import nest, run_example
from nestling.prediction import Likelihood
from nestling.pruning.cutting import cut_out, joined, with_folded
from nestling.pruning.dependent import drop_unused, run_time_network, with_one_reader
from nestling.pruning.gated import Gates, gates_in
from nestling.pruning.methods import (
    checked_threshold,
    finishing_recipe,
    method_named,
    plain_recipe,
    pruning_recipe,
    target_recipe,
    tuning_recipe,
)
from nestling.pruning.options import PRETRAINING, Structure
from nestling.pruning.pruned import Pruned
from nestling.pruning.sites import Site, check_called, chosen_sites, find_sites
from nestling.pruning.stages import Plan, Stage
from nestling.pruning.target import narrowed, signal_for_cost, strongest, strongest_units, target_of
from nestling.pruning.weights import (
    check_weights_left,
    freeze_dropped,
    kept_weights,
    live_units,
    with_noise,
    without_weights,
)
from nestling.reading import full_cut
from nestling.running import Nested, Output, Read, as_call, check_same, in_mode, pick_output
from nestling.running import with_noise as noisy_calls
from nestling.training import Recipe, Run

ONE_UNIT_A_BLOCK = 2**31


def prune(
    module: nn.Module,
    example: Any,  # noqa: ANN401
    data: object,
    method: str = "vbd",
    *,
    structure: Structure | None = None,
    recipe: Recipe | None = None,
    pretrain: Recipe | bool = False,
    dependent: Recipe | None = None,
    finish: Recipe | bool = False,
    tune: Recipe | bool = False,
    threshold: float | None = None,
    under: Budgets = (),
    inputs: bool = False,
    where: Literal["inner", "all"] = "inner",
    exclude: Collection[str] = (),
    only: Collection[str] | None = None,
    out: str | PathLike[str] | None = None,
    likelihood: str | Likelihood | None = None,
    batch: Read | None = None,
    output: Output | None = None,
    quiet: bool = False,
) -> Pruned:
    """Prune a network, preferably a trained one; the caller's module is not changed.

    With ``out`` each stage is a run folder in it, and a call that was stopped goes on when it is made again.

    Args:
        module: The network.
        example: What it is called with, as for ``nest``.
        data: As for ``train``, or one loader for both training and validation.
        method: ``"sparse_vd"``, ``"vbd"``, ``"beta_bernoulli"``, ``"dependent_beta_bernoulli"`` or ``"log_normal"``.
        structure: ``"weights"`` (sparse_vd, vbd) or ``"units"`` (every method): neurons and channels. None takes
            weights for sparse_vd, and units for the others.
        recipe: For pruning; its ``order_lr`` is the gates' learning rate.
        pretrain: For training before it (True: the default recipe).
        dependent: For the second stage of dependent_beta_bernoulli.
        finish: Trains the rest after pruning, with its noise (True: for a sixth of the epochs), so that more can be
            pruned.
        tune: Trains the resulting plain network without noise; ``uncertain`` stays as it was.
        threshold: On log alpha for sparse_vd and vbd, on the keep probability for the beta-Bernoullis, on the
            signal-to-noise ratio for log_normal.
        under: The most that the result may cost, such as ``{"macs": "0.5x", "bytes": 200_000}``: params, macs, bytes of
            the network's files, or latency_ms of the network they hold for one example; ``"0.5x"`` is a share of the
            original network. If the threshold leaves more than that, the units or weights with the least signal for
            their cost go too, and the rest is trained without noise for a third of the epochs, unless ``finish`` or
            ``tune`` says otherwise.
        inputs: Also gate the single features of linear layers that read the network's input or flattened channels.
        where: ``"inner"`` leaves residual streams whole, ``"all"`` prunes them too.
        exclude: Modules to leave alone.
        only: The groups to gate; None for all.
        out: The folder of the stages; None keeps them in memory.
        likelihood: As in ``train``.
        batch: As in ``train``.
        output: As in ``nest``.
        quiet: Show no progress.

    Returns:
        The pruned network, with what was kept of each layer and what it costs before and after; prints as a table.

    Raises:
        ArgumentError: If an option does not go with the method, or nothing in the network can be pruned.
        BudgetError: If even the smallest network costs more than ``under``.
        RunError: If ``out`` can't be written, or holds another pruning.

    Examples:
        >>> short = nl.Recipe(epochs=1, cuts=(1.0,))
        >>> pruned = nl.prune(module, example, data, "log_normal", recipe=short, under={"macs": "0.5x"}, quiet=True)
        >>> pruned.after.macs <= pruned.before.macs / 2, tuple(pruned.network(images).shape)
        (True, (100, 10))
    """
    chosen_method, chosen_structure = method_named(method, structure)
    limit = checked_threshold(chosen_method, threshold)
    _check(module, chosen_structure, method, inputs=inputs, only=only, dependent=dependent, finish=finish or tune)
    module, call = deepcopy(module), as_call(example)
    pick_output(module, run_example(module, *call), output)
    target = target_of(under, module, example)
    if target is not None and method == "dependent_beta_bernoulli":
        needed = "left out for dependent_beta_bernoulli"
        raise ArgumentError("under", str(target), needed, "Its network chooses units per input: use beta_bernoulli.")
    if isinstance(data, DataLoader):
        data = (data, data)
    stage = Stage(example, data, None if out is None else Path(out), likelihood, batch, quiet)
    pretraining = None if not pretrain else plain_recipe(PRETRAINING if isinstance(pretrain, bool) else pretrain)
    chosen_recipe = pruning_recipe(chosen_method, recipe)
    finishing, tuning = finishing_recipe(chosen_recipe, finish), tuning_recipe(chosen_recipe, tune)
    after_target = tuning if finish or tune else target_recipe(chosen_recipe)
    plan = Plan(module, method, chosen_structure, limit, target, chosen_recipe, finishing, tuning, after_target)
    if chosen_structure == "weights":
        with_noise(module, example, tuple(exclude))  # raises now, before any training, if nothing can be pruned
        return _prune_weights(stage, plan, stage.start(module, pretraining), exclude)
    base = _base(module, example, where, exclude)
    sites, reasons = _sites(base, method, inputs=inputs, exclude=exclude, only=only)
    run = stage.train_with_gates(stage.start(module, pretraining), sites, chosen_method, limit, chosen_recipe, method)
    if method == "dependent_beta_bernoulli":
        run = stage.train_dependent(run, pruning_recipe(chosen_method, dependent or chosen_recipe))
    return _extracted(run, stage, plan, base, sites, reasons)


def _sites(
    base: Nested, method: str, *, inputs: bool, exclude: Collection[str], only: Collection[str] | None
) -> tuple[list[Site], dict[str, str]]:
    """The sites of gates, and for each group without one the reason."""
    sites, reasons = find_sites(base.module, base.groups, inputs=inputs, exclude=exclude)
    sites, more_reasons = check_called(base.module, sites, base.example)
    reasons |= more_reasons
    if method == "dependent_beta_bernoulli":
        sites, more_reasons = with_one_reader(sites)
        reasons |= more_reasons
    return chosen_sites(sites, reasons, only), reasons


def _prune_weights(stage: Stage, plan: Plan, start: nn.Module, exclude: Collection[str]) -> Pruned:
    nested = with_noise(start, stage.example, tuple(exclude))
    run = stage.train_with_noise(nested, plan.method, plan.threshold, plan.recipe)
    threshold_keeps = kept_weights(run.nested, plan.threshold)
    check_weights_left(threshold_keeps)
    kept = _within_weights(stage, plan, run.nested, threshold_keeps)
    sparse, log = without_weights(run.nested, kept), list(run.log)
    if plan.finishing is not None:
        freeze_dropped(sparse, kept)
        finished = stage.finish(sparse, plan)
        sparse, log = finished.nested.eval(), [*log, *finished.log]
    plain = sparse.extracted(full_cut(sparse.groups))
    network, reasons = _without_dead_units(plain, stage.example)
    check_same(sparse, network, noisy_calls(sparse.example), "pruned")
    uncertain = sparse.extracted(full_cut(sparse.groups), uncertainty=True)
    num_beyond = _count(threshold_keeps) - _count(kept)
    return stage.result(plan, network, run, kept, num_beyond, reasons, uncertain, log)


def _within_weights(stage: Stage, plan: Plan, nested: Nested, kept: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Of the weights that the threshold keeps, those that fit the target."""
    if plan.target is None:
        return kept
    with torch.no_grad():
        signals = {path: -log_alpha for path, log_alpha in nested.log_alphas(full_cut(nested.groups)).items()}

    def build(flags: Mapping[str, Tensor]) -> nn.Module:
        sparse = without_weights(nested, flags)
        return _without_dead_units(sparse.extracted(full_cut(sparse.groups)), stage.example)[0]

    return narrowed(plan.target, signals, kept, strongest(signals, kept), build)


def _count(kept: Mapping[str, Tensor]) -> int:
    return sum(int(flags.sum()) for flags in kept.values())


def _without_dead_units(plain: nn.Module, example: Any) -> tuple[nn.Module, dict[str, str]]:  # noqa: ANN401
    """A network without the units that nothing reads or that read nothing, and why some groups were not checked."""
    try:
        base = _base(plain, example, "inner", ())
    except (TraceError, ArgumentError) as error:
        return plain, {"units": f"not checked for dead units: {error}"}
    sites, reasons = find_sites(base.module, base.groups)
    sites, more_reasons = check_called(base.module, sites, base.example)
    if not sites:
        return plain, reasons | more_reasons
    kept = live_units(base.eval(), sites)
    ones = {site.name: torch.ones(site.size) for site in sites}
    return cut_out(base, sites, kept, ones).network, reasons | more_reasons


def _extracted(
    run: Run, stage: Stage, plan: Plan, base: Nested, sites: list[Site], reasons: Mapping[str, str]
) -> Pruned:
    gates = gates_in(run.nested)
    dependent = plan.method == "dependent_beta_bernoulli"
    if dependent:
        drop_unused(run.nested, stage.data, run.recipe, stage.batch)
    with torch.no_grad():
        alive = {name: gate.keep(plan.threshold) & gates.alive(name) for name, gate in gates.by_name.items()}
        means = {
            site.name: torch.ones(site.size)
            if dependent
            else gates.by_name[site.name].expectation(torch.zeros(1, site.size).to(alive[site.name].device))
            for site in sites
        }
        copy_weights(base, run.nested)
        threshold_keeps = joined(sites, alive)
        kept = joined(sites, _within_units(plan, gates, base, sites, threshold_keeps, means))
        for name, flags in kept.items():
            gates.alive(name).copy_(flags)
    smaller = cut_out(base, sites, kept, means)
    uncertain = None if dependent else with_folded(gates, smaller, stage.example)
    network = run_time_network(smaller, gates, plan.threshold) if dependent else smaller.network
    check_same(run.nested, network, noisy_calls(run.nested.example), "pruned")
    log = list(run.log)
    if plan.finishing is not None:
        assert uncertain is not None
        finished = stage.finish(uncertain, plan)
        uncertain, log = finished.nested.eval(), [*log, *finished.log]
        network.load_state_dict(uncertain.module.state_dict())
    num_beyond = _count(threshold_keeps) - _count(kept)
    return stage.result(plan, network, run, kept, num_beyond, reasons, uncertain, log)


def _within_units(
    plan: Plan, gates: Gates, base: Nested, sites: list[Site], kept: Mapping[str, Tensor], means: Mapping[str, Tensor]
) -> Mapping[str, Tensor]:
    """Of the units that the threshold keeps, those that fit the target."""
    if plan.target is None:
        return kept

    def build(flags: Mapping[str, Tensor]) -> nn.Module:
        return cut_out(deepcopy(base), sites, flags, means).network

    kept = {name: flags.cpu() for name, flags in kept.items()}
    signals = {name: gate.signal_to_noise().square().cpu() for name, gate in gates.by_name.items()}
    last = strongest_units(sites, signals, kept)
    return narrowed(plan.target, signal_for_cost(plan.target, signals, kept, build), kept, last, build)


@torch.no_grad()
def copy_weights(base: Nested, trained: Nested) -> None:
    """Copy the weights of a gated network to another, with the recalibrated statistics of its norms."""
    with in_mode(trained, training=False):
        tensors = trained.tensors() | trained.tensors_at(full_cut(trained.groups))
    for name, tensor in base.tensors().items():
        tensor.copy_(tensors[name])
    base.eval()


def _base(module: nn.Module, example: Any, where: Literal["inner", "all"], exclude: Collection[str]) -> Nested:  # noqa: ANN401
    return nest(
        module,
        example,
        order="full",
        weights=None,
        num_blocks=ONE_UNIT_A_BLOCK,
        num_always=1,
        kinds=("channel", "neuron"),
        where=where,
        exclude=exclude,
        sort="none",
    )


def _check(
    module: object,
    structure: Structure,
    method: str,
    *,
    inputs: bool,
    only: Collection[str] | None,
    dependent: Recipe | None,
    finish: Recipe | bool,
) -> None:
    if not isinstance(module, nn.Module):
        given = f"a {type(module).__name__}"
        raise DtypeError("module", given, "an nn.Module", "Wrap a function in a module's forward.")
    if isinstance(module, Nested):
        raise DtypeError("module", "a nested network", "a plain one", "Prune its module, or extract a cut of it.")
    if structure == "weights" and (inputs or only is not None):
        raise ArgumentError("inputs, only", "some", 'left out for structure="weights"', "They choose units.")
    if dependent is not None and method != "dependent_beta_bernoulli":
        needed = "left out for other methods than dependent_beta_bernoulli"
        raise ArgumentError("dependent", "a recipe", needed, "It is the recipe of that method's second stage.")
    if finish and method == "dependent_beta_bernoulli":
        needed = "left out for dependent_beta_bernoulli"
        raise ArgumentError("finish or tune", "a recipe", needed, "Its second stage trains the rest: see dependent.")
