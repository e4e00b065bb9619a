"""The public names and signatures against a snapshot, so that they change on purpose: run this file to rewrite it."""

import ast
import importlib
import importlib.util
import inspect
from functools import cached_property
from pathlib import Path

SNAPSHOT = Path(__file__).with_name("public_api.txt")
ROOT = SNAPSHOT.parent.parent
FOR_THE_COMMAND_LINE = "nestling.commands"
"""The one room with an `__all__` that no program imports."""


def public_rooms() -> list[str]:
    """The package and each of its rooms that has an `__all__`."""
    rooms = sorted(f"nestling.{path.parent.name}" for path in ROOT.glob("src/nestling/*/__init__.py"))
    return [room for room in ("nestling", *rooms) if hasattr(importlib.import_module(room), "__all__")]


def described() -> list[str]:
    rooms = [room for room in public_rooms() if room != FOR_THE_COMMAND_LINE]
    return [line for room in rooms for line in describe(room)]


def describe(room: str) -> list[str]:
    """The names of a room with their arguments, and what classes have, except at the first door, which repeats them."""
    module, lines = importlib.import_module(room), list[str]()
    for name in sorted(module.__all__):
        item = getattr(module, name)
        lines.append(f"{room}.{name}{signature(item)}")
        if isinstance(item, type) and room != "nestling":
            lines += [f"{room}.{name}.{member}" for member in members(item)]
    return lines


def members(kind: type) -> list[str]:
    """Methods with their arguments, and properties, that a class or a parent of ours defines."""
    ours = [parent for parent in reversed(kind.__mro__) if parent.__module__.startswith("nestling")]
    found = {name: item for parent in ours for name, item in vars(parent).items() if not name.startswith("_")}
    plain = {name: getattr(item, "__func__", item) for name, item in found.items()}  # of class and static methods
    called = {name: signature(item) for name, item in plain.items() if inspect.isroutine(item)}
    read = {name: "" for name, item in plain.items() if isinstance(item, property | cached_property)}
    return [f"{name}{arguments}" for name, arguments in sorted((called | read).items())]


def signature(item: object) -> str:
    """Arguments and defaults, without types, which the type checker watches over."""
    if not callable(item) or (isinstance(item, type) and issubclass(item, Exception)):
        return ""
    parameters = inspect.signature(item).parameters.values()
    return str(inspect.Signature([bare(parameter) for parameter in parameters]))


def bare(parameter: inspect.Parameter) -> inspect.Parameter:
    default = parameter.default
    named = Name(default.__name__) if inspect.isfunction(default) else default
    return parameter.replace(annotation=inspect.Parameter.empty, default=named)


class Name(str):
    """Shows as itself, without quotes."""

    __repr__ = str.__str__


def current() -> str:
    return "\n".join(described()) + "\n"


def test_public_api_is_the_snapshot():
    assert current() == SNAPSHOT.read_text(), f"if this is on purpose: python {Path(__file__).name}"


def test_the_reference_has_a_page_for_every_room():
    """Whose names are the snapshot; the one for the command line is described by `--help`."""
    hooks = ast.parse((ROOT / "docs" / "site_hooks.py").read_text())
    (rooms,) = (node.value for node in hooks.body if isinstance(node, ast.Assign) and node.targets[0].id == "ROOMS")
    assert {*ast.literal_eval(rooms), FOR_THE_COMMAND_LINE} == set(public_rooms())


def test_the_reference_has_every_public_name():
    """Each on some page, by the place where it is defined; packages of the package have pages themselves."""
    spec = importlib.util.spec_from_file_location("site_hooks", ROOT / "docs" / "site_hooks.py")
    hooks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hooks)
    shown = {line.removeprefix("::: ") for text in hooks._reference().values() for line in text.splitlines()}
    for room in set(public_rooms()) - {FOR_THE_COMMAND_LINE}:
        module = importlib.import_module(room)
        names = [name for name in module.__all__ if not inspect.ismodule(getattr(module, name))]
        assert {hooks._home(module, name) for name in names} <= shown


if __name__ == "__main__":
    SNAPSHOT.write_text(current())
