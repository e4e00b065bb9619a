"""A whole page: its head with style and script inside, the sections, and the data that the script reads."""

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from nestling.markup import Content, Html, as_data, element
from nestling.version import __version__

_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
"""What a browser may load for the page: nothing but what is in the file."""


def document(title: str, subtitle: str, sections: Sequence[Html], data: Mapping[str, object], bar: Content = ()) -> str:
    """The page as text. ``bar`` stays in view while the sections are scrolled; ``data`` is what the script follows."""
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        element("title", f"{title}: nestling report"),
        Html(f"<style>{_file('page.css')}</style>"),
    )
    top = element(
        "header",
        element("p", "nestling report", class_="brand"),
        element("h1", title),
        element("p", subtitle, class_="subtitle"),
    )
    foot = element(
        "footer", element("p", f"Written by nestling {__version__}. This page needs no network and sends nothing.")
    )
    body = element(
        "body",
        element("a", "Skip to the content", href="#content", class_="skip"),
        _PATTERNS,
        top,
        element("main", bar, *sections, id="content"),
        foot,
        element("script", as_data(data), type="application/json", id="data"),
        Html(f"<script>{_file('page.js')}</script>"),
    )
    return f"<!doctype html>\n{element('html', head, body, lang='en')}\n"


def summary(cards: Sequence[tuple[str, str, Content]]) -> Html:
    """The questions in short, each with its answer and a link to its section: (section, question, answer)."""
    items = [
        element("li", element("a", element("strong", question), element("span", answer), href=f"#{name}"))
        for name, question, answer in cards
    ]
    return element("nav", element("ul", items), class_="summary", aria_label="Questions")


@cache
def _file(name: str) -> str:
    return Path(__file__).with_name(name).read_text()


_PATTERNS = element(
    "svg",
    element(
        "defs",
        element(
            "pattern",
            element("rect", width=6, height=6, class_="hatch-ground"),
            element("path", d="M-1,1 l2,-2 M0,6 l6,-6 M5,7 l2,-2", class_="hatch-lines"),
            id="hatch",
            width=6,
            height=6,
            patternUnits="userSpaceOnUse",
        ),
    ),
    width=0,
    height=0,
    class_="patterns",
    aria_hidden="true",
)
"""The hatching that tells boxes apart without colour."""
