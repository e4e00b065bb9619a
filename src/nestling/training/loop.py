"""The loop: steps, validation, the best weights so far, and where to go on from."""

import time
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils import _pytree as pytree

from nestling.distributions import Downhill
from nestling.errors import NonFiniteError, RunError
from nestling.network import Nested, recalibrate
from nestling.network.cut import full_cut
from nestling.prediction import Likelihood, Scores, evaluate
from nestling.training import schedules
from nestling.training.checkpoint import State
from nestling.training.elbo import Terms, elbo_terms
from nestling.training.feeds import Feed
from nestling.training.folder import Keeper
from nestling.training.optimisers import make_optimiser, set_lr
from nestling.training.progress import Progress
from nestling.training.recipe import Recipe
from nestling.training.watch import diverged

CHECKPOINT_SECONDS = 300.0
"""A checkpoint is written after each epoch, and within one whenever this much time has passed."""


class Loop:
    """Trains a nested network on a feed by a recipe, from wherever its keeper says."""

    def __init__(self, nested: Nested, feed: Feed, recipe: Recipe, likelihood: Likelihood, keeper: Keeper) -> None:
        self.nested, self.feed, self.recipe, self.likelihood, self.keeper = nested, feed, recipe, likelihood, keeper
        self.num_steps = recipe.epochs * len(feed.train)
        self.optimiser = make_optimiser(nested, recipe, self.num_steps)
        self.num_weights = sum(own.numel() for own in nested.log_alphas(full_cut(nested.groups)).values())
        self.state = State()
        self.device = next((t.device for t in nested.tensors().values()), torch.device("cpu"))
        self._cuts = sorted(set(recipe.cuts))
        self._began = self._written = time.monotonic()

    def run(self, *, quiet: bool = False) -> State:
        """Train to the end; torch's random state is left as it was found."""
        devices = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(self.recipe.seed)
            self.state = self.keeper.begin(self.nested, self.optimiser) or self.state
            self._check_state()
            if not self.state.finished:
                self._train(quiet)
        self.keeper.give_best(self.nested)
        self.nested.eval()
        return self.state

    def _check_state(self) -> None:
        """Refuse to go on from where no run of this recipe can be."""
        state, num_batches = self.state, len(self.feed.train)
        if state.batch >= max(num_batches, 1) or state.step != state.epoch * num_batches + state.batch:
            wrong = f"stands at step {state.step}, batch {state.batch} of epoch {state.epoch}, which is nowhere"
            raise RunError("the checkpoint", wrong, "Delete it to start from the beginning.")

    def _train(self, quiet: bool) -> None:
        with Progress(self.num_steps, "train", done=self.state.step, shown=not quiet) as progress:
            if self.state.step:
                progress.say(f"going on from epoch {self.state.epoch + 1}, step {self.state.step}")
            while self.state.epoch < self.recipe.epochs and not self._stale():
                self._epoch(progress)
                progress.say(self._report(self.keeper.lines[-1]))

    def _epoch(self, progress: Progress) -> None:
        state = self.state
        self.feed.train.set_epoch(state.epoch)
        self.nested.train()
        for batch in self.feed.train.from_batch(state.batch):
            terms = self._step(batch)
            state.step, state.batch = state.step + 1, state.batch + 1
            for name in ("loss", "nll", "weight_kl", "order_kl"):
                state.sums[name] = state.sums.get(name, 0.0) + float(getattr(terms, name).detach())
            progress.step(loss=f"{float(terms.loss.detach()):.3f}")
            if time.monotonic() - self._written > CHECKPOINT_SECONDS:
                self._checkpoint()
        means = {name: total / max(1, state.batch) for name, total in state.sums.items()}
        state.epoch, state.batch, state.sums = state.epoch + 1, 0, {}
        line = self._validated(means)
        self.keeper.log(line)
        self._checkpoint()

    def _step(self, batch: Any) -> Terms:  # noqa: ANN401
        recipe, share = self.recipe, self.state.step / self.num_steps
        inputs, targets = pytree.tree_map_only(Tensor, lambda t: t.to(self.device, non_blocking=True), tuple(batch))
        set_lr(self.optimiser, schedules.lr_factor(recipe, share))
        for order in self.nested.orders.values():
            if isinstance(order, Downhill):
                order.temperature = schedules.temperature(recipe, share)
        try:
            terms = self._terms((inputs, targets), share)
        except NonFiniteError:
            raise diverged(self.nested, (inputs, targets), (), self.state.step + 1) from None
        self.optimiser.zero_grad(set_to_none=True)
        if not bool(torch.isfinite(terms.loss)):
            raise diverged(self.nested, (inputs, targets), terms.cuts, self.state.step + 1)
        terms.loss.backward()  # type: ignore[no-untyped-call]
        norm = torch.nn.utils.clip_grad_norm_(self.nested.parameters(), recipe.clip)
        if not bool(torch.isfinite(norm)):
            raise diverged(self.nested, (inputs, targets), terms.cuts, self.state.step + 1)
        self.optimiser.step()
        return terms

    def _terms(self, batch: tuple[Any, Tensor], share: float) -> Terms:
        """The objective of one step, in the recipe's precision."""
        recipe = self.recipe
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self._in_bfloat16()):
            return elbo_terms(
                self.nested,
                batch,
                dataset_size=self.feed.train.dataset_size,
                kappa=self._kappa(share),
                likelihood=self.likelihood,
                weight_kl=recipe.weight_kl,
                prior_keep=recipe.prior_keep,
                order_weight=recipe.order_weight,
                estimator=recipe.estimator,
                draws=recipe.draws,
                explore=recipe.explore,
                coupled=recipe.coupled,
                sandwich=recipe.sandwich,
            )

    def _validated(self, means: dict[str, float]) -> dict[str, Any]:
        """Validate at the recipe's cuts, keep the weights if they are the best, and give the line of the log."""
        state = self.state
        scores = self.validate()
        score = sum(own.nll for own in scores.values()) / len(scores)
        better = state.best_score is None or score < state.best_score
        if better:
            state.best_score, state.best_epoch = score, state.epoch
            self.keeper.keep_best(self.nested, {"epoch": state.epoch, "validation_nll": score})
        now = time.monotonic()
        state.seconds, self._began = state.seconds + now - self._began, now
        share = state.step / self.num_steps
        return {
            "epoch": state.epoch,
            "step": state.step,
            **means,
            "lr": self.optimiser.param_groups[0]["largest_lr"] * schedules.lr_factor(self.recipe, share),
            "kappa": self._kappa(share),
            "validation": {str(cut): _figures(own) for cut, own in scores.items()},
            "validation_nll": score,
            "best": better,
            "expected_width": {name: float(o.expected_width().detach()) for name, o in self.nested.orders.items()},
            "seconds": round(state.seconds, 3),
        }

    def validate(self) -> dict[float, Scores]:
        """Scores on the validation data at each cut, with the weights at their means."""
        if has_norms(self.nested):
            for cut in self._cuts:
                recalibrate(self.nested, self.feed.recalibration, cut)
        scores = evaluate(
            self.nested, self.feed.validation, cut=self._cuts, samples=0, likelihood=self.likelihood, seed=None
        )
        return dict(zip(self._cuts, scores, strict=True))

    def _kappa(self, share: float) -> float:
        return schedules.kappa(self.recipe, share, self.feed.train.dataset_size, self.num_weights)

    def _checkpoint(self) -> None:
        self.keeper.checkpoint(self.state, self.nested, self.optimiser)
        self._written = time.monotonic()

    def _stale(self) -> bool:
        best, patience = self.state.best_epoch, self.recipe.patience
        return patience is not None and best is not None and self.state.epoch - best >= patience

    def _in_bfloat16(self) -> bool:
        wanted = self.recipe.precision
        has_it = self.device.type == "cuda" and torch.cuda.is_bf16_supported()
        return wanted == "bfloat16" or (wanted == "auto" and has_it)

    def _report(self, line: dict[str, Any]) -> str:
        at = "  ".join(f"{100 * float(cut):.4g}% " + _headline(own) for cut, own in line["validation"].items())
        mark = "  best" if line["best"] else ""
        return f"epoch {line['epoch']}/{self.recipe.epochs}  loss {line['loss']:.4f}  validation {at}{mark}"


def has_norms(nested: Nested) -> bool:
    """Whether a network has batch norms, whose statistics belong to a cut."""
    return any(isinstance(part, _BatchNorm) for part in nested.module.modules())


def _headline(figures: dict[str, float]) -> str:
    """The figure that people look at first."""
    if "dice" in figures:  # of pixels, nearly all are background and right
        return f"Dice {figures['dice']:.3f}"
    if "accuracy" in figures:
        return f"{figures['accuracy']:.2%}"
    name = "rmse" if "rmse" in figures else "nll"
    return f"{name} {figures[name]:.4g}"


def _figures(scores: Scores) -> dict[str, float]:
    found = {"nll": scores.nll}
    for name in ("accuracy", "rmse", "dice"):
        value = getattr(scores, name, None)
        if value is not None:
            found[name] = value
    return found
