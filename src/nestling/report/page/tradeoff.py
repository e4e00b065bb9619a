"""The section on size: figures of the chosen network, curves of quality over cost, and the layers that it keeps."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nestling.markup import Html, element, html, html_table
from nestling.report.page.axes import finite, linear_axis, log_axis
from nestling.report.page.drawing import DASHES, MARKERS, Frame, bounds, chosen, marker, path, picture
from nestling.report.page.layers import Layer, layers_figure
from nestling.report.page.metrics import AUPR, AUROC, ECE, NLL, QUALITIES, SIZES, Metric, Size
from nestling.report.page.networks import Choice, Network
from nestling.report.page.parts import empty, figure, following, legend, section, tile
from nestling.report.page.shortfall import rule
from nestling.running import Cost

LEVEL_OF_A_GUESS = 0.5
"""The AUROC of a guess."""
HALF = 0.5
"""The share of the whole network's cost at which the answer in short also gives the quality."""
MOST_SERIES = len(MARKERS)
"""No picture has more lines: there are so many ways to draw one that can be told apart without colour."""


@dataclass(frozen=True)
class OtherNetworks:
    """Other networks on the axes of a page: those of a pruning, of a cascade, or trained alone; one or more of them."""

    label: str
    points: Sequence[tuple[Cost, Mapping[str, Any]]]


def tiles(choice: Choice) -> list[tuple[str, str, str, list[tuple[str, str]]]]:
    """Key, name and explanation of each figure of the chosen network, and per network its value and a remark."""
    whole = choice.networks[-1]
    figures = []
    for metric in metrics_of(choice):
        measured = [network.scores for network in choice.networks]
        values = [(metric.written(metric.of(scores)), metric.between(scores)) for scores in measured]
        figures.append((metric.key, metric.name, metric.about, values))
    for size in SIZES:
        most = size.of(whole.cost) or 0.0
        values = []
        for network in choice.networks:
            value = size.of(network.cost)
            share = f"{value / most:.0%} of whole" if value is not None and most else ""
            values.append((size.written(value), share))
        figures.append((size.key, size.name, "", values))
    return figures


def metrics_of(choice: Choice) -> list[Metric]:
    """The scores that some network has."""
    wanted = dict.fromkeys((choice.metric, ECE, AUROC, AUPR, NLL))
    return [metric for metric in wanted if any(metric.of(network.scores) is not None for network in choice.networks)]


def tradeoff_section(choice: Choice, layers: Sequence[Layer], others: Sequence[OtherNetworks], source: str) -> Html:
    """How small the network can be made."""
    shown = [(key, name, about, values) for key, name, about, values in tiles(choice) if key != "aupr"]
    boxes = [
        tile(
            name,
            following(key, values[choice.first][0]),
            following(f"{key}-remark", values[choice.first][1]),
            about=about,
        )
        for key, name, about, values in shown
    ]
    rows = [
        (layer.name, layer.kept[choice.first], layer.total, "always whole" if layer.is_whole else "")
        for layer in layers
    ]
    return section(
        "size",
        "How small can I go?",
        small_answer(choice),
        element("dl", boxes, class_="tiles"),
        _curves(choice, others, source),
        layers_figure(rows, "outputs", numbered=True),
    )


def small_answer(choice: Choice) -> str:
    """The smallest network that is good enough, how far it is below the best one, and what less would give."""
    first, last = choice.first, len(choice.networks) - 1
    shortfall, smaller = choice.shortfall(first), choice.shortfall(first - 1) if first else None
    if shortfall is None:
        return f"{len(choice.networks)} networks, none of them scored: see the notes at the end of this page."
    costs = [choice.size.of(network.cost) or 0.0 for network in choice.networks]
    shares = [cost / (costs[-1] or 1.0) for cost in costs]
    qualities = [choice.metric.written(quality) for quality in choice.qualities()]
    words = f"To {shares[first]:.0%} of the {choice.size.name}: {choice.metric.name} {qualities[first]}"
    if first != choice.best:
        words += f", {shortfall.words} worse than the best network."
        if shortfall.may_be_chance:
            words += f" With {shortfall.count:,} test examples, that may be chance."
    elif first == last:
        words = f"No smaller network is good enough: the whole one has {choice.metric.name} {qualities[first]}."
    else:
        words += ", the best of all."
    if smaller is not None:
        words += f" The next smaller one, at {shares[first - 1]:.0%}, is {smaller.words} worse than the best."
    half = max((number for number, share in enumerate(shares) if share <= HALF), default=first)
    return words if half >= first - 1 else f"{words} At {shares[half]:.0%} it is {qualities[half]}."


def _curves(choice: Choice, others: Sequence[OtherNetworks], source: str) -> Html:
    """A row of panels per cost, of which one row is shown."""
    rows, buttons = [], []
    for size in SIZES:
        if any(size.of(network.cost) is None for network in choice.networks):
            continue
        is_first = size.key == choice.size.key
        button = element("input", type="radio", name="cost", value=size.key, checked=is_first, id=f"by-{size.key}")
        buttons.append(element("label", button, " ", size.name))
        panels = [_panel(choice, metric, size, others) for metric in _drawn(choice)]
        if AUROC.of(choice.networks[-1].scores) is None:
            panels.append(element("div", element("h4", AUROC.name), empty(NO_FOREIGN), class_="panel"))
        rows.append(element("div", panels, class_="panels", data_cost=size.key, hidden=not is_first))
    entries = [("this run, with its 95% interval", MARKERS[0], "s0", "")]
    entries += looks(others, first=1)
    choosing = element("fieldset", element("legend", "Over"), buttons, class_="choices")
    table = table_of([(network.name, network.cost, network.scores) for network in choice.networks], others)
    tried = f" They are the best of {choice.num_tried} cuts that the search tried." if choice.num_tried else ""
    return figure(
        "Quality over cost",
        f"{len(choice.networks)} networks of one training run. {source}{tried} {rule(choice.metric)}",
        choosing,
        legend(entries),
        *rows,
        numbers=table,
    )


