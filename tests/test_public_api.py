"""The public names and signatures against a snapshot, so that they change on purpose: run this file to rewrite it."""

import importlib
import inspect
from pathlib import Path

SNAPSHOT = Path(__file__).with_name("public_api.txt")
ROOMS = [
    "nestling",
    "nestling.data",
    "nestling.distributions",
    "nestling.models",
    "nestling.network",
    "nestling.prediction",
    "nestling.training",
]


def describe(room: str) -> list[str]:
    module = importlib.import_module(room)
    return [f"{room}.{name}{signature(getattr(module, name))}" for name in sorted(module.__all__)]


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
    return "\n".join(line for room in ROOMS for line in describe(room)) + "\n"


def test_public_api_is_the_snapshot():
    assert current() == SNAPSHOT.read_text(), f"if this is on purpose: python {Path(__file__).name}"


if __name__ == "__main__":
    SNAPSHOT.write_text(current())
