"""The page as one document: its style and script stand in it, and the widths of the network."""

from base64 import b64encode
from functools import cache
from hashlib import sha256
from pathlib import Path
from urllib.parse import urlencode

from nestling.markup import Html, element, html
from nestling.service.engine import Engine


def page(engine: Engine, name: str, *, has_cascade: bool = False) -> str:
    """The page for a network, as HTML."""
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", f"{name} · nestling"),
        element("style", Html(_file("page.css"))),
    )
    body = element("body", _main(engine, name, has_cascade), element("script", Html(_file("page.js"))))
    return html(Html("<!doctype html>"), element("html", head, body, lang="en"))


def _main(engine: Engine, name: str, has_cascade: bool) -> Html:
    widths = [element("option", "as the load allows", value="")]
    if has_cascade:
        widths.append(element("option", "as the fitted cascade decides", value=urlencode({"confidence": "fitted"})))
    widths += [
        element("option", width.name, value=urlencode({"width": width.name})) for width in reversed(engine.widths)
    ]
    drop = element(
        "label",
        element("span", "Choose an image, or drop it here", class_="lead"),
        element("input", type="file", id="file", accept="image/*"),
        element("img", id="shown", alt="The image that was chosen", hidden=True),
        class_="drop",
        id="drop",
    )
    form = element(
        "form",
        drop,
        element("div", element("label", "Width", for_="width"), element("select", widths, id="width"), class_="field"),
        element(
            "div",
            element("label", "Token, if the service asks for one", for_="token"),
            element("input", type="password", id="token", autocomplete="off"),
            class_="field",
        ),
        element("button", "Ask", type="submit"),
        id="form",
    )
    answer = element(
        "section",
        element("h2", "Answer"),
        element("div", element("p", "Nothing was asked yet.", class_="soft"), id="answer"),
        aria_live="polite",
    )
    header = element("header", element("p", "nestling", class_="brand"), element("h1", name))
    return element("main", header, element("div", form, answer, class_="columns"))


@cache
def _file(name: str) -> str:
    return Path(__file__).with_name(name).read_text()


def _digest(name: str) -> str:
    return f"'sha256-{b64encode(sha256(_file(name).encode()).digest()).decode()}'"


def content_policy() -> str:
    """What the page may load and run: its own style and script, and this service."""
    own = f"style-src {_digest('page.css')}; script-src {_digest('page.js')}"
    return f"default-src 'none'; {own}; img-src blob:; connect-src 'self'; base-uri 'none'; form-action 'none'"