def looks(series: Sequence[OtherNetworks], *, first: int = 0) -> list[tuple[str, str, str, str]]:
    """The entries of a legend for some series."""
    return [(one.label, MARKERS[n], f"s{n}", DASHES[n]) for n, one in enumerate(series[: MOST_SERIES - first], first)]


NO_FOREIGN = html(
    "Nothing to compare with. Give other data to see whether the network knows what it does not know: ",
    element("code", "nestling report RUN --ood NAME"),
)


def _drawn(choice: Choice) -> list[Metric]:
    return [metric for metric in metrics_of(choice) if metric in (choice.metric, ECE, AUROC)]


def _panel(choice: Choice, metric: Metric, size: Size, others: Sequence[OtherNetworks]) -> Html:
    values = [metric.of(network.scores) for network in choice.networks]
    limits = [metric.bounds_of(network.scores) for network in choice.networks]
    of_run = OtherNetworks("", [(network.cost, network.scores) for network in choice.networks])
    frame = frame_of(metric, size, [of_run, *others], [bound for pair in limits if pair is not None for bound in pair])
    parts = [_own_line(frame, choice.networks, size, values, limits)]
    return panel(metric, size, frame, others, parts, first=1)


def panel(
    metric: Metric,
    size: Size,
    frame: Frame,
    series: Sequence[OtherNetworks],
    over: Sequence[Html] = (),
    *,
    first: int = 0,
) -> Html:
    """A picture of a score over a cost; the looks of the series begin with number ``first``."""
    parts = [frame.drawn()]
    if metric is AUROC:
        level = [frame.place((end, LEVEL_OF_A_GUESS)) for end in (frame.x.low, frame.x.high)]
        parts.append(path(level, "guess", "2 4"))
    for number, one in enumerate(series[: MOST_SERIES - first], first):
        points = ((size.of(price), metric.of(scores)) for price, scores in one.points)
        places = [frame.place((cost, value)) for cost, value in points if cost is not None and value is not None]
        parts.append(path(places, f"line s{number}", DASHES[number]))
        parts += [marker(MARKERS[number], at, f"mark s{number}") for at in places]
    way = "higher" if metric.higher_is_better else "lower"
    title = f"{metric.name} over {size.name}, from small networks to large ones; {way} is better"
    drawn = picture(f"{metric.key}-{size.key}", title, parts, *over)
    return element("div", element("h4", metric.name, element("small", f" {way} is better")), drawn, class_="panel")


def frame_of(metric: Metric, size: Size, series: Sequence[OtherNetworks], values: Sequence[float] = ()) -> Frame:
    """Axes on which all points of some series lie, and these values of the score."""
    points = [point for one in series for point in one.points]
    costs = finite([size.of(price) for price, scores in points if metric.of(scores) is not None])
    heights = finite([*values, *(metric.of(scores) for _, scores in points)])
    heights += [LEVEL_OF_A_GUESS] if metric is AUROC else []
    within = (0.0, 1.0 if metric.is_share else math.inf)
    label = f"{size.name}, {size.unit}" if size.key == "latency_ms" else size.name
    make = log_axis if min(costs, default=0.0) > 0 else linear_axis
    return Frame(make(label, costs, size.write), linear_axis(metric.name, heights, metric.on_axis, within=within))


def _own_line(
    frame: Frame,
    networks: Sequence[Network],
    size: Size,
    values: Sequence[float | None],
    limits: Sequence[tuple[float, float] | None],
) -> Html:
    """The line of the run's own networks, their intervals, and places to click on."""
    costs = [size.of(network.cost) or 0.0 for network in networks]
    places = [None if value is None else frame.place((cost, value)) for cost, value in zip(costs, values, strict=True)]
    in_order = sorted(at for at in places if at is not None)
    intervals = [
        bounds(frame.place((cost, pair[0])), frame.place((cost, pair[1])), "interval")
        for cost, pair in zip(costs, limits, strict=True)
        if pair is not None
    ]
    points = [
        element("g", marker(MARKERS[0], at, "mark s0"), marker("circle", at, "target", 11.0), data_choose=str(number))
        for number, at in enumerate(places)
        if at is not None
    ]
    return html(*intervals, path(in_order, "line s0"), *points, chosen(places))


def table_of(rows: Sequence[tuple[str, Cost, Any]], others: Sequence[OtherNetworks] = ()) -> Html:
    """Costs and scores of networks, with half of each interval."""
    all_rows = [*rows, *((one.label, price, scores) for one in others for price, scores in one.points)]
    wanted = [m for m in (*QUALITIES, ECE, AUROC, AUPR) if any(m.of(scores) is not None for _, _, scores in all_rows)]
    header = ["network", *(size.name for size in SIZES), *(metric.name for metric in wanted)]
    cells = []
    for name, price, scores in all_rows:
        written = [_with_half(metric, scores) for metric in wanted]
        cells.append([name, *(size.written(size.of(price)) for size in SIZES), *written])
    return html_table(header, cells)


def _with_half(metric: Metric, scores: Any) -> str:  # noqa: ANN401
    limits = metric.bounds_of(scores)
    value = metric.written(metric.of(scores))
    if limits is None:
        return value
    half = (limits[1] - limits[0]) / 2
    return f"{value} ± {100 * half:.1f}" if metric.is_share else f"{value} ± {half:.2g}"
