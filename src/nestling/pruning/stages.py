"""The stages of one call of ``prune``: what each of them trains, and the record that comes of them."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nestling.prediction import Likelihood, likelihood_for
from nestling.pruning.delivered import Delivered, costs_of
from nestling.pruning.dependent import with_dependence
from nestling.pruning.gated import Gates, gated, gates_in, without_widths
from nestling.pruning.methods import METHODS, Method
from nestling.pruning.options import Structure
from nestling.pruning.pruned import LayerReport, Pruned, why_little_went
from nestling.pruning.sites import Site
from nestling.pruning.target import Target
from nestling.pruning.weights import freeze_zeros, kept_weights
from nestling.running import Nested, Read
from nestling.storage import tensors_digest
from nestling.training import Recipe, Run, train


@dataclass(frozen=True)
class Plan:
    """What is pruned and how; ``after_target`` trains what a target leaves if it drops more than the threshold."""

    module: nn.Module
    method: str
    structure: Structure
    threshold: float
    target: Target | None
    recipe: Recipe
    finishing: Recipe | None
    tuning: Recipe | None
    after_target: Recipe | None

    @property
    def label(self) -> str:
        """The end of the names of the folders of later stages: one for each threshold and target."""
        return f"{self.threshold:g}" + ("" if self.target is None else f"-{self.target}".replace(", ", "-"))


@dataclass(frozen=True)
class Stage:
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

    def finish(self, nested: Nested, plan: Plan) -> Run:
        """Train the rest of a network after a threshold; other thresholds may be tried in the same folder."""
        assert plan.finishing is not None
        return self._train(nested, plan.finishing, f"finish-{plan.label}", {})

    def result(
        self,
        plan: Plan,
        network: nn.Module,
        run: Run,
        kept: Mapping[str, Tensor],
        num_beyond: int,
        reasons: Mapping[str, str],
        uncertain: nn.Module | None,
        log: Sequence[dict[str, Any]],
    ) -> Pruned:
        """The record of a pruned network, after a last training of it if there is a recipe for one."""
        recipe = plan.after_target if num_beyond else plan.tuning
        if recipe is not None:
            network, tuning_log = self._tuned(plan, network, kept, recipe)
            log = [*log, *tuning_log]
        layers = [LayerReport(name, int(flags.sum()), flags.numel()) for name, flags in kept.items()]
        rule = METHODS[plan.method].keeps
        delivered = Delivered(network, self.example)
        before, after = costs_of(Delivered(plan.module, self.example), delivered)
        little = why_little_went(plan.structure, f"{rule} {plan.threshold:g}", layers, before, after, reasons)
        exceeded = "" if plan.target is None else plan.target.exceeded(before, after)
        return Pruned(
            network,
            plan.method,
            plan.structure,
            plan.threshold,
            layers,
            before,
            after,
            run.nested,
            kept,
            reasons,
            uncertain=uncertain,
            likelihood=self.learned[-1],
            log=log,
            folder=self.out,
            target="" if plan.target is None else str(plan.target),
            num_beyond=num_beyond,
            files=delivered.files,
            example=self.example,
            advice=" ".join(filter(None, (little, exceeded))),
        )

    def _tuned(
        self, plan: Plan, network: nn.Module, kept: Mapping[str, Tensor], recipe: Recipe
    ) -> tuple[nn.Module, Sequence[dict[str, Any]]]:
        """A copy of the resulting plain network after training, and the log of that; pruned weights stay zero."""
        trainable, tuned = deepcopy(network), deepcopy(network)  # the zeros of the second are not frozen
        if plan.structure == "weights":
            freeze_zeros(trainable, kept)
        run = self._train(without_widths(trainable, self.example), recipe, f"tune-{plan.label}", {})
        tuned.load_state_dict(run.nested.module.state_dict())
        return tuned, run.log

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


def _kept_units(nested: Nested) -> dict[str, float]:
    """The share of all units that the gates keep now, and the number at each place."""
    gates = gates_in(nested)
    with torch.no_grad():
        flags = {name: gate.keep(gates.threshold) for name, gate in gates.by_name.items()}
    numbers = {name: float(kept.sum()) for name, kept in flags.items()}
    return {"kept": sum(numbers.values()) / sum(kept.numel() for kept in flags.values()), **numbers}
