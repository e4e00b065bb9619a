"""Sizes in the code of modules that are attributes of them: which attributes a number in the graph came from."""

import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx, nn
from torch.overrides import TorchFunctionMode

from nestling.torch_parts import annotated, annotation_of, pytree, schema_of

Place = tuple[str | int, ...]
Attributes = tuple[tuple[str, int], ...]
"""Names of attributes with dots, like those of parameters (``blocks.0.attn.num_heads``), each with its value."""


@contextmanager
def noting_attributes(module: nn.Module) -> Iterator[None]:
    """Inside the ``with`` statement each node of an export notes which attributes its numbers came from.

    The whole numbers that submodules keep know their names while the code runs, and so do their products. Layers of
    torch itself take their sizes from tensors, or are registered, and are left out.
    """
    sizes = [
        (vars(submodule), key, value, f"{path}.{key}" if path else key)
        for path, submodule in module.named_modules()
        if not type(submodule).__module__.startswith("torch.nn.")
        for key, value in vars(submodule).items()
        if type(value) is int and value > 1
    ]
    try:
        for store, key, value, name in sizes:
            store[key] = _Named.of(value, ((name, value),))
        with _Noting():
            yield
    finally:
        for store, key, value, _ in sizes:
            store[key] = value


def attributes_behind(node: fx.Node) -> dict[Place, Attributes]:
    """The attributes of which each number in a node's arguments is a multiple of the product, where that is known."""
    noted = annotation_of(node)
    places = [] if noted is None or schema_of(node.target) is None else list(_numbers(node))
    if noted is None or [number for _, number in places] != [number for number, _ in noted]:
        return {}  # an operation that the noted function calls, with other arguments
    return {place: names for (place, _), (_, names) in zip(places, noted, strict=True) if names}


def _numbers(node: fx.Node) -> Iterator[tuple[Place, int]]:
    """Every whole number in the arguments of a call, with its place."""
    arguments = schema_of(node.target).arguments
    given = [(argument.name, value) for argument, value in zip(arguments, node.args, strict=False)]
    for name, value in [*given, *node.kwargs.items()]:
        entries = enumerate(value) if isinstance(value, list | tuple) else ()
        leaves: list[tuple[Place, Any]] = [((name, i), entry) for i, entry in entries] or [((name,), value)]
        yield from ((place, leaf) for place, leaf in leaves if _is_number(leaf))


class _Named(int):
    """A whole number that knows the attributes that were multiplied to make it."""

    names: Attributes = ()

    @classmethod
    def of(cls, value: int, names: Attributes) -> "_Named":
        """The number with these names."""
        number = cls(value)
        number.names = names
        return number

    def __mul__(self, other: Any) -> Any:  # noqa: ANN401
        product = super().__mul__(other)
        return product if product is NotImplemented else self.of(product, self.names + _names_of(other))

    __rmul__ = __mul__


def _with_symbols(name: str) -> None:
    """Let an operation of named numbers take a symbolic size too, which torch lets meet plain numbers alone."""
    of_numbers, is_reflected = getattr(_Named, name), name.startswith("__r")
    operation = getattr(operator, name.replace("__r", "__", 1))

    def apply(number: int, other: Any) -> Any:  # noqa: ANN401
        if not isinstance(other, torch.SymInt):
            return of_numbers(number, other)
        return operation(other, int(number)) if is_reflected else operation(int(number), other)

    setattr(_Named, name, apply)


for _arithmetic in ("add", "sub", "mul", "floordiv", "truediv", "mod", "pow"):
    _with_symbols(f"__{_arithmetic}__")
    _with_symbols(f"__r{_arithmetic}__")
for _comparison in ("lt", "le", "gt", "ge", "eq", "ne"):
    _with_symbols(f"__{_comparison}__")


class _Noting(TorchFunctionMode):
    """Annotates the nodes of each call of torch with the numbers that it was given, if one of them is named."""

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401
        numbers = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if _is_number(leaf)]
        if not any(map(_names_of, numbers)):
            return func(*args, **kwargs or {})
        args, kwargs = pytree.tree_map_only(_Named, int, (args, kwargs))
        with annotated([(int(number), _names_of(number)) for number in numbers]):
            return func(*args, **kwargs or {})


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _names_of(number: object) -> Attributes:
    return number.names if isinstance(number, _Named) else ()
