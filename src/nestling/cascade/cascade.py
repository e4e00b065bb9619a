"""``cascade``: fits the thresholds of a cascade of cuts on validation data."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, get_args

import numpy as np
import torch

from nestling.arguments import finite_number
from nestling.cascade.comparison import best_points
from nestling.cascade.goals import Fitted, Goal, read_goal
from nestling.cascade.options import ScoreName
from nestling.cascade.outcomes import ANSWERS_ALL, Integers, Outcomes, with_dont_know
from nestling.cascade.record import Cascade
from nestling.cascade.stages import Judged, Stage, check_classes, judged, outcomes_by_score, outputs_at, predicted
from nestling.errors import ArgumentError, RangeError
from nestling.prediction import By, Calibration, CutLike, Likelihood, check_repeatable, fit_temperature, likelihood_for
from nestling.reading import Cut, cut_names, make_cut
from nestling.running import Nested, Read, check_nested, cost, read_by
from nestling.seeding import Purpose, mixed


def cascade(
    nested: Nested,
    cuts: Sequence[CutLike],
    batches: Iterable[Any],
    *,
    goal: str | Goal = "loss=0.002",
    score: str = "auto",
    samples: int = 6,
    likelihood: str | Likelihood | None = None,
    delta: float = 0.1,
    dont_know: float = 0.0,
    by: By = "draws",
    seed: int = 0,
    batch: Read | None = None,
) -> Cascade:
    """Fit a cascade: the narrowest cut answers first, and inputs that it is too unsure of go on to the next.

    Args:
        nested: A trained network that tells classes apart.
        cuts: The stages. They run from the cheapest to the dearest; one that does not help is left out.
        batches: Pairs of inputs and labels (B,) that training has not seen, read once per cut.
        goal: ``"loss=0.002"``, at most 0.2 points less accurate than the widest cut; ``"macs=0.5x"`` or ``"macs=4e6"``
            on average; or ``"early_errors=0.02"``: of what is answered before the last stage at most 2 % is wrong,
            which is guaranteed for finitely many examples (docs/cascade.md says how).
        score: ``"entropy"``, ``"mutual_information"`` (where the network draws) or ``"max_probability"``; ``"auto"``
            takes the one that does best on the batches.
        samples: Weight samples to average over, as in ``nl.predict``; 0 for the mean weights.
        likelihood: As in ``nl.predict``.
        delta: For ``early_errors``: the probability with which the guarantee may fail.
        dont_know: The share of the examples, the least sure at the last stage, that get no answer.
        by: As in ``nl.predict``.
        seed: Makes weight samples, and the split of the examples for ``early_errors``, reproducible.
        batch: A function that makes pairs of the batches, as in ``nl.evaluate``.

    Returns:
        A ``Cascade``, which predicts, evaluates, compares itself with its cuts, and is saved.

    Raises:
        BudgetError: If no cascade is as cheap as the goal asks.
        RangeError: If the examples are too few to guarantee the goal.
        ArgumentError: If a name, a number, the cuts or the batches can't be used.

    Examples:
        >>> fitted = nl.cascade(nested, (0.25, 1.0), data.batches("validation", 500), goal="loss=0.01", samples=0)
        >>> fitted.goal, len(fitted.stages), tuple(fitted.predict(images).labels.shape)
        ('loss=0.01', 2, (100,))
    """
    wanted = goal if isinstance(goal, Goal) else read_goal(goal, delta)
    chosen_likelihood = likelihood_for(nested, likelihood)
    _check(nested, cuts, score, dont_know)
    check_classes(chosen_likelihood)
    loader = read_by(batches, batch)
    check_repeatable(loader, "batches", len(cuts))
    options: dict[str, Any] = {"samples": samples, "likelihood": chosen_likelihood, "seed": seed, "by": by}
    stages, judgements, parts = list[Stage](), list[Judged](), list[Integers]()
    widest, draws = None, False
    for cut, name, macs in reversed(_cheapest_first(nested, cuts)):
        outputs, targets = outputs_at(nested, cut, loader, **options)
        parts, draws = _parts(wanted, len(targets), seed), len(outputs) > 1
        used = torch.from_numpy(parts[0])
        temperature = fit_temperature(chosen_likelihood, outputs[:, used], targets[used])
        prediction = predicted(chosen_likelihood, outputs, temperature)
        widest = widest or prediction
        judgements.insert(0, judged(prediction, targets, widest))
        calibration = Calibration(temperature, {}, len(used), chosen_likelihood.name, samples, cut)
        stages.insert(0, Stage(name, macs, calibration, ANSWERS_ALL))
    by_score = outcomes_by_score(judgements, [stage.macs for stage in stages])
    chosen, fitted = _fitted({name: by_score[name] for name in _candidates(score, draws)}, wanted, parts)
    choosing = by_score[chosen].of(parts[0])
    thresholds = with_dont_know(choosing, fitted.thresholds, dont_know)
    return Cascade(
        nested=nested,
        stages=tuple(replace(stage, threshold=float(value)) for stage, value in zip(stages, thresholds, strict=True)),
        score=chosen,
        goal=str(wanted),
        likelihood=chosen_likelihood,
        samples=samples,
        by=by,
        num_examples=choosing.num_examples,
        points=best_points(choosing),
        guarantee=fitted.guarantee,
    )


def _cheapest_first(nested: Nested, cuts: Sequence[CutLike]) -> list[tuple[Cut, str, int]]:
    """The cuts with their names and multiply-adds, in the order of these."""
    names = cut_names(nested.groups, cuts)
    macs = {cut: cost(nested, cut).macs for cut in names}
    ordered = sorted((make_cut(nested.groups, cut) for cut in cuts), key=lambda cut: macs[cut])
    return [(cut, names[cut], macs[cut]) for cut in ordered]


def _parts(goal: Goal, num_examples: int, seed: int) -> list[Integers]:
    """The examples that choose, and those that test: two halves at random if the goal needs a test, else all twice."""
    if not goal.needs_test:
        return [np.arange(num_examples)] * 2
    order = np.random.default_rng(mixed(Purpose.SPLIT, seed)).permutation(num_examples)
    return [np.sort(order[: num_examples // 2]), np.sort(order[num_examples // 2 :])]


def _candidates(score: str, draws: bool) -> list[str]:
    """The scores to choose from: that between weight samples says nothing where there is one."""
    names = [name for name in get_args(ScoreName)[1:] if draws or name != _OF_DRAWS]
    if score == _OF_DRAWS and not draws:
        needed = "entropy or max_probability for a network that draws no weights"
        raise ArgumentError("score", score, needed, "Nest with Bayesian weights and pass samples=6.")
    return names if score == "auto" else [score]


def _fitted(outcomes: Mapping[str, Outcomes], goal: Goal, parts: Sequence[Integers]) -> tuple[str, Fitted]:
    """The score that does best by the examples that choose, and what the goal leads to with it."""
    merits = {}
    for name, by_score in outcomes.items():
        choosing = by_score.of(parts[0])
        with suppress(RangeError):  # a bound that can't be proven with this score
            merits[name] = goal.merit(choosing, goal.fit(choosing, choosing).thresholds)
    best = max(merits, key=lambda name: merits[name], default=next(iter(outcomes)))
    choosing, testing = (outcomes[best].of(part) for part in parts)
    return best, goal.fit(choosing, testing)


def _check(nested: object, cuts: object, score: str, dont_know: float) -> None:
    check_nested(nested)
    if not isinstance(cuts, Sequence) or isinstance(cuts, str) or not cuts:
        raise ArgumentError("cuts", repr(cuts), "a list of cuts, at least one", "Pass (0.25, 0.5, 1.0), for example.")
    if score not in get_args(ScoreName):
        raise ArgumentError("score", repr(score), f"one of {', '.join(get_args(ScoreName))}", "Check its spelling.")
    if not 0 <= finite_number("dont_know", dont_know) < 1:
        raise RangeError("dont_know", dont_know, "a share of at least 0 and below 1", "0.05 is one in twenty.")


_OF_DRAWS = "mutual_information"
