"""The section on learning: keep probabilities of each group, and training by width."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nestling.markup import Html, element, html, html_table
from nestling.report.page.axes import Axis, count, linear_axis, plain
from nestling.report.page.drawing import DASHES, MARKERS, Frame, marker, path, picture, rectangle
from nestling.report.page.metrics import QUALITIES, Metric, is_number
from nestling.report.page.networks import Choice
from nestling.report.page.parts import empty, figure, legend, section
from nestling.running import Nested

_STRIP = 160.0, 46.0
"""The size of the picture of a group."""
_MOST_LINES = len(MARKERS)
Line = Sequence[tuple[float, float]]
Writer = Callable[[float], str]
Log = Sequence[Mapping[str, Any]]


def learned_section(nested: Nested, log: Log, choice: Choice) -> Html:
    """What the run learned."""
    return section(
        "learned",
        "What did it learn?",
        learned_answer(nested, log),
        _orders(nested, choice),
        element("div", training_figures(log), class_="columns"),
    )


def learned_answer(nested: Nested, log: Log) -> str:
    """What the widest and the narrowest cut came to, and how many blocks the orders expect to keep."""
    epochs = f"{len(log)} epoch{'' if len(log) == 1 else 's'}"
    lines, metric = by_width(log)
    ends = [(name, own[-1][1]) for name, own in lines.items()]
    reached = f"In {epochs}"
    if ends:
        reached += f" the widest cut came to a validation {metric.name} of {metric.written(ends[-1][1])}"
    if len(ends) > 1:
        reached += f", the narrowest ({ends[0][0]}) to {metric.written(ends[0][1])}"
    orders = nested.orders
    if not orders:
        return f"{reached}. No group has an order."
    expected = sum(float(order.expected_width().detach()) for order in orders.values())
    total = sum(order.num_blocks for order in orders.values())
    where = f"in {len(orders)} group{'' if len(orders) == 1 else 's'}"
    if not _is_learned(nested):
        return f"{reached}. The orders {where} are fixed."
    return f"{reached}. The orders {where} learned to keep {expected / total:.0%} of the blocks on average."


def _is_learned(nested: Nested) -> bool:
    return any(True for order in nested.orders.values() for _ in order.parameters())


def _orders(nested: Nested, choice: Choice) -> Html:
    probs = {name: order.keep_probs().detach().tolist() for name, order in nested.orders.items()}
    if not probs:
        return figure(
            "How likely each block is kept",
            "No group of this network has an order.",
            empty("Nothing was learned here."),
        )
    strips, rows = [], []
    for number, (name, keep_probs) in enumerate(probs.items()):
        widths = [network.cut[name] for network in choice.networks]
        expected = f"{sum(keep_probs):.1f} of {len(keep_probs)} blocks expected"
        drawn = _strip(f"order-{number}", f"{name}: keep probabilities, {expected}", keep_probs, widths, choice.first)
        strips.append(element("li", element("strong", name), element("span", expected), drawn))
        rows.append([name, f"{sum(keep_probs):.2f}", " ".join(f"{probability:.3f}" for probability in keep_probs)])
    kind = "learned" if _is_learned(nested) else "fixed, not learned,"
    about = (
        f"One bar per block, as high as the {kind} probability of keeping it. Filled blocks are those that the chosen "
        "network keeps, dashed ones are cut."
    )
    table = html_table(["group", "expected width", "keep probability of each block"], rows)
    return figure(
        "How likely each block is kept", about, element("ul", strips, class_="orders"), numbers=table, class_="wide"
    )


def _strip(name: str, title: str, probs: Sequence[float], widths: Sequence[int], first: int) -> Html:
    width, height = _STRIP
    step = width / len(probs)
    gap = min(2.0, 0.2 * step)
    bars = []
    for block, probability in enumerate(probs):
        high = max(1.5, (height - 2) * probability)
        look = "block kept" if block < widths[first] else "block"
        bars.append(rectangle(block * step + gap / 2, height - 1 - high, step - gap, high, look))
    inside = element("g", bars, data_widths=" ".join(map(str, widths)))
    return picture(name, title, inside, width=width, height=height)


def training_figures(log: Log, prefix: str = "log") -> list[Html]:
    """The quality by width, the loss of the data, and the divergence of the weights, epoch by epoch."""
    epochs = [float(line["epoch"]) for line in log if is_number(line.get("epoch"))]
    if not epochs:
        return [figure("Training", "The run has no log.", empty("log.jsonl has no line that belongs to this run."))]
    lines, metric = by_width(log)
    several = len(lines) > 1
    title = f"Validation {metric.name}{' by width' if several else ''}"
    figures = [
        lines_figure(
            title,
            "One line per cut, from the narrowest on." if several else "After each epoch.",
            f"{prefix}-by-width",
            {f"cut {name}": line for name, line in lines.items()},
            metric.on_axis,
            metric.written,
        )
    ]
    for key, title, about in _OTHERS:
        points = log_line(log, key)
        if points and any(value for _, value in points):
            figures.append(lines_figure(title, about, f"{prefix}-{key}", {title: points}, _short, _short))
    figures += [
        lines_figure(
            f"{name[:1].upper()}{name[1:]} by epoch",
            "Of the network after each epoch.",
            f"{prefix}-own-{n}",
            {name: line},
            _short,
            _short,
        )
        for n, (name, line) in enumerate(_figures_of(log).items())
    ]
    return figures


_OTHERS = (
    (
        "nll",
        "Loss of the training data",
        "Negative log-likelihood, in nats, averaged over an epoch and the widths that it drew.",
    ),
    (
        "weight_kl",
        "Divergence of the weights",
        "KL of the weights' posterior from their prior, in nats, summed over all weights.",
    ),
)


def _short(value: float) -> str:
    return count(value) if abs(value) >= 1000 else plain(float(f"{value:.3g}"))


def by_width(log: Log) -> tuple[dict[str, list[tuple[float, float]]], Metric]:
    """Lines of the first quality that the log has: by the name of a cut, (epoch, value)."""
    for metric in QUALITIES:
        lines: dict[str, list[tuple[float, float]]] = {}
        for line in log:
            validation = line.get("validation")
            for name, scores in validation.items() if isinstance(validation, Mapping) else ():
                value = metric.of(scores) if isinstance(scores, Mapping) else None
                if value is not None and is_number(line.get("epoch")):
                    lines.setdefault(str(name), []).append((float(line["epoch"]), value))
        if lines:
            return lines, metric
    return {}, QUALITIES[-1]


def log_line(log: Log, key: str) -> list[tuple[float, float]]:
    """The values that a log has under a key, epoch by epoch."""
    logged = [line for line in log if is_number(line.get(key)) and is_number(line.get("epoch"))]
    return [(float(line["epoch"]), float(line[key])) for line in logged]


def _figures_of(log: Log) -> dict[str, list[tuple[float, float]]]:
    """The figures that the caller of ``train`` had computed, such as the sparsity of a pruning."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for line in log:
        figures = line.get("figures")
        for name, value in figures.items() if isinstance(figures, Mapping) else ():
            if is_number(value) and is_number(line.get("epoch")):
                lines.setdefault(str(name), []).append((float(line["epoch"]), float(value)))
    return dict(list(lines.items())[:4])


