"""The loop: steps, validation, the best weights so far, and checkpoints."""

import json
import time
from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from nestling.distributions import Tempered
from nestling.errors import DivergenceError, NonFiniteError, ProcessError, RunError
from nestling.prediction import Likelihood, Scores, evaluate
from nestling.processes import ALONE, Processes
from nestling.running import Nested, norms_with_statistics, recalibrate
from nestling.seeding import Purpose, generator, reseed
from nestling.torch_parts import pytree
from nestling.training import schedules
from nestling.training.checkpoint import State
from nestling.training.elbo import step_terms
from nestling.training.epochs import epoch_line, epoch_table, figures_of, short
from nestling.training.kept_state import Keeper
from nestling.training.non_finite import diverged, diverged_in_validation, weights_gone_wrong
from nestling.training.objectives import check_objective
from nestling.training.parameter_groups import clipped_parameters, make_optimiser, set_lr, set_natural_rate
from nestling.training.progress import Progress
from nestling.training.recipe import Recipe
from nestling.training.run_batches import Feed
from nestling.training.spreading import give_best, share_buffers, take_up
from nestling.training.stopping import Stopped, Stopping
from nestling.training.terms import Step, Terms, checked_pair

CHECKPOINT_SECONDS = 300.0
"""A checkpoint is written after each epoch, and within an epoch whenever this many seconds have passed."""
STEP_BACK = 0.5
"""The factor on the learning rates when a run that diverged goes back."""
TRAINING = "train"
"""The name of the only stage of a training; a pruning has several."""
Figures = Callable[[Nested], Mapping[str, float]]
"""The caller's figures of a network, which the log has per epoch."""
_SUMMED = {"loss": "loss", "nll": "NLL", "weight_kl": "weight KL", "order_kl": "order KL"}
"""The terms of a step that are averaged over an epoch, and what they are called on a terminal."""


