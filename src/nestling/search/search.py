"""``search``: from a trained network to the curve of the best network for every budget."""

import json
from collections.abc import Iterable, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, cast

from nestling.arguments import count, inner_probability
from nestling.errors import ArgumentError, NestlingError, RangeError, RunError
from nestling.prediction import Likelihood, check_repeatable, evaluate, likelihood_for
from nestling.processes import ALONE, Processes, current
from nestling.reading import Cut, make_cut
from nestling.running import Nested, Read, check_nested, norms_with_statistics, read_by, recalibrate
from nestling.search.costs import Costs, UserCost
from nestling.search.curve import Curve, Row, Tried, front
from nestling.search.options import Searching, StrategyName
from nestling.search.quality import Judge, Quality
from nestling.search.standing import Standing
from nestling.search.strategies import STRATEGIES, Space
from nestling.storage import packed, read_json, weights_digest, write_json
from nestling.training import Progress

PROGRESS_FILE = "search.json"
"""The scores so far, in the folder of a search: a search that was stopped does not score a cut again."""


def search(
    nested: Nested,
    loader: Iterable[Any],
    cost: str | UserCost = "macs",
    *,
    strategy: str = "dynamic",
    likelihood: str | Likelihood | None = None,
    recalibration: Iterable[Any] | None = None,
    num_points: int = 24,
    num_kept: int = 3,
    num_candidates: int = 10,
    window: float = 0.125,
    num_trajectories: int = 4,
    seed: int = 0,
    out: str | PathLike[str] | None = None,
    spread: bool = False,
    batch: Read | None = None,
    quiet: bool = True,
) -> Curve:
    """Find the best network for every budget at once, by the scores of its cuts on a loader.

    There are five strategies:

    - ``"dynamic"``: losses of single groups, a dynamic programme over all budgets, then trades between groups.
    - ``"beam"``: FN3's, with ``num_kept`` trajectories, ``num_candidates`` cuts per trajectory and step, and a sliding
      ``window``.
    - ``"greedy"``: one block after another, always the one that costs the least quality.
    - ``"uniform"``: the same share of every group, at every size.
    - ``"random"``: blocks given up in random order, ``num_trajectories`` times; the papers compare with it.

    Args:
        nested: A trained nested network.
        loader: Pairs of inputs and targets used neither in training nor in tests, such as the validation split.
        cost: ``"macs"``, ``"params"``, ``"bytes"`` or ``"latency"`` (measured here), or a function of (nested, cut).
        strategy: One of the five above, or one that you registered.
        likelihood: By default the one that the network was trained with.
        recalibration: Batches for the statistics of norms of each network on the curve; None for the loader itself.
        num_points: The curve has at most so many networks.
        num_kept: For ``"beam"``: trajectories that go on after each step.
        num_candidates: For ``"beam"``: cuts per trajectory and step.
        window: For ``"beam"``: the share of its blocks that each group gives up before any group gives up more.
        num_trajectories: For ``"random"``: how many.
        seed: Determines random choices.
        out: A folder for the scores so far; the same call made again goes on from there.
        spread: Share the cuts among the processes of torch.distributed, each of which must make the call.
        batch: A function that makes pairs of the batches of both loaders, as in ``evaluate``.
        quiet: False shows the progress.

    Returns:
        The curve of the best networks, each with its norms recalibrated, scored again, and with its costs.

    Raises:
        ArgumentError: If a name or a number can't be used, or the loader can't be read more than once.
        RunError: If ``out`` can't be written, or holds scores of another search.

    Examples:
        >>> curve = nl.search(nested, loader, cost="params", strategy="uniform", num_points=4)
        >>> len(curve.rows) <= 5, curve.rows[0].params < curve.rows[-1].params
        (True, True)
    """
    strategy_name = cast(StrategyName, strategy)  # or one that was registered from outside
    options = Searching(strategy_name, num_points, num_kept, num_candidates, window, num_trajectories, seed)
    _check(nested, options)
    check_repeatable(loader, "loader", 2)
    loader, recalibration = read_by(loader, batch), read_by(recalibration, batch)
    likelihood = likelihood_for(nested, likelihood)
    processes = current() if spread else ALONE
    costs = Costs(nested, cost)
    space = Space(nested.groups, costs)
    judge = Judge(nested, loader, likelihood, processes=processes)
    about = {"weights": weights_digest(packed(nested)[0]), "data": judge.fingerprint, "likelihood": likelihood.name}
    most = STRATEGIES[strategy].most(space, options)
    with Progress(most, "search", step="cut", at_most=True, shown=not quiet) as progress:
        standing = Standing(space, costs.name, likelihood, most, progress)
        scores = _ScoredCuts(judge, about, None if out is None else Path(out), standing, processes)
        STRATEGIES[strategy].run(space, scores, options)
        scores.keep()
    tried = space.tried(scores.used)
    best = [row.cut for row in _thinned(front(tried), num_points)]
    delivered = dict.fromkeys((*best, space.full))  # the whole network, for comparison
    rows = list[Row]()
    with Progress(len(delivered), "curve", step="network", shown=not quiet) as progress:
        for cut in delivered:
            rows.append(_row(nested, cut, costs, loader, recalibration, likelihood, spread))
            progress.step()
    rows.sort(key=lambda row: row.cost)
    return Curve(tuple(rows), tuple(tried), costs.name, strategy, scores.num_used, about["weights"])


