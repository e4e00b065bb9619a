"""Inputs and targets of a batch, in the forms in which loaders give them, and the errors of those that do not fit."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from torch import Tensor

from nestling.errors import ArgumentError, DtypeError, NestlingError, ShapeError
from nestling.torch_parts import pytree

Read = Callable[[Any], Any]
"""A function of the user's that makes a pair (inputs, targets) of a batch."""
LABELS = "labels"
"""The key of the targets in a batch that is a dictionary, as Hugging Face's collators have it."""
Call = tuple[tuple[Any, ...], dict[str, Any]]
"""What a network is called with: its arguments by position, and those by name."""


def as_call(example: Any) -> Call:  # noqa: ANN401
    """An example as positional and keyword arguments."""
    if isinstance(example, Mapping):
        return (), dict(example)
    return (tuple(example), {}) if isinstance(example, tuple | list) else ((example,), {})


def pair_of(batch: Any, kind: type = Tensor) -> tuple[Any, Any]:  # noqa: ANN401
    """The inputs and targets of a batch: a pair, or a dictionary whose other entries than ``labels`` are the inputs.

    ``kind`` is the type that targets must have.
    """
    is_pair = isinstance(batch, tuple | list) and len(batch) == 2
    is_labelled = isinstance(batch, Mapping) and LABELS in batch
    targets = batch[1] if is_pair else batch[LABELS] if is_labelled else None
    if not (is_pair or is_labelled) or not isinstance(targets, kind):
        needed = "a pair (inputs, targets) or a dictionary with labels, the targets as a tensor"
        raise DtypeError("batch", _described(batch), needed, "Pass batch=, a function that makes a pair of a batch.")
    return inputs_of(batch), targets


def inputs_of(batch: Any) -> Any:  # noqa: ANN401
    """The inputs of a batch, which may have targets: of a pair the first, of a dictionary all but the ``labels``."""
    if isinstance(batch, Mapping):
        return {key: value for key, value in batch.items() if key != LABELS}
    inputs = batch[0] if isinstance(batch, tuple | list) else batch
    return dict(inputs) if isinstance(inputs, Mapping) else inputs


def examples_of(x: Any, part: slice | Tensor, total: int) -> Any:  # noqa: ANN401
    """Some of the ``total`` examples of an input: a part of every tensor in it that has the batch as its first axis."""
    return pytree.tree_map_only(Tensor, lambda t: t[part] if t.ndim and t.shape[0] == total else t, x)


def read_by(loader: Any, read: Read | None) -> Any:  # noqa: ANN401
    """A loader whose batches are read by a function; without one, the loader itself."""
    if read is None or loader is None:
        return loader
    return map(read, loader) if isinstance(loader, Iterator) else _Reading(loader, read)


class _Reading:
    def __init__(self, loader: Iterable[Any], read: Read) -> None:
        self._loader, self._read = loader, read

    def __iter__(self) -> Iterator[Any]:
        return map(self._read, self._loader)


def check_like_example(example: Call, call: Call, fault: Exception) -> None:
    """After a call that failed: raise the error that names how its inputs differ from the example, if they do."""
    if isinstance(fault, NestlingError):
        return
    wanted, given = _named(example), _named(call)
    if wanted.keys() != given.keys():
        needed, advice = f"{_listed(example)}, as in the example given to nest", "Rename or drop some, or pass batch=."
        raise ArgumentError("inputs", _listed(call), needed, advice) from fault
    for name, like in wanted.items():
        tensor = given[name]
        if not (isinstance(like, Tensor) and isinstance(tensor, Tensor)):
            continue
        if tensor.dtype != like.dtype:
            needed, advice = f"{like.dtype}, as in the example given to nest", f"Convert it with .to({like.dtype})."
            raise DtypeError(name, f"a tensor of {tensor.dtype}", needed, advice) from fault
        if tensor.shape[1:] != like.shape[1:] or tensor.ndim != like.ndim:
            needed = f"of shape {_shape(like)}, as the example given to nest"
            advice = "Check the loader; another size is possible only where the network's code takes it."
            raise ShapeError(name, f"shape {_shape(tensor)}", needed, advice) from fault


def _shape(tensor: Tensor) -> str:
    return f"({', '.join(['batch', *map(str, tensor.shape[1:])])})" if tensor.ndim else "()"


def _named(call: Call) -> dict[str, Any]:
    args, kwargs = call
    return {"inputs" if len(args) == 1 else f"input {number}": value for number, value in enumerate(args)} | kwargs


def _listed(call: Call) -> str:
    args, kwargs = call
    by_position, by_name = f"{len(args)} by position", f"{', '.join(kwargs)} by name"
    return " and ".join([by_position] * bool(args) + [by_name] * bool(kwargs)) or "nothing"


def _described(batch: object) -> str:
    if isinstance(batch, Mapping):
        return f"a {type(batch).__name__} with {', '.join(map(str, batch)) or 'nothing'}"
    return f"a {type(batch).__name__}" + (f" of {len(batch)}" if isinstance(batch, tuple | list) else "")
