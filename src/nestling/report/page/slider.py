"""The slider over budgets, which stays in view while the page is scrolled."""

from collections.abc import Sequence

from nestling.markup import Html, element
from nestling.report.page.parts import following


def slider(cost: str, words: Sequence[str], ends: Sequence[str], first: int) -> Html:
    """A slider over some budgets, smallest first, with what is chosen in words; it starts at number ``first``."""
    control = element(
        "input",
        type="range",
        id="budget",
        min=0,
        max=len(words) - 1,
        step=1,
        value=first,
        aria_valuetext=words[first],
        aria_describedby="budget-about",
        autocomplete="off",
    )
    about = "Choose a budget: every figure below is of the best network within it."
    return element(
        "div",
        element("label", f"Budget: {cost}", for_="budget"),
        element("span", ends[0], class_="end", aria_hidden="true"),
        element(
            "div",
            control,
            element("div", [element("i") for _ in words], class_="ticks", aria_hidden="true"),
            class_="track-of-slider",
        ),
        element("span", ends[-1], class_="end", aria_hidden="true"),
        following("budget", words[first], "output"),
        element("span", about, id="budget-about", class_="hidden"),
        class_="slider",
    )
