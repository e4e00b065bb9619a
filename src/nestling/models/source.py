"""How a network was built: the name of a library network or a user's ``module:function``, and the options."""

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
    """The arguments of ``build``, which are enough to build the same network again.

    Attributes:
        name: The name of a network, or ``package.module:function``.
        options: What was passed to its constructor, as JSON can hold it.

    Examples:
        >>> nl.models.Source("mlp", {"hidden": [64, 32]}).is_code, nl.models.Source("mine.nets:small", {}).is_code
        (False, True)
    """

    name: str
    options: Mapping[str, Any]

    @property
    def is_code(self) -> bool:
        """Whether building the network runs the user's code, and not only the library's."""
        return ":" in self.name


def source_of(module: nn.Module) -> Source | None:
    """How a network was built, if ``build`` made it and its options can be written as JSON.

    Args:
        module: A network.

    Returns:
        The name and the options; None for a network that was made in another way.

    Examples:
        >>> nl.models.source_of(module).name, nl.models.source_of(torch.nn.Linear(2, 2)) is None
        ('mlp', True)
    """
    source = getattr(module, _ATTRIBUTE, None)
    return source if isinstance(source, Source) else None


def remember(module: nn.Module, source: Source) -> nn.Module:
    """Record on a network what it was built from, unless JSON changes the options or can't represent them."""
    try:
        options = json.loads(json.dumps(dict(source.options), allow_nan=False))
    except (TypeError, ValueError):
        return module
    if options == _with_lists(dict(source.options)):
        setattr(module, _ATTRIBUTE, Source(source.name, options))
    return module


def _with_lists(value: object) -> object:
    """A value as it comes back from JSON, which changes tuples to lists and should change nothing else."""
    if isinstance(value, dict):
        return {key: _with_lists(item) for key, item in value.items()}
    return [_with_lists(item) for item in value] if isinstance(value, tuple | list) else value


def function_at(place: str) -> Callable[..., nn.Module]:
    """The function that ``package.module:function`` names."""
    path, _, name = place.partition(":")
    try:
        attribute: object = importlib.import_module(path)
    except ImportError as error:
        given = f"{place!r}, whose module can't be imported ({error})"
        raise ArgumentError("model", given, "package.module:function", "Run in the module's folder.") from None
    except (ValueError, TypeError):
        raise ArgumentError("model", repr(place), "package.module:function", "Name the module first.") from None
    for part in name.split("."):
        attribute = getattr(attribute, part, None)
    if not callable(attribute):
        raise ArgumentError("model", repr(place), f"a function that {path} has", "Check its spelling.")
    return attribute


def call(name: str, function: Callable[..., nn.Module], options: Mapping[str, Any]) -> nn.Module:
    """Call a function, after checking that it takes these options and that none is missing."""
    parameters = inspect.signature(function).parameters
    takes_any = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())
    for option in options:
        if option not in parameters and not takes_any:
            raise ArgumentError(f"option of {name}", option, f"one of {', '.join(parameters)}", "Check its spelling.")
    missing = [
        parameter.name
        for parameter in parameters.values()
        if parameter.default is inspect.Parameter.empty
        and parameter.kind not in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        and parameter.name not in options
    ]
    if missing:
        given, needed = f"no {', '.join(missing)}", f"a value for each of {', '.join(missing)}"
        raise ArgumentError(f"options of {name}", given, needed, "Pass them, or give the function defaults.")
    network: object = function(**options)
    if not isinstance(network, nn.Module):
        given = f"{name}, which gives a {type(network).__name__}"
        raise ArgumentError("model", given, "a function that gives an nn.Module", "Return the network itself.")
    return network
