"""The page of several runs and prunings beside each other, each with its best network under one budget."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from nestling.markup import Html, element, html_table
from nestling.report.page.axes import finite
from nestling.report.page.document import document, summary
from nestling.report.page.drawing import chosen
from nestling.report.page.learned import by_width, lines_figure, log_line
from nestling.report.page.metrics import AUROC, ECE, NLL, SIZES, Metric, quality_of
from nestling.report.page.networks import thinned
from nestling.report.page.origin import short
from nestling.report.page.parts import code, empty, figure, following, legend, section
from nestling.report.page.pruning_page import PruningRecord
from nestling.report.page.run_page import Report
from nestling.report.page.slider import slider
from nestling.report.page.tradeoff import MOST_SERIES, OtherNetworks, frame_of, looks, panel, table_of
from nestling.running import Cost
from nestling.training import Recipe

BY = SIZES[0]
"""The cost that the budgets of a comparison are in."""
_MOST_NAMES = 4
"""The answer in short names so many entries that differ."""
Point = tuple[Cost, Mapping[str, Any]]


def comparison_page(reports: Sequence[Report], prunings: Sequence[PruningRecord], made_here: str) -> str:
    """The page as text; pictures have room for the first few runs, tables have all."""
    runs = [
        OtherNetworks(report.title, [(network.cost, network.scores) for network in report.choice.networks])
        for report in reports
    ]
    series = [*runs, *(pruning.series for pruning in prunings)]
    metric = quality_of(series[0].points[-1][1])
    budgets = _budgets(series)
    first = len(budgets) - 1
    words = [_words(series, budget, metric) for budget in budgets]
    best = [_under(one, budgets[first], metric) for one in series]
    answer, learned, different = _answer(reports, series, best, metric), _learned(reports), _differences(reports)
    cards = [
        ("size", "Which is better at a size?", answer),
        ("learned", "How did they learn?", learned),
        ("origin", "How do they differ?", _differ(reports, different)),
    ]
    bar = slider(
        BY.name,
        [f"at most {BY.written(budget)}" for budget in budgets],
        [BY.written(budget) for budget in budgets],
        first,
    )
    sections = [
        section(
            "size", "Which is better at a size?", answer, _table(series, best, metric), _curves(series, metric, budgets)
        ),
        section("learned", "How did they learn?", learned, _training(reports)),
        section(
            "origin",
            "How do they differ?",
            "Entries that are the same for all are left out.",
            element("div", _table_of_differences(reports, different), class_="scrolled", tabindex="0"),
            element("h3", "Commands"),
            *(code(f"nestling report {report.words}") for report in reports),
            code(made_here),
            element(
                "ul",
                [element("li", f"{r.title}: {note}") for r in reports for note in (r.source, *r.notes)],
                class_="notes",
            ),
        ),
    ]
    title = " · ".join(one.label for one in series)
    data = {"first": first, "networks": [{"words": own} for own in words]}
    counts = {"run": len(reports), "pruning": len(prunings)}
    subtitle = ", ".join(f"{n} {word}{'' if n == 1 else 's'}" for word, n in counts.items() if n)
    return document(title, subtitle, [summary(cards), bar, *sections], data)


def _budgets(series: Sequence[OtherNetworks]) -> list[float]:
    """Costs at which some network becomes affordable, from the smallest on."""
    return thinned(sorted({cost for one in series for cost in finite([BY.of(price) for price, _ in one.points])}))


def _under(one: OtherNetworks, budget: float, metric: Metric) -> int | None:
    """The number of the best network of a series within a budget, if there is one."""
    fitting = [
        (value if metric.higher_is_better else -value, -cost, number)
        for number, (price, scores) in enumerate(one.points)
        if (cost := BY.of(price)) is not None and cost <= budget and (value := metric.of(scores)) is not None
    ]
    return max(fitting)[2] if fitting else None


def _columns(metric: Metric) -> list[Metric]:
    return list(dict.fromkeys((metric, ECE, AUROC, NLL)))


def _cells(point: Point | None, metric: Metric) -> list[str]:
    """The figures of a network, in the columns of the table."""
    if point is None:
        return ["-"] * (len(_columns(metric)) + len(SIZES))
    price, scores = point
    return [
        *(column.written(column.of(scores)) for column in _columns(metric)),
        *(size.written(size.of(price)) for size in SIZES),
    ]


def _words(series: Sequence[OtherNetworks], budget: float, metric: Metric) -> dict[str, str]:
    """What the script puts into the page for a budget."""
    words = {"budget": f"at most {BY.written(budget)}"}
    for row, one in enumerate(series):
        number = _under(one, budget, metric)
        cells = _cells(None if number is None else one.points[number], metric)
        words |= {f"cell-{row}-{column}": cell for column, cell in enumerate(cells)}
    return words


def _answer(
    reports: Sequence[Report], series: Sequence[OtherNetworks], best: Sequence[int | None], metric: Metric
) -> str:
    ranked = [
        (value if metric.higher_is_better else -value, one.label, value)
        for one, number in zip(series, best, strict=True)
        if number is not None and (value := metric.of(one.points[number][1])) is not None
    ]
    if not ranked:
        return "None of them has scores."
    if len({str(report.run.data.get("fingerprint")) for report in reports}) > 1:
        return "They were trained on different data, so that their scores are not of the same task."
    ranked.sort(key=lambda one: (-one[0], one[1]))
    _, name, value = ranked[0]
    words = f"Without a limit {name} has the best {metric.name}, {metric.written(value)}"
    if len(ranked) > 1:
        words += f"; {ranked[1][1]} follows with {metric.written(ranked[1][2])}"
    return f"{words}. The slider sets a limit."


def _table(series: Sequence[OtherNetworks], best: Sequence[int | None], metric: Metric) -> Html:
    """The best network of each under the chosen budget."""
    names = [*(column.name for column in _columns(metric)), *(size.name for size in SIZES)]
    rows = []
    for row, (one, number) in enumerate(zip(series, best, strict=True)):
        cells = _cells(None if number is None else one.points[number], metric)
        tds = [element("td", following(f"cell-{row}-{n}", cell), class_="number") for n, cell in enumerate(cells)]
        rows.append(element("tr", element("th", one.label, scope="row"), tds))
    head = element(
        "tr", element("th", "run", scope="col"), [element("th", name, scope="col", class_="number") for name in names]
    )
    table = element("table", element("thead", head), element("tbody", rows), class_="compared")
    inside = element("div", table, class_="scrolled", tabindex="0", role="region", aria_label="Best networks")
    return figure(
        "The best network of each within the budget", "A dash says that none is small enough, or not measured.", inside
    )


def _curves(series: Sequence[OtherNetworks], metric: Metric, budgets: Sequence[float]) -> Html:
    metrics = [
        each
        for each in (metric, ECE, AUROC)
        if any(each.of(scores) is not None for one in series for _, scores in one.points)
    ]
    panels = []
    for each in metrics:
        frame = frame_of(each, BY, series)
        marks = []
        for one in series[:MOST_SERIES]:
            places = []
            for budget in budgets:
                number = _under(one, budget, metric)
                price, scores = one.points[number] if number is not None else (None, {})
                value, cost = each.of(scores), None if price is None else BY.of(price)
                places.append(None if value is None or cost is None else frame.place((cost, value)))
            marks.append(chosen(places))
        panels.append(panel(each, BY, frame, series, marks))
    rows = [
        (f"{one.label} {number}", price, scores)
        for one in series
        for number, (price, scores) in enumerate(one.points, 1)
    ]
    shown = f"Drawn are the first {MOST_SERIES} of {len(series)}." if len(series) > MOST_SERIES else ""
    return figure(
        "Quality over cost",
        f"Rings mark the networks within the budget. {shown}",
        legend(looks(series)),
        element("div", panels, class_="panels"),
        numbers=table_of(rows),
    )


def _training(reports: Sequence[Report]) -> Html:
    """The validation of the widest cut of each run, and its loss, epoch by epoch."""
    lines, losses, metric = {}, {}, NLL
    for report in reports:
        widths, metric = by_width(report.run.log)
        if widths:
            lines[report.title] = widths[max(widths, key=_fraction)]
            losses[report.title] = log_line(report.run.log, "nll")
    if not lines:
        return empty("No run has a log.")
    title, about = f"Validation {metric.name}", "Of the widest cut of each run."
    quality = lines_figure(title, about, "runs", lines, metric.on_axis, metric.written)
    title, about = "Loss of the training data", "Negative log-likelihood, in nats."
    loss = lines_figure(title, about, "losses", losses, NLL.on_axis, NLL.written)
    return element("div", quality, loss, class_="columns")


def _fraction(name: str) -> float:
    try:
        return float(name.rpartition(",")[2])
    except ValueError:
        return 0.0


def _learned(reports: Sequence[Report]) -> str:
    """What the widest cut of each run came to in validation."""
    words = []
    for report in reports:
        lines, metric = by_width(report.run.log)
        if lines:
            last = lines[max(lines, key=_fraction)][-1][1]
            words.append(f"{report.title} to a validation {metric.name} of {metric.written(last)}")
    return f"The widest cut came in {', in '.join(words)}." if words else "No run has a log."


def _differ(reports: Sequence[Report], different: Sequence[list[str]]) -> str:
    """The names of the first few entries that differ."""
    if not reports:
        return "There is no run among them."
    names = [row[0] for row in different]
    if not names:
        return "They have the same recipe, data and network."
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return f"In {', '.join(names[:_MOST_NAMES])}{more}."


def _differences(reports: Sequence[Report]) -> list[list[str]]:
    """Entries of recipe, data and network that are not the same in all runs, with the value in each."""
    rows: dict[str, list[str]] = {}
    for entry in fields(Recipe):
        rows[entry.name] = [short(getattr(report.run.recipe, entry.name)) for report in reports]
    rows["data"] = [str(report.run.data.get("name")) for report in reports]
    for key, name in (("model", "network"), ("nest", "nested with")):
        described = [_flat(_described(report).get(key)) for report in reports]
        for key_of_one in dict.fromkeys(found for own in described for found in own):
            rows[f"{name}: {key_of_one}"] = [short(own.get(key_of_one)) for own in described]
    return [[name, *values] for name, values in rows.items() if len(set(values)) > 1]


def _table_of_differences(reports: Sequence[Report], different: Sequence[list[str]]) -> Html:
    if not reports:
        return empty("There is no run among them.")
    if not different:
        return empty("They were made by the same recipe, from the same data and network.")
    return html_table(["entry", *(report.title for report in reports)], different, names=1 + len(reports))


def _flat(described: object) -> dict[str, object]:
    """The entries of a record, those of its options among them."""
    if not isinstance(described, Mapping):
        return {}
    options = described.get("options")
    own = {str(key): value for key, value in described.items() if key != "options"}
    return own | ({str(key): value for key, value in options.items()} if isinstance(options, Mapping) else {})


def _described(report: Report) -> Mapping[str, Any]:
    network = report.record.get("network")
    return network if isinstance(network, Mapping) else {}
