"""``prune``: trains a network with Bayesian dropout until most of it is noise, and extracts the rest."""

from collections.abc import Collection, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn
from torch.utils.data import DataLoader

from nestling.errors import ArgumentError, DtypeError, TraceError
from nestling.network import nest, run_example
from nestling.prediction import Likelihood, likelihood_for
from nestling.pruning.cutting import cut_out, joined, with_folded
from nestling.pruning.dependent import drop_unused, run_time_network, with_dependence, with_one_reader
from nestling.pruning.gated import Gates, gated, gates_in, without_widths
from nestling.pruning.methods import (
    Method,
    checked_threshold,
    finishing_recipe,
    method_named,
    plain_recipe,
    pruning_recipe,
    tuning_recipe,
)
from nestling.pruning.options import PRETRAINING, Structure
from nestling.pruning.pruned import LayerReport, Pruned
from nestling.pruning.sites import Site, check_called, chosen_sites, find_sites
from nestling.pruning.weights import (
    check_weights_left,
    freeze_dropped,
    freeze_zeros,
    kept_weights,
    live_units,
    with_noise,
    without_weights,
)
from nestling.reading import full_cut
from nestling.running import Cost, Nested, Output, Read, as_call, check_same, cost, in_mode, pick_output
from nestling.running import with_noise as noisy_calls
from nestling.storage import tensors_digest
from nestling.training import Recipe, Run, train

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

    ``data`` is as for ``train``, or one loader for both training and validation. ``structure`` is ``"weights"``
    (sparse_vd, vbd) or ``"units"`` (every method): neurons and channels. ``inputs`` also gates the single features of
    linear layers that read the network's input or flattened channels.
    ``recipe`` is for pruning (its ``order_lr`` is the gates' learning rate), ``pretrain`` for training before it (True:
    the default recipe), ``dependent`` for the second stage of dependent_beta_bernoulli. ``finish`` trains the rest
    after pruning, with its noise (True: for a sixth of the epochs), so that more can be pruned. ``tune`` trains the
    resulting plain network without noise; ``uncertain`` stays as it was.
    ``threshold`` is on log alpha for sparse_vd and vbd, on the keep probability for the beta-Bernoullis, on the
    signal-to-noise ratio for log_normal. ``exclude`` names modules to leave alone, ``only`` the groups to gate.

    ``likelihood`` and ``batch`` are as in ``train``, ``output`` as in ``nest``.

    With ``out`` each stage is a run folder in it, and a call that was stopped goes on when it is made again.
    """
    chosen_method, chosen_structure = method_named(method, structure)
    limit = checked_threshold(chosen_method, threshold)
    _check(module, chosen_structure, method, inputs=inputs, only=only, dependent=dependent, finish=finish or tune)
    if isinstance(data, DataLoader):
        data = (data, data)
    module, call = deepcopy(module), as_call(example)
    pick_output(module, run_example(module, *call), output)
    stage = _Stage(example, data, None if out is None else Path(out), likelihood, batch, quiet)
    pretraining = None if not pretrain else plain_recipe(PRETRAINING if isinstance(pretrain, bool) else pretrain)
    chosen_recipe = pruning_recipe(chosen_method, recipe)
    finishing, tuning = finishing_recipe(chosen_recipe, finish), tuning_recipe(chosen_recipe, tune)
    if chosen_structure == "weights":
        with_noise(module, example, tuple(exclude))  # raises now, before any training, if nothing can be pruned
        start = stage.start(module, pretraining)
        pruned = _prune_weights(stage, module, start, method, limit, chosen_recipe, exclude, finishing)
        return stage.tune(pruned, tuning)
    base = _base(module, example, where, exclude)
    sites, reasons = _sites(base, method, inputs=inputs, exclude=exclude, only=only)
    run = stage.train_with_gates(stage.start(module, pretraining), sites, chosen_method, limit, chosen_recipe, method)
    if method == "dependent_beta_bernoulli":
        run = stage.train_dependent(run, pruning_recipe(chosen_method, dependent or chosen_recipe))
    return stage.tune(_extracted(run, stage, module, base, sites, method, limit, reasons, finishing), tuning)


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


@dataclass(frozen=True)
class _Stage:
    """The arguments that all stages of one call share, and the stages."""

    example: Any
    data: object
    out: Path | None
    likelihood: str | Likelihood | None
    batch: Read | None
    quiet: bool
    learned: list[Likelihood] = field(default_factory=list)
    """The likelihood after each stage that was trained; the next goes on with it, so that outputs keep their scale."""

    def start(self, module: nn.Module, recipe: Recipe | None) -> nn.Module:
        """A copy of the module, trained without gates and noise if there is a recipe."""
        copy = deepcopy(module)
        if recipe is None:
            return copy
        return self._train(without_widths(copy, self.example), recipe, "pretrain", {}).nested.module

    def train_with_noise(self, nested: Nested, method: str, threshold: float, recipe: Recipe) -> Run:
        """Train a network with noise on its weights."""

        def figures(current: Nested) -> dict[str, float]:
            kept = kept_weights(current, threshold).values()
            total, num_kept = sum(flags.numel() for flags in kept), sum(int(flags.sum()) for flags in kept)
            return {"sparsity": 1 - num_kept / total, "compression": total / max(1, num_kept)}

        return self._train(nested, recipe, "prune", {"method": method, "structure": "weights"}, figures)

    def train_with_gates(
        self, start: nn.Module, sites: list[Site], method: Method, threshold: float, recipe: Recipe, name: str
    ) -> Run:
        """Train a network with its gates."""
        nested = gated(start, self.example, Gates(sites, [method.gate(site.size) for site in sites], threshold))
        about = {"method": name, "structure": "units", "sites": [site.name for site in sites]}
        return self._train(nested, recipe, "prune", about, _kept_units)

    def train_dependent(self, run: Run, recipe: Recipe) -> Run:
        """Train the part of the gates that depends on the input, with the rest of the gates fixed."""
        nested = with_dependence(run.nested)
        about = {"method": "dependent", "structure": "units"}
        return self._train(nested, recipe, "dependent", about, _kept_units)

    def finish(self, nested: Nested, recipe: Recipe, threshold: float) -> Run:
        """Train the rest of a network after a threshold; other thresholds may be tried in the same folder."""
        return self._train(nested, recipe, f"finish-{threshold:g}", {})

    def tune(self, pruned: Pruned, recipe: Recipe | None) -> Pruned:
        """Train the resulting plain network if there is a recipe; pruned weights stay zero."""
        if recipe is None:
            return pruned
        network = deepcopy(pruned.network)
        if pruned.structure == "weights":
            freeze_zeros(network, pruned.kept)
        run = self._train(without_widths(network, self.example), recipe, f"tune-{pruned.threshold:g}", {})
        tuned = deepcopy(pruned.network)  # its zeros are not frozen
        tuned.load_state_dict(run.nested.module.state_dict())
        return replace(pruned, network=tuned, likelihood=self.learned[-1], log=[*pruned.log, *run.log])

    def _train(
        self,
        nested: Nested,
        recipe: Recipe,
        name: str,
        about: Mapping[str, Any],
        figures: Any = None,  # noqa: ANN401
    ) -> Run:
        nested.made_with = {"stage": name, **about}
        start = tensors_digest(nested.module.state_dict().values())
        folder = None if self.out is None else self.out / name
        run = train(
            nested,
            self.data,
            recipe,
            out=folder,
            likelihood=self.learned[-1] if self.learned else self.likelihood,
            starts_from=start,
            figures=figures,
            batch=self.batch,
            quiet=self.quiet,
        )
        self.learned.append(likelihood_for(nested, run.likelihood))
        return run


def _prune_weights(
    stage: _Stage,
    module: nn.Module,
    start: nn.Module,
    name: str,
    threshold: float,
    recipe: Recipe,
    exclude: Collection[str],
    finishing: Recipe | None,
) -> Pruned:
    nested = with_noise(start, stage.example, tuple(exclude))
    run = stage.train_with_noise(nested, name, threshold, recipe)
    kept = kept_weights(run.nested, threshold)
    check_weights_left(kept)
    sparse, log = without_weights(run.nested, kept), list(run.log)
    if finishing is not None:
        freeze_dropped(sparse, kept)
        finished = stage.finish(sparse, finishing, threshold)
        sparse, log = finished.nested.eval(), [*log, *finished.log]
    plain = sparse.extracted(full_cut(sparse.groups))
    network, reasons = _without_dead_units(plain, stage.example)
    check_same(sparse, network, noisy_calls(sparse.example), "pruned")
    return Pruned(
        network,
        name,
        "weights",
        threshold,
        [LayerReport(path, int(flags.sum()), flags.numel()) for path, flags in kept.items()],
        plain_cost(module, stage.example),
        plain_cost(network, stage.example),
        run.nested,
        kept,
        reasons,
        uncertain=sparse.extracted(full_cut(sparse.groups), uncertainty=True),
        likelihood=stage.learned[-1],
        log=log,
        folder=stage.out,
    )


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
    run: Run,
    stage: _Stage,
    module: nn.Module,
    base: Nested,
    sites: list[Site],
    method: str,
    threshold: float,
    reasons: Mapping[str, str],
    finishing: Recipe | None,
) -> Pruned:

    gates = gates_in(run.nested)
    dependent = method == "dependent_beta_bernoulli"
    if dependent:
        drop_unused(run.nested, stage.data, run.recipe, stage.batch)
    with torch.no_grad():
        alive = {name: gate.keep(threshold) & gates.alive(name) for name, gate in gates.by_name.items()}
        kept = joined(sites, alive)
        means = {
            site.name: torch.ones(site.size)
            if dependent
            else gates.by_name[site.name].expectation(torch.zeros(1, site.size).to(alive[site.name].device))
            for site in sites
        }
        copy_weights(base, run.nested)
    smaller = cut_out(base, sites, alive, means)
    uncertain = None if dependent else with_folded(gates, smaller, stage.example)
    network = run_time_network(smaller, gates, threshold) if dependent else smaller.network
    check_same(run.nested, network, noisy_calls(run.nested.example), "pruned")
    log = list(run.log)
    if finishing is not None:
        assert uncertain is not None
        finished = stage.finish(uncertain, finishing, threshold)
        uncertain, log = finished.nested.eval(), [*log, *finished.log]
        network.load_state_dict(uncertain.module.state_dict())
    return Pruned(
        network,
        method,
        "units",
        threshold,
        [LayerReport(site.name, int(kept[site.name].sum()), site.size) for site in sites],
        plain_cost(module, stage.example),
        plain_cost(network, stage.example),
        run.nested,
        kept,
        reasons,
        uncertain=uncertain,
        likelihood=stage.learned[-1],
        log=log,
        folder=stage.out,
    )


@torch.no_grad()
def copy_weights(base: Nested, trained: Nested) -> None:
    """Copy the weights of a gated network to another, with the recalibrated statistics of its norms."""
    with in_mode(trained, training=False):
        tensors = trained.tensors() | trained.tensors_at(full_cut(trained.groups))
    for name, tensor in base.tensors().items():
        tensor.copy_(tensors[name])
    base.eval()


def plain_cost(network: nn.Module, example: Any) -> Cost:  # noqa: ANN401
    """The cost of a plain network; its multiply-adds count weights that are zero too."""
    return cost(without_widths(deepcopy(network).eval(), example), 1.0)


def _kept_units(nested: Nested) -> dict[str, float]:
    gates = gates_in(nested)
    with torch.no_grad():
        return {name: float(gate.keep(gates.threshold).sum()) for name, gate in gates.by_name.items()}


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
