"""Where a network came from: a name of the library's or a user's ``module:function``, with the options it was given."""

import importlib
import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from nestling.errors import ArgumentError

_ATTRIBUTE = "built_as"


@dataclass(frozen=True)
class Source:
    """What ``build`` was called with: enough to build the same network again."""

    name: str
    options: Mapping[str, Any]

    @property
    def is_code(self) -> bool:
        """Whether building it runs code of the user's, rather than the library's."""
        return ":" in self.name


def source_of(module: nn.Module) -> Source | None:
    """What a network was built from, if ``build`` made it and its options can be written as JSON."""
    source = getattr(module, _ATTRIBUTE, None)
    return source if isinstance(source, Source) else None


def remember(module: nn.Module, source: Source) -> nn.Module:
    """Note on a network what it was built from; options that JSON can't hold are not remembered."""
    try:
        options = json.loads(json.dumps(dict(source.options), allow_nan=False))
    except (TypeError, ValueError):
        return module
    if options == _with_lists(dict(source.options)):
        setattr(module, _ATTRIBUTE, Source(source.name, options))
    return module


def _with_lists(value: object) -> object:
    """A value as it comes back from JSON if JSON can hold it: tuples are lists, and nothing else changes."""
    if isinstance(value, dict):
        return {key: _with_lists(own) for key, own in value.items()}
    return [_with_lists(own) for own in value] if isinstance(value, tuple | list) else value


def function_at(place: str) -> Callable[..., nn.Module]:
    """The function that ``package.module:function`` names."""
    path, _, name = place.partition(":")
    try:
        found: object = importlib.import_module(path)
    except ImportError as error:
        given = f"{place!r}, whose module can't be imported ({error})"
        raise ArgumentError("model", given, "package.module:function", "Run in the folder that holds it.") from None
    except (ValueError, TypeError):
        raise ArgumentError("model", repr(place), "package.module:function", "Name the module first.") from None
    for part in name.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise ArgumentError("model", repr(place), f"a function that {path} has", "Check its spelling.")
    return found


def call(name: str, function: Callable[..., nn.Module], options: Mapping[str, Any]) -> nn.Module:
    """Call a function with options that it has."""
    known = inspect.signature(function).parameters
    takes_any = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in known.values())
    for option in options:
        if option not in known and not takes_any:
            raise ArgumentError(f"option of {name}", option, f"one of {', '.join(known)}", "Check its spelling.")
    lacking = [
        parameter.name
        for parameter in known.values()
        if parameter.default is inspect.Parameter.empty
        and parameter.kind not in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        and parameter.name not in options
    ]
    if lacking:
        given, needed = f"no {', '.join(lacking)}", f"a value for each of {', '.join(lacking)}"
        raise ArgumentError(f"options of {name}", given, needed, "Pass them, or give the function defaults.")
    built: object = function(**options)
    if not isinstance(built, nn.Module):
        given = f"{name}, which gives a {type(built).__name__}"
        raise ArgumentError("model", given, "a function that gives an nn.Module", "Return the network itself.")
    return built
