"""Twins of a module: the same code with other tensors in its hands, so that a call writes nothing on the module."""

import gc
import operator
import weakref
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import chain
from types import BuiltinFunctionType, CellType, FunctionType, MethodType, ModuleType
from typing import Any

from torch import Tensor, nn

from nestling.distributions.weights import Worked
from nestling.torch_parts import STORES

STANDS_FOR = "_stands_for"
"""Attribute of a part of a twin: the identity of the part that it stands for."""

_SHARED = frozenset(vars(nn.Module())) - {"training", *STORES}
"""What torch keeps on every module beside its tensors and parts: hooks, which a twin has in common with it."""
_OUTSIDE = (type, ModuleType, BuiltinFunctionType, str, bytes, int, float, Tensor)


def is_separable(module: nn.Module) -> bool:
    """Whether no part of a twin still leads to the module that it stands for, by way of some object of its own."""
    twin = Twin(module, {})
    return not _leads_to(twin.module, twin.originals)


class Twin:
    """A copy of a module in structure: its parts are new, its tensors the same unless they were replaced.

    A call of it is a call of ``module``, the copy; ``tensors`` are those to replace, by the identity of the old one.
    What is no module, and holds none, is the same object in both. What the module's code writes on itself while it
    runs stays on the twin.
    """

    def __init__(self, module: nn.Module, tensors: Mapping[int, Tensor]) -> None:
        self._tensors = tensors
        self._originals: list[nn.Module] = []
        self._parts: dict[int, nn.Module] = {}
        self._made: dict[int, tuple[Any, Any]] = {}
        self.module = self._of_module(module)
        self._watched = [own for part in self._originals for own in (vars(part), *(vars(part)[n] for n in STORES))]
        self._watched += [old for old, new in self._made.values() if new is not old and isinstance(old, list | dict)]
        self._contents = list(chain.from_iterable(map(_contents, self._watched)))

    @property
    def originals(self) -> set[int]:
        """The identities of the modules that have been doubled."""
        return set(self._parts)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        """Run the twin."""
        return self.module(*args, **kwargs)

    def part(self, original: nn.Module) -> nn.Module:
        """What stands for a part of the module."""
        return self._parts[id(original)]

    def is_fresh(self) -> bool:
        """Whether every attribute, tensor and part of the module is still the one that the twin was made with."""
        same = map(operator.is_, chain.from_iterable(map(_contents, self._watched)), self._contents)
        return sum(map(len, self._watched)) == len(self._contents) and all(same)

    def _of_module(self, module: nn.Module) -> nn.Module:
        known = self._parts.get(id(module))
        if known is not None:
            return known
        copy: nn.Module = object.__new__(type(module))
        self._originals.append(module)
        self._parts[id(module)] = copy
        own = vars(copy)
        for name, value in vars(module).items():
            if name in STORES:
                own[name] = type(value)((key, self._of(held)) for key, held in value.items())
            else:
                own[name] = value if name in _SHARED else self._of(value)
        own[STANDS_FOR] = vars(module).get(STANDS_FOR, id(module))
        return copy

    def _of(self, value: Any) -> Any:  # noqa: ANN401
        """The value itself, or its twin if it is or holds a module or a tensor that is replaced."""
        if isinstance(value, nn.Module):
            return self._of_module(value)
        if isinstance(value, Tensor):
            return self._tensors.get(id(value), value)
        rebuild = _REBUILD.get(type(value))
        if rebuild is None:
            return value
        known = self._made.get(id(value))
        if known is None:
            self._made[id(value)] = value, value  # one that holds itself
            known = self._made[id(value)] = value, rebuild(self, value)
        return known[1]

    def _all(self, values: Any) -> list[Any] | None:  # noqa: ANN401
        """The twins of several values, None if all of them are the values themselves."""
        given = list(values)
        found = [self._of(value) for value in given]
        return None if all(a is b for a, b in zip(given, found, strict=True)) else found

    def _of_sequence(self, value: Any) -> Any:  # noqa: ANN401
        found = self._all(value)
        return value if found is None else type(value)(found)

    def _of_dict(self, value: dict[Any, Any]) -> dict[Any, Any]:
        found = self._all(value.values())
        return value if found is None else type(value)(zip(value, found, strict=True))

    def _of_method(self, value: MethodType) -> MethodType:
        owner = self._of(value.__self__)
        return value if owner is value.__self__ else MethodType(value.__func__, owner)

    def _of_partial(self, value: "partial[Any]") -> "partial[Any]":
        found = self._all((value.func, value.args, value.keywords))
        return value if found is None else partial(found[0], *found[1], **found[2])

    def _of_function(self, value: FunctionType) -> FunctionType:
        cells = value.__closure__ or ()
        found = self._all(cell.cell_contents for cell in cells if _is_set(cell))
        if found is None or len(found) < len(cells):
            return value
        closure = tuple(CellType(content) for content in found)
        copy = FunctionType(value.__code__, value.__globals__, value.__name__, value.__defaults__, closure)
        copy.__kwdefaults__ = value.__kwdefaults__
        return copy


_REBUILD: dict[type, Any] = {
    list: Twin._of_sequence,
    tuple: Twin._of_sequence,
    set: Twin._of_sequence,
    dict: Twin._of_dict,
    MethodType: Twin._of_method,
    partial: Twin._of_partial,
    FunctionType: Twin._of_function,
    Worked: lambda twin, value: Worked(value.default_factory),
}


def _contents(held: Any) -> Iterable[Any]:  # noqa: ANN401
    """The values of a dictionary, or the items of a list."""
    return held.values() if isinstance(held, dict) else held


def _leads_to(start: object, targets: set[int]) -> bool:
    """Whether one of the objects can be reached from another, other than through classes and globals."""
    seen, waiting = {id(start)}, [start]
    while waiting:
        for value in _held_by(waiting.pop()):
            if id(value) in targets or type(value) in weakref.ProxyTypes:
                return True
            if id(value) not in seen and not isinstance(value, _OUTSIDE):
                seen.add(id(value))
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
