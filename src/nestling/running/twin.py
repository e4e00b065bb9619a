"""Twins of a module: copies that run the same code on other tensors, so that a call writes nothing on the module."""

import gc
import operator
import weakref
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import chain
from types import BuiltinFunctionType, CellType, FunctionType, MethodType, ModuleType
from typing import Any

from torch import Tensor, nn

from nestling.distributions.weights import Worked
from nestling.torch_parts import STORES

STANDS_FOR = "_stands_for"
"""Attribute of a submodule of a twin: the identity of the submodule that it stands for."""

_SHARED = frozenset(vars(nn.Module())) - {"training", *STORES}
"""What torch keeps on every module beside its tensors and submodules: hooks, which a twin shares with the original."""
_OUTSIDE = (type, ModuleType, BuiltinFunctionType, str, bytes, int, float, Tensor)


def is_separable(module: nn.Module) -> bool:
    """Whether nothing that a twin holds still leads to the module that it stands for."""
    twin = Twin(module, {})
    return not _leads_to(twin.module, twin.originals)


class Twin:
    """A copy of a module's structure: its submodules are new, its tensors the same unless they are replaced.

    Calling the twin calls ``module``, the copy. ``tensors`` are the replacements, by the identity of the old tensor.
    Objects that are no modules, and hold none, are the same in both. What the module's code writes on itself while it
    runs stays on the twin.
    """

    def __init__(self, module: nn.Module, tensors: Mapping[int, Tensor]) -> None:
        self._tensors = tensors
        self._originals: list[nn.Module] = []
        self._copies: dict[int, nn.Module] = {}
        self._rebuilt: dict[int, tuple[Any, Any]] = {}
        self.module = self._twin_of_module(module)
        attributes = map(vars, self._originals)
        watched = [held for store in attributes for held in (store, *(store[name] for name in STORES))]
        watched += [old for old, new in self._rebuilt.values() if new is not old and isinstance(old, list | dict)]
        self._watched = [held.values() if isinstance(held, dict) else held for held in watched]  # follows each change
        self._contents = list(chain.from_iterable(self._watched))

    @property
    def originals(self) -> set[int]:
        """The identities of the modules that were copied."""
        return set(self._copies)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        """Run the twin."""
        return self.module(*args, **kwargs)

    def counterpart(self, original: nn.Module) -> nn.Module:
        """The twin's submodule that stands for a submodule of the original."""
        return self._copies[id(original)]

    def is_fresh(self) -> bool:
        """Whether every attribute, tensor and submodule of the original is still the one the twin was made from."""
        same = map(operator.is_, chain.from_iterable(self._watched), self._contents)
        return sum(map(len, self._watched)) == len(self._contents) and all(same)

    def _twin_of_module(self, module: nn.Module) -> nn.Module:
        copied = self._copies.get(id(module))
        if copied is not None:
            return copied
        copy: nn.Module = object.__new__(type(module))
        self._originals.append(module)
        self._copies[id(module)] = copy
        attributes = vars(copy)
        for name, value in vars(module).items():
            if name in STORES:
                attributes[name] = type(value)((key, self._twin_of(held)) for key, held in value.items())
            else:
                attributes[name] = value if name in _SHARED else self._twin_of(value)
        attributes[STANDS_FOR] = vars(module).get(STANDS_FOR, id(module))
        return copy

    def _twin_of(self, value: Any) -> Any:  # noqa: ANN401
        """The value's twin, if it is or holds a module or a replaced tensor; else the value itself."""
        if isinstance(value, nn.Module):
            return self._twin_of_module(value)
        if isinstance(value, Tensor):
            return self._tensors.get(id(value), value)
        rebuild = _REBUILD.get(type(value))
        if rebuild is None:
            return value
        rebuilt = self._rebuilt.get(id(value))
        if rebuilt is None:
            self._rebuilt[id(value)] = value, value  # for a value that holds itself
            rebuilt = self._rebuilt[id(value)] = value, rebuild(self, value)
        return rebuilt[1]

    def _twins_of(self, originals: Any) -> list[Any] | None:  # noqa: ANN401
        """The twins of several values, or None if all are the values themselves."""
        values = list(originals)
        twins = [self._twin_of(value) for value in values]
        return None if all(a is b for a, b in zip(values, twins, strict=True)) else twins

    def _twin_of_sequence(self, value: Any) -> Any:  # noqa: ANN401
        twins = self._twins_of(value)
        return value if twins is None else type(value)(twins)

    def _twin_of_dict(self, value: dict[Any, Any]) -> dict[Any, Any]:
        twins = self._twins_of(value.values())
        return value if twins is None else type(value)(zip(value, twins, strict=True))

    def _twin_of_method(self, value: MethodType) -> MethodType:
        owner = self._twin_of(value.__self__)
        return value if owner is value.__self__ else MethodType(value.__func__, owner)

    def _twin_of_partial(self, value: "partial[Any]") -> "partial[Any]":
        twins = self._twins_of((value.func, value.args, value.keywords))
        return value if twins is None else partial(twins[0], *twins[1], **twins[2])

    def _twin_of_function(self, value: FunctionType) -> FunctionType:
        cells = value.__closure__ or ()
        contents = self._twins_of(cell.cell_contents for cell in cells if _is_set(cell))
        if contents is None or len(contents) < len(cells):
            return value
        closure = tuple(CellType(content) for content in contents)
        copy = FunctionType(value.__code__, value.__globals__, value.__name__, value.__defaults__, closure)
        copy.__kwdefaults__ = value.__kwdefaults__
        return copy


_REBUILD: dict[type, Any] = {
    list: Twin._twin_of_sequence,
    tuple: Twin._twin_of_sequence,
    set: Twin._twin_of_sequence,
    dict: Twin._twin_of_dict,
    MethodType: Twin._twin_of_method,
    partial: Twin._twin_of_partial,
    FunctionType: Twin._twin_of_function,
    Worked: lambda twin, value: Worked(value.default_factory),
}


def _leads_to(start: object, targets: set[int]) -> bool:
    """Whether one of the targets can be reached from an object, except through classes and globals."""
    reached, waiting = {id(start)}, [start]
    while waiting:
        for value in _held_by(waiting.pop()):
            if id(value) in targets or type(value) in weakref.ProxyTypes:
                return True
            if id(value) not in reached and not isinstance(value, _OUTSIDE):
                reached.add(id(value))
                waiting.append(value)
    return False


def _held_by(value: object) -> Iterator[object]:
    if isinstance(value, FunctionType):
        yield from (cell.cell_contents for cell in value.__closure__ or () if _is_set(cell))
        yield from (value.__defaults__, value.__kwdefaults__, vars(value))
    elif isinstance(value, weakref.ReferenceType):
        yield value()
    elif isinstance(value, nn.Module):
        yield from vars(value).values()  # hooks among them
    else:
        yield from gc.get_referents(value)


def _is_set(cell: CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True
