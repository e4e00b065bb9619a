"""Packages whose names are imported when they are first asked for, so that a command pays for what it needs alone."""

import sys
from collections.abc import Mapping
from importlib import import_module
from types import ModuleType
from typing import Any


def imports_lazily(package: str, homes: Mapping[str, str]) -> None:
    """Let a package find each of its public names in the module that ``homes`` lists it under.

    Those listed under the package itself are submodules. Any other name stays what it is when a submodule of the same
    name is imported, which would otherwise take its place.
    """
    module = sys.modules[package]
    module.__class__ = _Lazy
    vars(module)[_HOMES] = {name: home for home, names in homes.items() for name in names.split()}


_HOMES = "_homes"


class _Lazy(ModuleType):
    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        home = vars(self)[_HOMES].get(name)
        if home is None:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        own = home == self.__name__
        value = vars(self)[name] = import_module(f"{home}.{name}") if own else getattr(import_module(home), name)
        return value

    def __setattr__(self, name: str, value: object) -> None:
        if not (isinstance(value, ModuleType) and name in vars(self)[_HOMES]):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*vars(self), *vars(self)[_HOMES]})
