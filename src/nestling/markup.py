"""HTML and SVG by hand: elements that escape the text put into them, tables, and the cards that notebooks show."""

import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape

from nestling.errors import printable


class Html(str):
    """Text that is HTML already; all other text is escaped when it is put into an element."""

    __slots__ = ()


Content = str | Iterable[str]
"""What can stand in an element: HTML, or text, or several of them."""
Attribute = str | float | bool | None
_EMPTY = frozenset({"br", "col", "hr", "input", "meta"})
_CARD_STYLE = (
    "display:inline-block;max-width:100%;overflow-x:auto;border:1px solid rgba(128,128,128,.4);border-radius:8px;"
    "padding:.7em 1em;font-size:13px;line-height:1.45"
)
_CELL = "padding:.15em .9em .15em 0;border:0;border-bottom:1px solid rgba(128,128,128,.25);white-space:nowrap;"


def element(tag: str, /, *content: Content, **attributes: Attribute) -> Html:
    """An element with escaped content and attributes.

    Underscores of attributes become dashes, and one at the end is dropped: ``class_="a"``, ``stroke_width=2``. None and
    False leave an attribute out, True writes its name alone. Numbers keep two decimals.

    Examples:
        >>> from nestling.markup import element
        >>> element("p", "a < b", class_="note")
        '<p class="note">a &lt; b</p>'
    """
    written = "".join(_attribute(name, value) for name, value in attributes.items())
    if tag in _EMPTY:
        return Html(f"<{tag}{written}>")
    return Html(f"<{tag}{written}>{html(*content)}</{tag}>")


def html(*content: Content) -> Html:
    """Several pieces in a row, each escaped unless it is HTML."""
    return Html("".join(_piece(piece) for piece in content))


def html_table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    names: int = 1,
    caption: str | None = None,
    styled: bool = False,
) -> Html:
    """A table whose first ``names`` columns are words, each row named by its first cell, and whose others are numbers.

    ``styled`` writes the look into every element, for a notebook, which has no style sheet of ours.
    """

    def look(column: int) -> str | None:
        return f"{_CELL}text-align:{'left' if column < names else 'right'}" if styled else None

    def cell(column: int, text: str, *, head: bool = False) -> Html:
        is_name = head or (column == 0 and names > 0)
        scope = ("col" if head else "row") if is_name else None
        kind = "th" if is_name else "td"
        return element(kind, text, scope=scope, style=look(column), class_=None if column < names else "number")

    heads = element("tr", [cell(column, text, head=True) for column, text in enumerate(header)])
    body = [element("tr", [cell(column, text) for column, text in enumerate(row)]) for row in rows]
    title = [] if caption is None else [element("caption", caption)]
    style = "border-collapse:collapse;font-variant-numeric:tabular-nums;margin:.4em 0 0" if styled else None
    return element("table", title, element("thead", heads), element("tbody", body), style=style)


def card(title: str, line: str, *content: Content) -> str:
    """What a notebook shows of an object: its name, one line, and more below."""
    head = element("strong", title)
    below = element("div", line, style="opacity:.8")
    return str(element("div", head, below, *content, style=_CARD_STYLE))


def bar(share: float, *, width: int = 120) -> Html:
    """A bar for a notebook that is filled up to a share, with a border so that it can be read without colour."""
    filled = min(1.0, max(0.0, share))
    inside = element("span", style=f"display:block;height:100%;width:{100 * filled:.1f}%;background:#0f6f8c")
    outside = f"display:inline-block;width:{width}px;height:.75em;border:1px solid #0f6f8c;border-radius:2px"
    return element("span", inside, style=outside, role="img", aria_label=f"{filled:.0%}")


def _attribute(name: str, value: Attribute) -> str:
    if value is None or value is False:
        return ""
    written = name.removesuffix("_").replace("_", "-")
    if value is True:
        return f" {written}"
    text = f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
    return f' {written}="{escape(printable(text), quote=True)}"'


def _piece(content: Content) -> str:
    if isinstance(content, Html):
        return content
    if isinstance(content, str):
        return escape(printable(content, keep="\n"), quote=True)
    return "".join(_piece(part) for part in content)


def as_data(values: Mapping[str, object]) -> Html:
    """Values as JSON for a script to read, in which no text can end the element that it stands in."""
    text = json.dumps(values, allow_nan=False, separators=(",", ":"))
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return Html(text)
