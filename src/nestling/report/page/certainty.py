"""The section on certainty: reliability, uncertainty on known and unknown data, and where it comes from."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from nestling.markup import Html, element, html, html_table
from nestling.report.page.axes import Axis, linear_axis, percents, plain
from nestling.report.page.drawing import HEIGHT, WIDTH, Frame, marker, path, picture, rectangle, text
from nestling.report.page.measuring import Answers, Measured
from nestling.report.page.metrics import AUROC, ECE, is_number
from nestling.report.page.networks import Choice
from nestling.report.page.parts import by_network, empty, figure, legend, section

NUM_BARS = 24
"""The bars of a histogram of uncertainty."""
_LARGEST, _LEAST = 9.0, 2.2
"""The radius of a point of a reliability diagram that has all examples, and of one that has next to none."""
_OFTEN = 0.01
"""The line of a reliability diagram goes through the points that have at least this share of all examples."""
_NAMES = {"entropy": "entropy, nats", "std": "standard deviation"}
RELIABILITY = """\
Confidence against the share of right answers. On the diagonal both agree; below it the network is too sure of itself.
A larger point has more examples."""
_INTERVALS = """\
The probability of each central interval against the share of targets inside. On the diagonal both agree; below it the
network is too sure of itself."""
_ORIGIN = """\
Aleatoric uncertainty lies in the data and stays, however much is learned. Epistemic uncertainty lies in the weights:
more data would lower it. Numbers are means, in {unit}."""
_NOTHING = "No data was at hand when this page was made: see the notes at its end."


def certainty_section(choice: Choice, foreign_name: str) -> Html:
    """How sure the network is of its answers."""
    measured = [network.measured for network in choice.networks]
    there = [one for one in measured if one is not None]
    whole = len(there) == len(measured)
    figures = [
        figure(
            "Is it as often right as it says?",
            _INTERVALS if "intervals" in choice.networks[-1].scores else RELIABILITY,
            by_network(
                [reliability(f"reliability-{n}", each.scores, each.measured) for n, each in enumerate(choice.networks)],
                choice.first,
            ),
        ),
        figure(
            "Is it less sure of what it does not know?",
            _histogram_about(there, foreign_name),
            by_network(_histograms(there, foreign_name), choice.first) if whole else empty(_NOTHING),
        ),
        figure(
            "Where does its uncertainty come from?",
            _ORIGIN.format(unit="variances" if "intervals" in choice.networks[-1].scores else "nats"),
            by_network(_origins(there, foreign_name), choice.first) if whole else empty(_NOTHING),
        ),
    ]
    return section("sure", "How sure is it?", sure_answer(choice), element("div", figures, class_="columns"))


def sure_answer(choice: Choice) -> str:
    """One sentence: the calibration error, and how well unknown data is told apart."""
    scores = choice.networks[choice.first].scores
    ece, auroc = ECE.of(scores), AUROC.of(scores)
    words = []
    if ece is not None:
        words.append(f"Its confidence is off by {ECE.written(ece)} on average")
    if auroc is not None:
        words.append(f"its uncertainty tells unknown data from known with AUROC {AUROC.written(auroc)} (a guess: 50%)")
    return f"{'; '.join(words)}." if words else "Nothing was measured: see the notes at the end of this page."


def reliability(name: str, scores: Mapping[str, Any], measured: Measured | None) -> Html:
    """The reliability diagram of some scores, also with the temperature of a calibration if that was measured."""
    points = _points(scores)
    if not points:
        return empty("The files of the run have no reliability curve for this network.")
    is_numbers = "intervals" in scores
    calibrated = None if measured is None or measured.calibrated is None else measured.calibrated.to_dict()
    after = [] if calibrated is None else _points(calibrated)
    across = "nominal probability" if is_numbers else "confidence"
    x = Axis(across, 0.0, 1.0, percents, (0.2, 0.4, 0.6, 0.8, 1.0))
    frame = Frame(x, linear_axis("share inside" if is_numbers else "share right", (0.0, 1.0), percents, tight=True))
    parts = [frame.drawn(), path([frame.place((0.0, 0.0)), frame.place((1.0, 1.0))], "guess", "2 4")]
    series = [(points, "circle", "s0", "")] + ([(after, "square", "s1 open", "5 3")] if after else [])
    total = sum(count for *_, count in points)
    for curve, kind, class_, dash in series:
        places = [frame.place((confidence, right)) for confidence, right, _ in curve]
        often = [at for at, (*_, count) in zip(places, curve, strict=True) if count >= _OFTEN * total]
        parts.append(path(often, f"line thin {class_}", dash))
        for at, (*_, count) in zip(places, curve, strict=True):
            parts.append(marker(kind, at, f"mark {class_}", max(_LEAST, _LARGEST * (count / total) ** 0.5)))
    error = ECE.written(ECE.of(scores))
    entries = [(f"as it is: calibration error {error}", "circle", "s0", "")]
    if after and calibrated is not None:
        entries.append((f"with its temperature: {ECE.written(ECE.of(calibrated))}", "square", "s1 open", "5 3"))
    numbers = html_table(
        ["nominal" if is_numbers else "confidence", "share right", "examples"],
        [[percents(round(a, 3)), percents(round(b, 3)), f"{c:g}"] for a, b, c in points],
        names=0,
    )
    drawn = picture(name, f"Reliability: calibration error {error}", parts)
    return html(legend(entries), drawn, _numbers(numbers))


def _points(scores: Mapping[str, Any]) -> list[tuple[float, float, float]]:
    """Confidence, share right and number of examples of each bin that has some; for numbers, intervals and shares."""
    curve = scores.get("reliability")
    if isinstance(curve, Mapping):
        columns = [curve.get(key) for key in ("confidence", "accuracy", "count")]
        if all(isinstance(column, list | tuple) and all(map(is_number, column)) for column in columns):
            return [(float(a), float(b), float(n)) for a, b, n in zip(*columns, strict=False) if n > 0]
    intervals = scores.get("intervals")
    if isinstance(intervals, Mapping) and all(map(is_number, intervals.values())):
        with suppress(ValueError):  # the file is somebody else's, and its keys are no numbers
            return sorted((float(nominal), float(share), 1.0) for nominal, share in intervals.items())
    return []


def _histogram_about(measured: Sequence[Measured], foreign_name: str) -> str:
    if measured and measured[0].foreign is not None:
        sides = f"test data above the line, {foreign_name} below it"
        return f"Each side adds up to 100%: {sides}. The less they overlap, the better."
    if measured and measured[0].known.right is None:
        return "The uncertainty of all test examples. Give other data with --ood to compare them."
    return "Each side adds up to 100%: right answers above the line, wrong ones below it."


def _sides(measured: Measured) -> tuple[Tensor, Tensor | None]:
    """The uncertainties that are drawn above and below the line."""
    known = measured.known
    if measured.foreign is not None:
        return known.uncertainty, measured.foreign.uncertainty
    if known.right is not None:
        return known.uncertainty[known.right], known.uncertainty[~known.right]
    return known.uncertainty, None


def _histograms(measured: Sequence[Measured], foreign_name: str) -> list[Html]:
    """One per network, all over the same range of uncertainties."""
    everything = torch.cat([side for one in measured for side in _sides(one) if side is not None])
    low, high = float(everything.min()), float(everything.max())
    edges = torch.linspace(low, high if high > low else low + 1.0, NUM_BARS + 1, dtype=torch.float64)
    shares = [[_shares(side, edges) for side in _sides(one)] for one in measured]
    ends = -_highest(side for _, side in shares), _highest(side for side, _ in shares)
    return [
        _histogram(f"uncertainty-{n}", one, pair, edges, ends, foreign_name)
        for n, (one, pair) in enumerate(zip(measured, shares, strict=True))
    ]


def _shares(values: Tensor | None, edges: Tensor) -> Tensor | None:
    if values is None or not len(values):
        return None
    place = torch.bucketize(values.double(), edges[1:-1])
    return torch.bincount(place, minlength=NUM_BARS).double() / len(values)


def _highest(sides: Iterable[Tensor | None]) -> float:
    """The highest bar of all pictures, 0 if there are none."""
    return max((float(side.max()) for side in sides if side is not None), default=0.0)


def _histogram(
    name: str,
    measured: Measured,
    shares: Sequence[Tensor | None],
    edges: Tensor,
    ends: tuple[float, float],
    foreign_name: str,
) -> Html:
    above, below = shares
    label = _NAMES.get(measured.uncertainty_name, measured.uncertainty_name.replace("_", " "))
    x = linear_axis(label, (float(edges[0]), float(edges[-1])), plain, tight=True)
    y = linear_axis("share", ends, lambda share: percents(abs(round(share, 4))), tight=True)
    frame = Frame(x, y)
    parts = [frame.drawn()]
    for number in range(NUM_BARS):
        left, right = (frame.place((float(edges[number + end]), 0.0))[0] for end in (0, 1))
        for side, sign, class_ in ((above, 1, "known"), (below, -1, "unknown")):
            if side is not None and (share := float(side[number])) > 0:
                start, end = sorted(frame.place((x.low, level))[1] for level in (0.0, sign * share))
                parts.append(rectangle(left + 0.5, start, right - left - 1, end - start, class_))
    parts.append(path([frame.place((x.low, 0.0)), frame.place((x.high, 0.0))], "zero"))
    by_truth = measured.foreign is None and measured.known.right is not None
    names = ("right answers", "wrong answers") if by_truth else ("test data", foreign_name)
    entries = [(names[0], "box", "known", "")] + ([(names[1], "box", "unknown", "")] if below is not None else [])
    cells = [
        [
            f"{float(edges[n]):.2f} to {float(edges[n + 1]):.2f}",
            *("-" if s is None else f"{100 * float(s[n]):.1f}%" for s in shares[: 2 if names[1] else 1]),
        ]
        for n in range(NUM_BARS)
    ]
    drawn = picture(name, f"Histogram of uncertainty: {' and '.join(filter(None, names))}", parts)
    return html(legend(entries), drawn, _numbers(html_table([label, *filter(None, names)], cells)))


def _origins(measured: Sequence[Measured], foreign_name: str) -> list[Html]:
    """Mean aleatoric and epistemic uncertainty of right, wrong and unknown answers, one picture per network."""
    rows = [_means(one, foreign_name) for one in measured]
    most = max((a + e for means in rows for _, _, a, e in means), default=1.0)
    return [_origin(f"origin-{n}", means, most) for n, means in enumerate(rows)]


def _means(measured: Measured, foreign_name: str) -> list[tuple[str, int, float, float]]:
    """Label, number of examples, and the two means, of each kind of example that there is."""
    known = measured.known
    kinds: list[tuple[str, Answers, Tensor | None]] = [("test data", known, None)]
    if known.right is not None:
        kinds = [("right answers", known, known.right), ("wrong answers", known, ~known.right)]
    if measured.foreign is not None:
        kinds.append((foreign_name, measured.foreign, None))
    means = []
    for label, answers, chosen in kinds:
        parts = [part if chosen is None else part[chosen] for part in (answers.aleatoric, answers.epistemic)]
        if len(parts[0]):
            means.append((label, len(parts[0]), float(parts[0].mean()), float(parts[1].mean())))
    return means


def _origin(name: str, means: Sequence[tuple[str, int, float, float]], most: float) -> Html:
    left, right = 4.0, WIDTH - 60.0
    room = min(80.0, (HEIGHT - 10.0) / max(1, len(means)))
    parts = []
    for number, (label, count, aleatoric, epistemic) in enumerate(means):
        y = room * number + 8
        wide = [(right - left) * part / (most or 1.0) for part in (aleatoric, epistemic)]
        parts.append(text((left, y + 14), f"{label} ({count:,})"))
        parts.append(rectangle(left, y + 22, wide[0], 20, "known"))
        parts.append(rectangle(left + wide[0], y + 22, wide[1], 20, "unknown"))
        parts.append(text((left + sum(wide) + 8, y + 37), f"{aleatoric + epistemic:.2g}"))
    entries = [("aleatoric", "box", "known", ""), ("epistemic", "box", "unknown", "")]
    cells = [[label, f"{count:,}", f"{a:.3g}", f"{e:.3g}", f"{a + e:.3g}"] for label, count, a, e in means]
    numbers = html_table(["answers", "number", "aleatoric", "epistemic", "sum"], cells)
    drawn = picture(name, "Mean aleatoric and epistemic uncertainty", parts)
    return html(legend(entries), drawn, _numbers(numbers))


def _numbers(table: Html) -> Html:
    return element("details", element("summary", "Numbers"), element("div", table, class_="scrolled", tabindex="0"))