def lines_figure(
    title: str, about: str, name: str, lines: Mapping[str, Line], on_axis: Writer, written: Writer
) -> Html:
    """Lines of (epoch, value) by their names, each drawn in its own way."""
    if not lines:
        return figure(title, about, empty("The log has no such figures."))
    step = max(1, -(-len(lines) // _MOST_LINES))
    names = list(lines)
    shown = names if len(names) <= _MOST_LINES else [*names[:-1:step], names[-1]][-_MOST_LINES:]
    points = [point for label in shown for point in lines[label]]
    frame = Frame(_epochs([epoch for epoch, _ in points]), linear_axis(title, [value for _, value in points], on_axis))
    parts, entries = [frame.drawn()], []
    for number, label in enumerate(shown):
        places = [frame.place(point) for point in lines[label]]
        every = max(1, len(places) // 12)
        parts.append(path(places, f"line s{number}", DASHES[number]))
        parts += [marker(MARKERS[number], at, f"mark s{number}", 3.2) for at in [*places[:-1:every], places[-1]]]
        entries.append((label, MARKERS[number], f"s{number}", DASHES[number]))
    epochs = sorted({epoch for line in lines.values() for epoch, _ in line})
    values = {label: dict(points) for label, points in lines.items()}
    rows = [[plain(e), *(written(values[label][e]) if e in values[label] else "-" for label in names)] for e in epochs]
    numbers = html_table(["epoch", *names], rows)
    drawn = picture(name, title, parts)
    key = legend(entries) if len(entries) > 1 else html()
    return figure(title, about, key, drawn, numbers=numbers)


def _epochs(epochs: Sequence[float]) -> Axis:
    """An axis of epochs, whose labels are whole numbers."""
    last = max(epochs)
    axis = linear_axis("epoch", (1.0, max(2.0, last)), plain, tight=True)
    ticks = (1.0, *(tick for tick in axis.ticks if tick == int(tick) and tick > 1))
    return Axis("epoch", axis.low, axis.high, plain, ticks)
