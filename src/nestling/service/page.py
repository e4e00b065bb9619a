"""The page on which to try a network with an image."""

from nestling.markup import element
from nestling.service.engine import Engine

CONTENT_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src blob: data:; connect-src 'self'"
)


def page(engine: Engine, name: str) -> str:
    """The page as HTML."""
    return "<!doctype html>" + element("html", element("body", element("h1", name)))
