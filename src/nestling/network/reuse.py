"""What a network has computed before is not computed again: an operation on the same tensors gives the same result."""

from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

_NORM = torch.ops.aten.native_batch_norm.default
_RUNNING = slice(3, 5)
"""Where that operation has its running statistics, which it writes and, in train mode, does not read."""
_SURFACE = -1


class Reuse(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Inside ``with``, looks up the result of each operation by the tensors it is given, and runs it if there is none.

    Tensors are told apart by the memory they lie in, not by what they hold, so that a network which is run again with
    some of its weights replaced computes only what depends on them. Results are kept, with every tensor they came from,
    until ``drop`` is told that what they depend on will not come again: ``place`` says how deep weights lie, and a
    result lies as deep as the deepest thing it came from. A tensor that was written to since is not the same any more.
    Without gradients only; randomness runs each time. ``num_run`` and ``num_reused`` count operations that compute.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.num_run = self.num_reused = 0
        self._known: dict[Any, tuple[Any, tuple[int, ...], Any]] = {}
        self._keys: dict[int, list[Any]] = {}
        self._depths: dict[int, int] = {}

    def place(self, depths: Iterable[tuple[Tensor, int]]) -> None:
        """Say how deep tensors lie; those that are not named lie above all."""
        self._depths.update((_memory(tensor), depth) for tensor, depth in depths)

    def drop(self, depth: int) -> None:
        """Forget every result that lies as deep as this or deeper."""
        for level in [own for own in self._keys if own >= depth]:
            for key in self._keys.pop(level):
                self._known.pop(key, None)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN204
        """Find or run one operation."""
        named = dict(kwargs or {})
        if not _is_pure(func):
            result = func(*args, **named)
            self._sink((*args, *named.values()), (result, *args))
            return result
        seen = args[: _RUNNING.start] + args[_RUNNING.stop :] if func is _NORM and args[5] else args
        key = (func, _key(seen), _key(tuple(sorted(named.items()))))
        known = self._known.get(key)
        if known is not None and known[1] == _versions(known[0]):
            self.num_reused += 1
            return known[0]
        self.num_run += 1
        result = func(*args, **named)
        depth = self._sink((*seen, *named.values()), (result,))
        self._known[key] = result, _versions(result), (args, named)
        self._keys.setdefault(depth, []).append(key)
        return result

    def _sink(self, given: tuple[Any, ...], made: tuple[Any, ...]) -> int:
        """Have what was made lie as deep as the deepest of what was given."""
        depth = max((self._depths.get(_memory(tensor), _SURFACE) for tensor in _tensors(given)), default=_SURFACE)
        self._depths.update((_memory(tensor), depth) for tensor in _tensors(made))
        return depth


@cache
def _is_pure(func: Any) -> bool:  # noqa: ANN401
    """Whether an operation makes new tensors from its arguments alone; views cost nothing and are made each time."""
    views = any(given.alias_info is not None for given in func._schema.returns)
    return not (views or func._schema.is_mutable or torch.Tag.nondeterministic_seeded in func.tags)


def _key(value: Any) -> Any:  # noqa: ANN401
    """Something that is equal for equal arguments, with tensors by their memory and how often it was written to."""
    if isinstance(value, Tensor):
        return Tensor, value.data_ptr(), value.shape, value.stride(), value.dtype, value._version
    if isinstance(value, tuple | list):
        return tuple(_key(part) for part in value)
    return type(value), value


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, tuple | list):
            yield from _tensors(value)


def _versions(result: Any) -> tuple[int, ...]:  # noqa: ANN401
    return tuple(part._version for part in _tensors((result,)))
