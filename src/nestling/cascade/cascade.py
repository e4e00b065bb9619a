"""``cascade``: fits the thresholds of a cascade of cuts on validation data."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, get_args

from nestling.arguments import finite_number, positive_number
from nestling.cascade.choosing import chosen
from nestling.cascade.comparison import best_points
from nestling.cascade.goals import Goal, read_goal
from nestling.cascade.options import ScoreName
from nestling.cascade.record import Cascade
from nestling.cascade.stages import Stage, check_classes, outputs_at
from nestling.errors import ArgumentError, RangeError
from nestling.prediction import By, Calibration, CutLike, Likelihood, check_repeatable, coverages_of, likelihood_for
from nestling.reading import Cut, cut_names, make_cut
from nestling.running import Nested, Read, batch_of, check_nested, cost, latencies_ms, read_by

Times = Mapping[str, float] | Sequence[float]
"""Milliseconds of cuts, by their names or in their order."""


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
    coverage: float | Sequence[float] = 0.9,
    times: Times | None = None,
    by: By = "draws",
    seed: int = 0,
    batch: Read | None = None,
) -> Cascade:
    """Fit a cascade: the narrowest cut answers first, and inputs that it is too unsure of go on to the next.

    Args:
        nested: A trained network that tells classes apart.
        cuts: The stages. They run from the cheapest to the dearest; one that does not help is left out.
        batches: Pairs of inputs and labels (B,) that training has not seen, read once per cut.
        goal: ``"loss=0.002"``, at most 0.2 points less accurate than the widest cut; ``"macs=0.5x"``, ``"macs=4e6"``,
            ``"latency_ms=0.5x"`` or ``"latency_ms=2"`` on average; or ``"early_errors=0.02"``: of what is answered
            before the last stage at most 2 % is wrong, which is guaranteed for finitely many examples (docs/cascade.md
            says how).
        score: ``"entropy"``, ``"mutual_information"`` (where the network draws) or ``"max_probability"``; ``"auto"``
            takes the one that does best on the batches.
        samples: Weight samples to average over, as in ``nl.predict``; 0 for the mean weights.
        likelihood: As in ``nl.predict``.
        delta: For ``early_errors``: the probability with which the guarantee may fail.
        dont_know: The share of the examples, the least sure at the last stage, that get no answer.
        coverage: The coverages of the conformal sets of the cascade's answers: see docs/cascade.md.
        times: Milliseconds of each cut for one example, by its name, as ``nl.export(...).widths`` has them, or in the
            order of ``cuts``. They are then what is saved, except for a goal in multiply-adds. For a goal in
            milliseconds they are measured here, in torch, if they are left out.
        by: As in ``nl.predict``.
        seed: Makes weight samples, and the split of the examples for ``early_errors``, reproducible.
        batch: A function that makes pairs of the batches, as in ``nl.evaluate``.

    Returns:
        A ``Cascade``, which predicts, evaluates, compares itself with its cuts, and is saved.

    Raises:
        BudgetError: If no cascade is as cheap as the goal asks.
        RangeError: If the examples are too few to guarantee the goal or the coverage.
        ArgumentError: If a name, a number, the cuts or the batches can't be used.

    Examples:
        >>> fitted = nl.cascade(nested, (0.25, 1.0), data.batches("validation", 500), goal="loss=0.01", samples=0)
        >>> fitted.goal, len(fitted.stages), tuple(fitted.predict(images).labels.shape)
        ('loss=0.01', 2, (100,))
    """
    wanted = goal if isinstance(goal, Goal) else read_goal(goal, delta)
    likely = likelihood_for(nested, likelihood)
    coverages = coverages_of(coverage)
    _check(nested, cuts, score, dont_know)
    check_classes(likely)
    loader = read_by(batches, batch)
    check_repeatable(loader, "batches", len(cuts))
    options: dict[str, Any] = {"samples": samples, "likelihood": likely, "seed": seed, "by": by}
    stages = _cheapest_first(nested, cuts)
    own_times = _times(nested, stages, cuts, times, needed=wanted.cost == "latency_ms")
    macs = [macs for _, _, macs in stages]
    choice = chosen(
        (outputs_at(nested, cut, loader, **options) for cut, _, _ in reversed(stages)),
        macs if wanted.cost == "macs" or own_times is None else own_times,
        wanted,
        likelihood=likely,
        score=score,
        dont_know=dont_know,
        coverages=coverages,
        seed=seed,
    )
    num = choice.outcomes.num_examples
    ms_of: Sequence[float | None] = own_times or [None] * len(stages)
    made = tuple(
        Stage(name, macs, Calibration(temperature, {}, num, likely.name, samples, cut), float(threshold), ms)
        for (cut, name, macs), temperature, threshold, ms in zip(
            stages, choice.temperatures, choice.thresholds, ms_of, strict=True
        )
    )
    return Cascade(
        nested=nested,
        stages=made,
        score=choice.score,
        goal=str(wanted),
        likelihood=likely,
        samples=samples,
        by=by,
        num_examples=num,
        points=best_points(choice.outcomes, made),
        guarantee=choice.guarantee,
        set_thresholds=choice.set_thresholds,
    )


def _cheapest_first(nested: Nested, cuts: Sequence[CutLike]) -> list[tuple[Cut, str, int]]:
    """The cuts with their names and multiply-adds, in the order of these."""
    names = cut_names(nested.groups, cuts)
    macs = {cut: cost(nested, cut).macs for cut in names}
    ordered = sorted((make_cut(nested.groups, cut) for cut in cuts), key=lambda cut: macs[cut])
    return [(cut, names[cut], macs[cut]) for cut in ordered]


def _times(
    nested: Nested,
    stages: Sequence[tuple[Cut, str, int]],
    cuts: Sequence[CutLike],
    given: Times | None,
    *,
    needed: bool,
) -> list[float] | None:
    """The milliseconds of each stage: those that are given, or measured in torch if they are needed."""
    if given is None:
        if not needed:
            return None
        return latencies_ms([nested.extracted(cut) for cut, _, _ in stages], batch_of(*nested.example, 1))
    if not isinstance(given, Mapping):
        if len(given) != len(cuts):
            raise ArgumentError("times", f"{len(given)} numbers", f"{len(cuts)}, one per cut", "Measure every cut.")
        named = cut_names(nested.groups, cuts)
        given = {named[make_cut(nested.groups, cut)]: time for cut, time in zip(cuts, given, strict=True)}
    missing = [name for _, name, _ in stages if name not in given]
    if missing:
        known = ", ".join(given) or "none"
        raise ArgumentError("times", known, f"the milliseconds of {', '.join(missing)} too", "Measure every cut.")
    return [positive_number("times", given[name]) for _, name, _ in stages]


def _check(nested: object, cuts: object, score: str, dont_know: float) -> None:
    check_nested(nested)
    if not isinstance(cuts, Sequence) or isinstance(cuts, str) or not cuts:
        raise ArgumentError("cuts", repr(cuts), "a list of cuts, at least one", "Pass (0.25, 0.5, 1.0), for example.")
    if score not in get_args(ScoreName):
        raise ArgumentError("score", repr(score), f"one of {', '.join(get_args(ScoreName))}", "Check its spelling.")
    if not 0 <= finite_number("dont_know", dont_know) < 1:
        raise RangeError("dont_know", dont_know, "a share of at least 0 and below 1", "0.05 is one in twenty.")
