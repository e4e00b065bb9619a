"""A stand-in for torchvision, for libraries that import it and never call it here: timm, to build networks."""

import importlib.machinery
import importlib.util
import sys
import types

MODULES = ("", ".datasets", ".io", ".models", ".ops", ".ops.misc", ".transforms", ".transforms.functional", ".utils")


class _Names(type):
    """The type of a class that has every attribute, whose value is its name: an enumeration, say."""

    def __getattr__(cls, name: str) -> str:
        if name.startswith("__"):
            raise AttributeError(name)
        return name


class _StandIn(types.ModuleType):
    """A module in which every name is an empty class."""

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Names(name, (), {})


def stand_in_for_torchvision() -> None:
    """Have ``import torchvision`` succeed where it is not installed; what is imported from it does nothing."""
    if "torchvision" in sys.modules or importlib.util.find_spec("torchvision") is not None:
        return
    for name in (f"torchvision{rest}" for rest in MODULES):
        module = _StandIn(name)
        module.__spec__, module.__path__ = importlib.machinery.ModuleSpec(name, None), []
        parent, _, own = name.rpartition(".")
        sys.modules[name] = module
        if parent:
            setattr(sys.modules[parent], own, module)
