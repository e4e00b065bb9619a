"""``search``: from a trained network to the curve of the best network for every budget."""

import json
from collections.abc import Iterable, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, cast

from nestling.arguments import count, inner_probability
from nestling.errors import ArgumentError, DtypeError, RangeError
from nestling.prediction import Likelihood, check_repeatable, evaluate, likelihood_named
from nestling.processes import ALONE, Processes, current
from nestling.reading import Cut
from nestling.running import Nested, norms_with_statistics, recalibrate
from nestling.search.costs import Costs, OwnCost
from nestling.search.curve import Curve, Row, Tried, front
from nestling.search.options import Searching, StrategyName
from nestling.search.quality import Judge, Quality
from nestling.search.strategies import STRATEGIES, Space
from nestling.storage import packed, read_json, weights_digest, write_json
from nestling.training import Progress

PROGRESS_FILE = "search.json"
"""What was scored so far, in the folder of a search: one that was stopped scores none of it again."""


def search(
    nested: Nested,
    loader: Iterable[Any],
    cost: str | OwnCost = "macs",
    *,
    strategy: str = "dynamic",
    likelihood: str | Likelihood = "categorical",
    recalibration: Iterable[Any] | None = None,
    num_points: int = 24,
    num_kept: int = 3,
    num_candidates: int = 10,
    window: float = 0.125,
    num_trajectories: int = 4,
    seed: int = 0,
    out: str | PathLike[str] | None = None,
    spread: bool = False,
    quiet: bool = True,
) -> Curve:
    """Find the best network for every budget at once, by what its cuts score on a loader of (inputs, targets).

    The loader should be data that training has not seen and tests will not use, such as its validation split. ``cost``
    is parameters, multiply-adds, bytes or measured latency, or a function of (nested, cut). Strategies: ``"dynamic"``
    (losses of single groups, a dynamic programme over all budgets, trades), ``"beam"`` (FN3's, with ``num_kept``
    trajectories, ``num_candidates`` cuts each a step, and a sliding ``window``), ``"greedy"``, ``"uniform"``, and
    ``"random"`` (``num_trajectories`` of them). The curve has up to ``num_points`` networks, each with its norms
    recalibrated on ``recalibration`` (default: the loader), its costs as ``extract`` gives them, and scored again.

    With ``out`` what was scored is kept in a folder, and the same search given again goes on from there.
    ``spread`` shares the cuts among the processes of torch.distributed, each of which must make the call.
    """
    chosen = cast(StrategyName, strategy)  # or one that was registered from outside
    options = Searching(chosen, num_points, num_kept, num_candidates, window, num_trajectories, seed)
    _check(nested, options)
    check_repeatable(loader, "loader", 2)
    model = likelihood_named(likelihood)
    processes = current() if spread else ALONE
    costs = Costs(nested, cost)
    space = Space(nested.groups, costs)
    judge = Judge(nested, loader, model, processes=processes)
    about = {"weights": weights_digest(packed(nested)[0]), "data": judge.fingerprint, "likelihood": model.name}
    with Progress(STRATEGIES[strategy].most(space, options), "search", shown=not quiet) as bar:
        scores = _Scores(judge, about, None if out is None else Path(out), bar, processes)
        STRATEGIES[strategy].run(space, scores, options)
        scores.keep()
    tried = space.tried(scores.asked)
    best = [own.cut for own in _thinned(front(tried), num_points)]
    delivered = dict.fromkeys((*best, space.full))  # the whole network is there to compare with
    rows = [_row(nested, cut, costs, loader, recalibration, model, spread) for cut in delivered]
    rows.sort(key=lambda row: row.cost)
    return Curve(tuple(rows), tuple(tried), costs.name, strategy, scores.num_asked)


_AT_ONCE = 64
"""After so many cuts what is known is written down."""


class _Scores:
    """Scores cuts, each once, and keeps what it found where a search that is stopped finds it again."""

    def __init__(
        self, judge: Judge, about: dict[str, Any], out: Path | None, bar: Progress, processes: Processes
    ) -> None:
        self.asked: dict[Cut, Quality] = {}
        self.num_asked = 0
        self._judge, self._about, self._bar, self._processes = judge, about, bar, processes
        self._path = None if out is None else out / PROGRESS_FILE
        self._names = [group.name for group in judge.nested.groups.free]
        self._known: dict[Cut, Quality] = self._read()

    def __call__(self, cuts: Sequence[Cut]) -> list[Quality]:
        """The quality of each cut, scored now if it was not before."""
        new = sorted({cut for cut in cuts if cut not in self._known}, key=lambda cut: cut.widths)
        for start in range(0, len(new), _AT_ONCE):
            some = new[start : start + _AT_ONCE]
            self._known.update(zip(some, self._judge(some), strict=True))
            self.keep()
        for cut in cuts:
            if cut not in self.asked:
                self.num_asked += 1
                self.asked[cut] = self._known[cut]
                self._bar.step(best=f"{self._known[cut].score:.4f}")
        return [self._known[cut] for cut in cuts]

    def keep(self) -> None:
        """Write down what is known."""
        if self._path is not None and self._processes.is_first:
            rows = [[[width for _, width in cut.widths], *own] for cut, own in self._known.items()]
            write_json(self._path, {**self._about, "groups": self._names, "scored": rows})

    def _read(self) -> dict[Cut, Quality]:
        """What an earlier search of the same network and data scored, as the first process finds it."""
        content = self._processes.from_first(lambda: json.dumps(self._found()).encode())
        return {
            Cut(tuple(zip(self._names, widths, strict=True))): Quality(score, log_likelihood)
            for widths, score, log_likelihood in json.loads(content)
        }

    def _found(self) -> list[Any]:
        if self._path is None or not self._path.exists():
            return []
        saved = read_json(self._path)
        same = all(saved.get(key) == value for key, value in self._about.items()) and saved.get("groups") == self._names
        return list(saved["scored"]) if same else []


def _row(
    nested: Nested,
    cut: Cut,
    costs: Costs,
    loader: Iterable[Any],
    recalibration: Iterable[Any] | None,
    model: Likelihood,
    spread: bool,
) -> Row:
    """A network of the curve as it would be delivered."""
    if norms_with_statistics(nested):
        recalibrate(nested, loader if recalibration is None else recalibration, cut, spread=spread)
    scores = evaluate(nested, loader, cut=cut, samples=0, likelihood=model, seed=None, spread=spread)
    found, own = costs.exact(cut)
    return Row(cut, found.params, found.macs, found.bytes, found.latency_ms, own, scores.quality, -scores.nll)


def _thinned(best: list[Tried], most: int) -> list[Tried]:
    """No more than so many of a front, spread evenly over its costs, with both ends."""
    if len(best) <= most:
        return best
    low, high = best[0].cost, best[-1].cost
    wanted = [low + (high - low) * number / (most - 1) for number in range(most)]
    distances = [[abs(own.cost - at) for own in best] for at in wanted]
    return [best[number] for number in sorted({own.index(min(own)) for own in distances})]


def _check(nested: object, options: Searching) -> None:
    if not isinstance(nested, Nested):
        raise DtypeError("nested", f"a {type(nested).__name__}", "what nest gives", "Call nl.nest(module, example).")
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
