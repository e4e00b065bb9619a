"""Pictures as inline SVG: a frame with axes, lines with markers, bars, and the mark of the chosen network."""

from collections.abc import Sequence
from dataclasses import dataclass

from nestling.markup import Content, Html, element, html
from nestling.report.page.axes import Axis

WIDTH, HEIGHT = 420, 250
"""The size of a picture in its own units, which are about pixels: it is shown as wide as its column."""
LEFT, RIGHT, TOP, BOTTOM = 50, 14, 12, 42
MARKERS = ("circle", "square", "triangle", "diamond", "cross")
DASHES = ("", "7 4", "2 3", "9 3 2 3", "4 2")
_SIZE = 4.0
Point = tuple[float, float]


@dataclass(frozen=True)
class Frame:
    """A picture's area between its axes."""

    x: Axis
    y: Axis
    width: float = WIDTH
    height: float = HEIGHT

    def place(self, point: Point) -> Point:
        """Where a pair of values is drawn."""
        x, y = point
        across, up = self.x.share(x), self.y.share(y)
        left, bottom = LEFT, self.height - BOTTOM
        return left + across * (self.width - LEFT - RIGHT), bottom - up * (bottom - TOP)

    def drawn(self) -> Html:
        """Grid, axes, and their numbers and labels."""
        bottom, right = self.height - BOTTOM, self.width - RIGHT
        parts = [_line((LEFT, bottom), (right, bottom), "axis")]
        for tick in self.y.ticks:
            _, y = self.place((self.x.low, tick))
            parts.append(_line((LEFT, y), (right, y), "grid"))
            parts.append(text((LEFT - 7, y + 4), self.y.write(tick), "end"))
        for tick in self.x.ticks:
            x, _ = self.place((tick, self.y.low))
            parts.append(_line((x, bottom), (x, bottom + 4), "axis"))
            parts.append(text((x, bottom + 17), self.x.write(tick), "middle"))
        parts.append(text(((LEFT + right) / 2, self.height - 6), self.x.label, "middle", class_="label"))
        return element("g", parts, aria_hidden="true")


def picture(name: str, title: str, *content: Content, width: float = WIDTH, height: float = HEIGHT) -> Html:
    """A drawing with a title for those who can't see it; ``name`` is its identifier on the page."""
    return element(
        "svg",
        element("title", title, id=f"{name}-title"),
        *content,
        viewBox=f"0 0 {width:g} {height:g}",
        role="img",
        aria_labelledby=f"{name}-title",
    )


def text(at: Point, words: str, anchor: str = "start", class_: str | None = None) -> Html:
    """Words at a place."""
    return element("text", words, x=float(at[0]), y=float(at[1]), text_anchor=anchor, class_=class_)


def path(points: Sequence[Point], class_: str, dash: str = "") -> Html:
    """A line through places."""
    through = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return element("polyline", points=through, class_=class_, stroke_dasharray=dash or None)


def rectangle(x: float, y: float, width: float, height: float, class_: str) -> Html:
    """A rectangle; one of no height is left out."""
    if width <= 0 or height <= 0:
        return Html()
    return element("rect", x=float(x), y=float(y), width=float(width), height=float(height), class_=class_)


def marker(kind: str, at: Point, class_: str, size: float = _SIZE) -> Html:
    """A small sign whose form says which line it belongs to."""
    x, y = at
    if kind == "circle":
        return element("circle", cx=float(x), cy=float(y), r=float(size), class_=class_)
    corners = {
        "square": ((-1, -1), (1, -1), (1, 1), (-1, 1)),
        "triangle": ((0, -1.3), (1.2, 1), (-1.2, 1)),
        "diamond": ((0, -1.4), (1.4, 0), (0, 1.4), (-1.4, 0)),
        "cross": ((-1, -1), (0, 0), (1, -1), (0, 0), (1, 1), (0, 0), (-1, 1), (0, 0)),
    }[kind]
    points = " ".join(f"{x + size * dx:.1f},{y + size * dy:.1f}" for dx, dy in corners)
    return element("polygon", points=points, class_=class_)


def bounds(low: Point, high: Point, class_: str) -> Html:
    """An interval: a line with feet."""
    x = low[0]
    feet = [_line((x - 3, y), (x + 3, y), class_) for y in (low[1], high[1])]
    return html(_line(low, high, class_), *feet)


def chosen(points: Sequence[Point | None], top: float = TOP, bottom: float = HEIGHT - BOTTOM) -> Html:
    """The mark of the chosen network, which the script moves: one place per network, or none."""
    places = " ".join("-" if at is None else f"{at[0]:.1f},{at[1]:.1f}" for at in points)
    ring = element("circle", cx=0, cy=0, r=8)
    return element(
        "g",
        element("g", _line((0, top), (0, bottom), "cursor"), class_="cursor-line"),
        element("g", ring, class_="cursor-ring"),
        class_="chosen",
        data_places=places,
        aria_hidden="true",
    )


def swatch(kind: str, class_: str, dash: str = "") -> Html:
    """A small picture of how something is drawn, for a legend: a line with its marker, or a box."""
    if kind == "box":
        inside = rectangle(1, 1, 18, 10, class_)
    else:
        inside = html(path([(0, 6), (26, 6)], f"line {class_}", dash), marker(kind, (13, 6), f"mark {class_}"))
    width = 20 if kind == "box" else 26
    return element(
        "svg", inside, viewBox=f"0 0 {width} 12", width=width, height=12, class_="swatch", aria_hidden="true"
    )


def _line(start: Point, end: Point, class_: str) -> Html:
    (x1, y1), (x2, y2) = start, end
    return element("line", x1=float(x1), y1=float(y1), x2=float(x2), y2=float(y2), class_=class_)
