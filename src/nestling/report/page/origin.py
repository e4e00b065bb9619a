"""The section on where a run comes from: its recipe, its data and network, versions and commands."""

import json
import shlex
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from nestling.markup import Html, element, html_table
from nestling.report.page.parts import code, folded, section
from nestling.training import Recipe

_PROGRAMS = ("__main__.py", "nestling")
"""How the command line is called in a record of the environment."""
_LONGEST = 400


def origin_section(record: Mapping[str, Any], recipe: Recipe, notes: tuple[str, ...], made_here: str) -> Html:
    """Where this comes from: ``record`` is the content of recipe.json, ``made_here`` says how the page was made."""
    changed = [[name, now, usual] for name, now, usual in _entries(recipe) if now != usual]
    every = [[name, now, usual] for name, now, usual in _entries(recipe)]
    header = ["entry", "this run", "default"]
    made_by = mapping(record.get("made_by"))
    command = command_of(made_by)
    described = [
        element(
            "div",
            element("h3", "Recipe"),
            html_table(header, changed, names=3) if changed else element("p", "All defaults."),
            folded("The whole recipe", html_table(header, every, names=3)),
        ),
        element("div", element("h3", "Data and network"), html_table(["what", "value"], _about(record), names=2)),
        element("div", element("h3", "Versions"), html_table(["what", "value"], _versions(made_by), names=2)),
    ]
    lines = [element("h3", "The page was made by"), code(made_here)]
    lines = [element("h3", "The run was begun by"), code(command), *lines] if command else lines
    items = element("ul", [element("li", note) for note in notes], class_="notes")
    said = [element("h3", "Notes"), items] if notes else []
    return section(
        "origin",
        "Where does it come from?",
        "The recipe, the data, the versions and the commands, to make it again.",
        element("div", described, class_="columns"),
        *lines,
        said,
    )


def command_of(made_by: Mapping[str, Any]) -> str:
    """The command that began a run, as it is in its record; that of a program of yours if there was no command."""
    words = made_by.get("command")
    if not isinstance(words, list) or not words or not all(isinstance(word, str) for word in words):
        return ""
    program = "nestling" if words[0] in _PROGRAMS else f"python {shlex.quote(words[0])}"
    return " ".join([program, *(shlex.quote(word) for word in words[1:])])


def _entries(recipe: Recipe) -> list[tuple[str, str, str]]:
    default = Recipe()
    return [
        (field.name, short(getattr(recipe, field.name)), short(getattr(default, field.name)))
        for field in fields(Recipe)
    ]


def _about(record: Mapping[str, Any]) -> list[list[str]]:
    about, network = mapping(record.get("data")), mapping(record.get("network"))
    model, nest = mapping(network.get("model")), mapping(network.get("nest"))
    rows = {
        "data": about.get("name") or "loaders of yours",
        "task": about.get("task"),
        "loaded with": about.get("loaded_with"),
        "inputs": about.get("input_shape"),
        "classes": about.get("classes"),
        "likelihood": about.get("likelihood"),
        "network": model.get("name") or "a module of yours",
        "options of the network": model.get("options"),
        "order": nest.get("order"),
        "weights": nest.get("weights") or "plain",
        "kinds": nest.get("kinds"),
    }
    return [[name, short(value)] for name, value in rows.items() if value not in (None, [], {})]


def _versions(made_by: Mapping[str, Any]) -> list[list[str]]:
    names = ("nestling", "torch", "numpy", "python", "threads", "processes")
    return [[name, short(made_by[name])] for name in names if name in made_by]


def mapping(value: object) -> Mapping[str, Any]:
    """A value of a record that should be a dictionary; an empty one if it is none."""
    return value if isinstance(value, Mapping) else {}


def short(value: object) -> str:
    """A value as text of limited length."""
    if isinstance(value, list | tuple):
        text = ", ".join(map(str, value))
    elif isinstance(value, Mapping):
        text = ", ".join(
            f"{name}={item if isinstance(item, str) else json.dumps(item, default=str)}" for name, item in value.items()
        )
    else:
        text = str(value)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."