class Loop:
    """Trains a nested network on a feed by a recipe, from its keeper's state, in one process or several."""

    def __init__(
        self,
        nested: Nested,
        feed: Feed,
        recipe: Recipe,
        likelihood: Likelihood,
        keeper: Keeper,
        *,
        processes: Processes = ALONE,
        stopping: Stopping | None = None,
        figures: Figures | None = None,
        teacher: nn.Module | None = None,
    ) -> None:
        check_objective(recipe.objective, likelihood, teacher)
        self.num_steps = recipe.epochs * len(feed.train)
        recipe = recipe.settled(has_teacher=teacher is not None, num_steps=self.num_steps)
        self.nested, self.feed, self.recipe, self.likelihood, self.keeper = nested, feed, recipe, likelihood, keeper
        self.processes, self.stopping = processes, stopping or Stopping()
        self.figures = figures or (lambda _: {})
        self.optimiser = make_optimiser(nested, recipe, self.num_steps)
        self.largest_kappa = schedules.largest_kappa(recipe, nested, feed.train.dataset_size)
        self.state = State()
        self.device = nested.device
        self.teacher = None if teacher is None else _frozen(teacher).to(self.device)
        self.stage = (nested.made_with or {}).get("stage", TRAINING)
        self._cuts = sorted(set(recipe.cuts))
        self._began = self._written = time.monotonic()

    def run(self, *, quiet: bool = False) -> State:
        """Train to the end; torch's random state is not changed."""
        devices = [self.device] if self.device.type == "cuda" else []
        averaging = self.processes.averaging(self.nested)
        with torch.random.fork_rng(devices=devices), averaging as self._averaged:
            self._take_up()
            if not self.state.finished:
                self._train(quiet or not self.processes.is_first)
        give_best(self.keeper, self.nested, self.processes)
        self.nested.eval()
        return self.state

    def _take_up(self) -> None:
        """Restore the state that was kept last, or keep the initial one."""
        state = take_up(self.keeper, self.nested, self.optimiser, self.processes)
        if state is None:
            self._checkpoint()
            return
        self.state = state
        self._check_state()

    def _check_state(self) -> None:
        """Raise if no run of this recipe can have this state."""
        state, num_batches = self.state, len(self.feed.train)
        if (
            state.steps_back > self.recipe.step_back
            or state.batch > num_batches
            or state.began > state.epoch
            or state.step != state.epoch * num_batches + state.batch
        ):
            problem = f"is at step {state.step}, batch {state.batch} of epoch {state.epoch}, which no run reaches"
            raise RunError("the checkpoint", problem, "Delete it to start from the beginning.")

    def _train(self, quiet: bool) -> None:
        self.nested.statistics = {}  # those of other weights
        with Progress(self.num_steps, self.stage, done=self.state.step, shown=not quiet) as progress:
            if self.keeper.notice:
                progress.say(self.keeper.notice)
            if self.state.step:
                progress.say(f"going on from epoch {self.state.epoch + 1}, step {self.state.step}")
            while self.state.epoch < self.recipe.epochs and not self._stale():
                try:
                    with self.stopping.waiting():
                        self._epoch(progress)
                except DivergenceError as error:
                    self._step_back(error, progress)
                else:
                    self._show(self.keeper.lines[-1], progress)

    def _show(self, line: dict[str, Any], progress: Progress) -> None:
        """Print the line of an epoch, and show its figures of each width below the bar."""
        mark = "  kept" if line["kept"] and self.recipe.keep == "best" else ""
        progress.below(epoch_table(line, self.nested.groups))
        stage = "" if self.stage == TRAINING else f"{self.stage}  "
        progress.say(f"{stage}{epoch_line(line, self.nested.groups, self.recipe.epochs)}{mark}")

    def _epoch(self, progress: Progress) -> None:
        state = self.state
        self.feed.train.set_epoch(state.epoch)
        progress.what = f"{self.stage}  epoch {state.epoch + 1} of {self.recipe.epochs}"
        self.nested.train()
        for batch in self.feed.train.from_batch(state.batch):
            figures, stop = self._step(batch)
            state.step, state.batch = state.step + 1, state.batch + 1
            for name, value in figures.items():
                state.sums[name] = state.sums.get(name, 0.0) + value
            progress.step(**{shown: short(figures[name]) for name, shown in _SUMMED.items()})
            if stop:
                self._stop()
            if time.monotonic() - self._written > CHECKPOINT_SECONDS:
                self._checkpoint()
        self._check_weights()
        share_buffers(self.nested, self.processes)
        means = {name: total / max(1, state.batch) for name, total in state.sums.items()}
        line = self._validate_and_keep(means)
        self.keeper.log(line)
        self._checkpoint()

    def _step(self, batch: Any) -> tuple[dict[str, float], bool]:  # noqa: ANN401
        """One step: its figures, averaged over processes, and whether any process was asked to stop."""
        share = self.state.step / self.num_steps
        inputs, targets = pytree.tree_map_only(Tensor, lambda t: t.to(self.device, non_blocking=True), tuple(batch))
        set_lr(self.optimiser, self._lr_factor(share))
        for order in self.nested.orders.values():
            if isinstance(order, Tempered):
                order.temperature = schedules.temperature(self.recipe, share)
        self.nested.quantised.sharpness = schedules.sharpness(self.recipe, share)
        reseed(self.device, Purpose.NOISE, self.recipe.seed, self.state.step, self.processes.rank)
        self.optimiser.zero_grad(set_to_none=True)
        terms = None
        try:
            terms = self._averaged(self._terms, (inputs, targets), share)
            error = None if bool(torch.isfinite(terms.loss)) else self._diverged((inputs, targets), terms)
        except NonFiniteError:
            error = self._diverged((inputs, targets), terms)
        figures, stop = self._agree(terms, error)
        assert terms is not None
        with self.processes.together():
            terms.loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(clipped_parameters(self.optimiser), self.recipe.clip)
        if not bool(torch.isfinite(norm)):
            raise self._diverged((inputs, targets), terms)
        self.optimiser.step()
        return figures, stop

    def _agree(self, terms: Terms | None, error: DivergenceError | None) -> tuple[dict[str, float], bool]:
        """The means of a step's figures over all processes; if one process diverged, all of them raise its error."""
        is_bad = terms is None or error is not None
        figures = [0.0 if is_bad else float(getattr(terms, name).detach()) for name in _SUMMED]
        flags = [float(error is not None), float(self.stopping.signal is not None)]
        *means, failed, stop = self.processes.mean(torch.tensor(figures + flags, dtype=torch.float64)).tolist()
        if failed:
            content = b"" if error is None else json.dumps(vars(error)).encode()
            raise DivergenceError(**json.loads(next(sent for sent in self.processes.gather(content) if sent)))
        return dict(zip(_SUMMED, means, strict=True)), stop > 0

    def _diverged(self, batch: tuple[Any, Tensor], terms: Terms | None) -> DivergenceError:
        return diverged(self.nested, batch, () if terms is None else terms.cuts, self.state.step + 1)

    def _check_weights(self) -> None:
        """Raise if weights are not finite: neither validation nor a checkpoint could use them."""
        error = weights_gone_wrong(self.nested, self.state.step)
        if error is not None:
            raise error

    def _step_back(self, error: DivergenceError, progress: Progress) -> None:
        """Return to the last checkpoint with lower learning rates, if the recipe allows it and the data is sound."""
        allowed = self.recipe.step_back - self.state.steps_back
        if allowed <= 0 or error.in_data:
            raise error if self.processes.is_first else ProcessError(str(error)) from None
        steps_back = self.state.steps_back
        self._take_up()
        self.state.steps_back = steps_back + 1
        self._checkpoint()
        lower = STEP_BACK**self.state.steps_back
        progress.say(f"{error} Back to step {self.state.step}, with learning rates times {lower:g}.")
        progress.go_to(self.state.step)

    def _stop(self) -> None:
        """Save the run, and end it because of a signal."""
        self._checkpoint()
        self.processes.gather(b"")  # no process ends before the first has saved
        number = self.stopping.signal or 15
        raise Stopped(number, f"stopped at step {self.state.step} of {self.num_steps}. {self.keeper.how_to_go_on}")

    def _terms(self, batch: tuple[Any, Tensor], share: float) -> Terms:
        """The objective of one step, in the recipe's precision."""
        inputs, targets = checked_pair(batch)
        examples = self.feed.train.dataset_size * self.likelihood.elements(targets)
        set_natural_rate(self.optimiser, 2 * examples * self.recipe.noise_lr)
        widths = generator(Purpose.WIDTHS, self.recipe.seed, self.state.step)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self._in_bfloat16()):
            scale = self._kappa(share) / examples
            step = Step(self.nested, inputs, targets, self.recipe, self.likelihood, scale, widths, self.teacher)
            return step_terms(step)

    def _validate_and_keep(self, means: dict[str, float]) -> dict[str, Any]:
        """Validate at the recipe's cuts, keep the weights unless others were clearly better; return the log's line."""
        state = self.state
        try:
            scores = self.validate()
        except NonFiniteError:
            raise diverged_in_validation(self.feed.validation, state.step) from None
        epoch = state.epoch + 1
        names = ("nll", "quality", "quality_error")
        nll, quality, error = (sum(getattr(at_cut, n) for at_cut in scores.values()) / len(scores) for n in names)
        if state.best_score is None or quality > state.best_score:
            state.best_score, state.best_epoch = quality, epoch
        kept = self.recipe.keep == "last" or quality + error >= state.best_score
        if kept:
            if self.processes.is_first:
                self.keeper.keep_best(self.nested, {"epoch": epoch, "validation_quality": quality})
            state.kept_epoch = epoch
        state.epoch, state.batch, state.sums = epoch, 0, {}
        now = time.monotonic()
        state.seconds, self._began = state.seconds + now - self._began, now
        share = state.step / self.num_steps
        return {
            "epoch": state.epoch,
            "step": state.step,
            **means,
            "lr": self.optimiser.param_groups[0]["largest_lr"] * self._lr_factor(share),
            "kappa": self._kappa(share),
            "validation": {str(cut): figures_of(at_cut) for cut, at_cut in scores.items()},
            "validation_nll": nll,
            "validation_quality": quality,
            "kept": kept,
            "expected_width": {name: float(o.expected_width().detach()) for name, o in self.nested.orders.items()},
            "figures": dict(self.figures(self.nested)),
            "seconds": round(state.seconds, 3),
        }

    def validate(self) -> dict[float, Scores]:
        """Scores on the validation data at each cut, with the mean weights."""
        if norms_with_statistics(self.nested):
            for cut in self._cuts:
                recalibrate(self.nested, self.feed.recalibration, cut, spread=self._is_spread)
        scores = evaluate(
            self.nested,
            self.feed.validation,
            cut=self._cuts,
            samples=0,
            likelihood=self.likelihood,
            seed=None,
            spread=self._is_spread,
        )
        return dict(zip(self._cuts, scores, strict=True))

    def _lr_factor(self, share: float) -> float:
        began = self.state.began / self.recipe.epochs
        return schedules.lr_factor(self.recipe, share, began) * STEP_BACK**self.state.steps_back

    def _kappa(self, share: float) -> float:
        return self.largest_kappa * schedules.kappa_factor(self.recipe, share)

    @property
    def _is_spread(self) -> bool:
        return self.processes.count > 1

    def _checkpoint(self) -> None:
        if self.processes.is_first and weights_gone_wrong(self.nested, self.state.step) is None:
            self.keeper.checkpoint(self.state, self.nested, self.optimiser)
        self._written = time.monotonic()

    def _stale(self) -> bool:
        best, patience = self.state.best_epoch, self.recipe.patience
        if patience is None or best is None or self.recipe.keep == "last":
            return False
        return self.state.epoch - max(best, self.state.began) >= patience

    def _in_bfloat16(self) -> bool:
        wanted = self.recipe.precision
        has_it = self.device.type == "cuda" and torch.cuda.is_bf16_supported()
        return wanted == "bfloat16" or (wanted == "auto" and has_it)


def _frozen(teacher: nn.Module) -> nn.Module:
    """A copy of a teacher in eval mode without gradients."""
    return deepcopy(teacher).eval().requires_grad_(False)
