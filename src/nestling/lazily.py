"""Packages that import a name when it is first used, so that a command loads only what it needs."""

import ast
import inspect
import sys
from importlib import import_module
from types import ModuleType
from typing import Any


def imports_lazily(package: str) -> None:
    """Make a package import each name under its ``if TYPE_CHECKING`` when the name is first used.

    Names imported from the package itself are submodules. Any other name keeps its meaning when a submodule of the same
    name is imported, which would otherwise replace it.
    """
    module = sys.modules[package]
    vars(module)[_HOMES] = _homes_in(inspect.getsource(module))
    module.__class__ = _Lazy


def _homes_in(source: str) -> dict[str, str]:
    """The module that each name comes from, by the imports in the only ``if`` statement of a file."""
    (statement,) = (node for node in ast.parse(source).body if isinstance(node, ast.If))
    imports = (node for node in statement.body if isinstance(node, ast.ImportFrom))
    return {alias.name: node.module or "" for node in imports for alias in node.names}


_HOMES = "_homes"


class _Lazy(ModuleType):
    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        home = vars(self)[_HOMES].get(name)
        if home is None:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        is_child = home == self.__name__
        value = vars(self)[name] = import_module(f"{home}.{name}") if is_child else getattr(import_module(home), name)
        return value

    def __setattr__(self, name: str, value: object) -> None:
        if not (isinstance(value, ModuleType) and name in vars(self)[_HOMES]):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*vars(self), *vars(self)[_HOMES]})