_AT_ONCE = 64
"""The number of cuts after which the scores are written to disk."""


class _ScoredCuts:
    """Scores cuts, each once, and saves the scores so that a search that was stopped can go on."""

    def __init__(
        self, judge: Judge, about: dict[str, Any], out: Path | None, standing: Standing, processes: Processes
    ) -> None:
        self.used: dict[Cut, Quality] = {}
        self.num_used = 0
        self._judge, self._about, self._standing, self._processes = judge, about, standing, processes
        self._path = None if out is None else out / PROGRESS_FILE
        self._groups = judge.nested.groups
        self._names = [group.name for group in self._groups.free]
        self._scored: dict[Cut, Quality] = self._read()

    def __call__(self, cuts: Sequence[Cut]) -> list[Quality]:
        """The quality of each cut, scored now unless it was before."""
        new = sorted({cut for cut in cuts if cut not in self._scored}, key=lambda cut: cut.widths)
        for start in range(0, len(new), _AT_ONCE):
            chunk = new[start : start + _AT_ONCE]
            self._scored.update(zip(chunk, self._judge(chunk), strict=True))
            self.keep()
        for cut in cuts:
            if cut not in self.used:
                self.num_used += 1
                self.used[cut] = self._scored[cut]
                self._standing.note(cut, self._scored[cut])
        return [self._scored[cut] for cut in cuts]

    def keep(self) -> None:
        """Save the scores."""
        if self._path is not None and self._processes.is_first:
            rows = [[[width for _, width in cut.widths], *quality] for cut, quality in self._scored.items()]
            write_json(self._path, {**self._about, "groups": self._names, "scored": rows})

    def _read(self) -> dict[Cut, Quality]:
        """The scores of an earlier search of the same network and data, as the first process reads them."""
        content = self._processes.from_first(lambda: json.dumps(self._saved()).encode())
        return dict(map(self._entry, json.loads(content)))

    def _saved(self) -> list[Any]:
        if self._path is None or not self._path.exists():
            return []
        saved = read_json(self._path)
        if any(saved.get(key) != value for key, value in (*self._about.items(), ("groups", self._names))):
            return []
        try:
            dict(map(self._entry, saved["scored"]))
        except (NestlingError, KeyError, TypeError, ValueError) as error:
            raise RunError(self._path, f"has no scores ({error!r})", "Remove it, and the search starts over.") from None
        return list(saved["scored"])

    def _entry(self, row: Sequence[Any]) -> tuple[Cut, Quality]:
        """A cut and its quality, as they were saved."""
        widths, score, log_likelihood = row
        cut = make_cut(self._groups, dict(zip(self._names, widths, strict=True)))
        return cut, Quality(float(score), float(log_likelihood))


def _row(
    nested: Nested,
    cut: Cut,
    costs: Costs,
    loader: Iterable[Any],
    recalibration: Iterable[Any] | None,
    likelihood: Likelihood,
    spread: bool,
) -> Row:
    """The row of one network of the curve, recalibrated and scored as it would be delivered."""
    if norms_with_statistics(nested):
        recalibrate(nested, loader if recalibration is None else recalibration, cut, spread=spread)
    scores = evaluate(nested, loader, cut=cut, samples=0, likelihood=likelihood, seed=None, spread=spread)
    exact, search_cost = costs.exact(cut)
    sizes = (exact.params, exact.macs, exact.bytes)
    return Row(cut, *sizes, exact.latency_ms, search_cost, scores.quality, -scores.nll)


def _thinned(best: list[Tried], most: int) -> list[Tried]:
    """At most ``most`` rows of a front, evenly distributed over its costs, with both ends."""
    if len(best) <= most:
        return best
    low, high = best[0].cost, best[-1].cost
    wanted = [low + (high - low) * number / (most - 1) for number in range(most)]
    distances = [[abs(row.cost - cost) for row in best] for cost in wanted]
    return [best[number] for number in sorted({to_each.index(min(to_each)) for to_each in distances})]


def _check(nested: Nested, options: Searching) -> None:
    check_nested(nested)
    if not nested.groups.free:
        raise RangeError("nested", "a network without a group to cut", "one with some", "Print nested.groups.")
    if options.strategy not in STRATEGIES:
        raise ArgumentError(
            "strategy", repr(options.strategy), f"one of {', '.join(STRATEGIES)}", "Check its spelling."
        )
    for name in ("num_points", "num_kept", "num_candidates", "num_trajectories"):
        count(name, getattr(options, name), "a whole number of at least 1")
    if options.window != 1:
        inner_probability("window", options.window)
