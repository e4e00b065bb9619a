"""What the sections of a page are made of: figures with their tables, panels that follow the slider, legends."""

from collections.abc import Sequence

from nestling.markup import Content, Html, element, html
from nestling.report.page.drawing import swatch


def section(name: str, question: str, answer: Content, *content: Content) -> Html:
    """A section that begins with a question and a short answer."""
    title = element("h2", question, id=f"{name}-title")
    return element(
        "section", title, element("p", answer, class_="answer"), *content, id=name, aria_labelledby=f"{name}-title"
    )


def figure(
    title: str, about: Content, *content: Content, numbers: Html | None = None, class_: str | None = None
) -> Html:
    """A picture with its title, what it shows, and the table of its numbers."""
    caption = element("figcaption", element("h3", title), element("p", about))
    below = [] if numbers is None else folded(f"Numbers: {title}", numbers)
    return element("figure", caption, element("div", *content, below, class_="body"), class_=class_)


def folded(summary: str, *content: Content) -> Html:
    """Content that is shown when its summary is opened; tables in it can be scrolled sideways."""
    inside = element("div", *content, class_="scrolled", tabindex="0", role="region", aria_label=summary)
    return element("details", element("summary", summary), inside)


def empty(words: Content) -> Html:
    """What stands where there is nothing to show."""
    return element("p", words, class_="empty")


def by_network(panels: Sequence[Html], first: int) -> Html:
    """One panel per network, of which only that of the chosen one is shown."""
    return html(
        *(
            element("div", panel, data_network=str(number), hidden=number != first)
            for number, panel in enumerate(panels)
        )
    )


def following(key: str, words: str, tag: str = "span", class_: str | None = None) -> Html:
    """Words that the script replaces by those of the chosen network; ``words`` are those of the first one."""
    return element(tag, words, data_words=key, class_=class_)


def legend(entries: Sequence[tuple[str, str, str, str]]) -> Html:
    """Labels with how each is drawn: (label, kind of marker or box, class, dashes)."""
    items = [element("li", swatch(kind, class_, dash), " ", label) for label, kind, class_, dash in entries]
    return element("ul", items, class_="legend")


def code(text: Content) -> Html:
    """A command or a program to be copied."""
    return element("pre", element("code", text), tabindex="0")


def tile(name: str, value: Content, remark: Content, *, about: str = "") -> Html:
    """A figure in large letters, with what it is above and a remark below."""
    dt = element("dt", name, title=about or None)
    return element(
        "div", dt, element("dd", value, class_="value"), element("dd", remark, class_="remark"), class_="tile"
    )
