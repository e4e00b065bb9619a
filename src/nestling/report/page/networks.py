"""The networks that a page can choose among: those of a run's curve, or those at the cuts of its recipe."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from nestling.prediction import Calibration
from nestling.reading import Cut, cut_names, full_cut
from nestling.report.page.measuring import Measured, Sample, measure
from nestling.report.page.metrics import SIZES, Metric, Size, quality_of
from nestling.report.page.shortfall import Shortfall, paired_error
from nestling.running import Cost, cost
from nestling.search import Curve, Row
from nestling.tables import percent
from nestling.training import Progress, Run

T = TypeVar("T")

UNDER, CUT = "--under ", "--cut "
"""How ``nestling extract`` is told which network to write."""
MOST_NETWORKS = 16
"""No page has more networks than this to choose among: those of a longer curve are thinned out."""


@dataclass(frozen=True)
class Network:
    """A network of a page: its name, its cut and the share of the blocks that is ``kept``, its costs and scores.

    ``taken_by`` are the words that make ``nestling extract`` write this network. ``scores`` are as in ``to_dict`` of
    ``Scores``; ``measured`` is None if nothing was computed for the page.
    """

    name: str
    cut: Cut
    kept: float
    cost: Cost
    taken_by: str
    scores: Mapping[str, Any] = field(default_factory=dict)
    measured: Measured | None = None


@dataclass(frozen=True)
class Choice:
    """Networks from the smallest to the largest, and the cost that they are chosen by.

    ``num_tried`` is the number of cuts that the search tried, 0 without a search.
    """

    networks: tuple[Network, ...]
    size: Size
    num_tried: int = 0

    @property
    def metric(self) -> Metric:
        """The score that says how good the networks are."""
        return quality_of(self.networks[-1].scores)

    def qualities(self) -> list[float | None]:
        """That score of each network."""
        return [self.metric.of(network.scores) for network in self.networks]

    @property
    def best(self) -> int | None:
        """The number of the network with the best quality, the smallest of equal ones; None without any scores."""
        sign = 1 if self.metric.higher_is_better else -1
        found = [(sign * value, -number) for number, value in enumerate(self.qualities()) if value is not None]
        return -max(found)[1] if found else None

    def shortfall(self, number: int) -> Shortfall | None:
        """How far a network is below the best one, if both were scored."""
        if self.best is None:
            return None
        best, own = self.networks[self.best], self.networks[number]
        most, value = self.metric.of(best.scores), self.metric.of(own.scores)
        if most is None or value is None:
            return None
        return Shortfall(self.metric, most, abs(most - value), *compared(best, own, self.metric))

    @property
    def first(self) -> int:
        """The smallest network that is good enough: the page opens with it."""
        shortfalls = (self.shortfall(number) for number in range(len(self.networks)))
        found = (number for number, own in enumerate(shortfalls) if own is not None and own.is_small)
        return next(found, len(self.networks) - 1)


def compared(best: Network, other: Network, metric: Metric) -> tuple[float | None, int]:
    """The standard error of the difference of two networks on the same examples, if it is known, and their number."""
    first, second = (None if one.measured is None else one.measured.known.right for one in (best, other))
    if first is None or second is None or metric.key != "accuracy":
        return None, 0
    return paired_error(first, second), len(first)


def networks_of(
    run: Run,
    curve: Curve | None,
    saved: Mapping[Cut, Mapping[str, Any]],
    sample: Sample | None,
    *,
    samples: int,
    quiet: bool,
) -> Choice:
    """The networks of a run, measured on the sample; without one they have the scores that the run's files hold."""
    size, unmeasured = _of_recipe(run, saved) if curve is None else _of_curve(run, curve)
    calibrations = {calibration.cut: calibration for calibration in run.calibrations}
    networks = list[Network]()
    with Progress(len(unmeasured), "report", step="network", shown=not quiet) as progress:
        for network in unmeasured:
            networks.append(_finished(run, network, sample, calibrations.get(network.cut), samples))
            progress.step()
            progress.say(f"{network.name} measured ({len(networks)} of {len(unmeasured)})")
    ordered = sorted(networks, key=lambda network: (size.of(network.cost) or 0.0, network.kept))
    return Choice(tuple(ordered), size, 0 if curve is None else len(curve.tried))


def _of_recipe(run: Run, saved: Mapping[Cut, Mapping[str, Any]]) -> tuple[Size, list[Network]]:
    whole = full_cut(run.nested.groups)
    fractions = [*sorted(set(run.recipe.cuts)), *([] if 1.0 in run.recipe.cuts else [1.0])]
    named = cut_names(run.nested.groups, thinned(fractions))
    networks = []
    for cut, name in named.items():
        fraction = name.rpartition(", ")[2]
        words, scores = f"{CUT}{fraction}", saved.get(cut, {})
        networks.append(Network(f"cut {name}", cut, cut.share_of(whole), cost(run.nested, cut), words, scores))
    return SIZES[0], networks


def _of_curve(run: Run, curve: Curve) -> tuple[Size, list[Network]]:
    """Each network of a curve that is the best under some budget, and the whole one."""
    key = {"latency": "latency_ms", "own": "cost"}.get(curve.cost, curve.cost)
    rows = list(dict.fromkeys(curve.row_under(**{key: getattr(row, key)}) for row in curve.rows))
    chosen = thinned(sorted(rows, key=lambda row: row.cost))
    whole = full_cut(run.nested.groups)
    networks = [_of_row(row, f"{UNDER}{key}={_exact(getattr(row, key))}", whole) for row in chosen]
    if all(network.cut != whole for network in networks):
        row = max(curve.rows, key=lambda row: row.cut.num_blocks)
        networks.append(_of_row(row, f"{CUT}1", whole))
    return next((size for size in SIZES if size.key == key), SIZES[0]), networks


def _of_row(row: Row, words: str, whole: Cut) -> Network:
    price = Cost(row.params, row.macs, row.bytes, row.latency_ms)
    share = row.cut.share_of(whole)
    key = "accuracy" if 0 <= row.score <= 1 else "score"
    scores = {key: row.score, "nll": -row.log_likelihood}
    return Network(f"{percent(share)} of blocks", row.cut, share, price, words, scores)


def _finished(
    run: Run, network: Network, sample: Sample | None, calibration: Calibration | None, samples: int
) -> Network:
    """The network with its latency, if the search did not measure it, and what is measured on the sample."""
    price, scores, measured = network.cost, network.scores, None
    if price.latency_ms is None:
        price = Cost(price.params, price.macs, price.bytes, cost(run.nested, network.cut, latency=True).latency_ms)
    if sample is not None:
        options: dict[str, Any] = {"likelihood": run.likelihood, "samples": samples, "calibration": calibration}
        measured = measure(run.nested, network.cut, sample, **options)
        scores = measured.scores.to_dict()
    return Network(network.name, network.cut, network.kept, price, network.taken_by, scores, measured)


def thinned(items: Sequence[T]) -> list[T]:
    """At most so many of the items, evenly spread, with both ends."""
    if len(items) <= MOST_NETWORKS:
        return list(items)
    last = len(items) - 1
    places = dict.fromkeys(round(number * last / (MOST_NETWORKS - 1)) for number in range(MOST_NETWORKS))
    return [items[place] for place in places]


def _exact(value: float) -> str:
    """A number as text that reads back as the same number."""
    return str(int(value)) if value == int(value) else repr(float(value))
