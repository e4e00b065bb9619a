"""What a network has computed before is not computed again: an operation on the same tensors gives the same result."""

import math
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

import torch
from torch import Tensor

from nestling.torch_parts import DispatchMode, schema_of, version_of

_NORM = torch.ops.aten.native_batch_norm.default
_RUNNING = slice(3, 5)
"""Where that operation has its running statistics, which it writes and, in train mode, does not read."""
_SURFACE = -1


class Reuse(DispatchMode):
    """Inside ``with``, which is one run, looks up the result of each operation by the tensors it is given.

    Tensors are told apart by the memory they lie in and how often it was written to, not by what they hold, so that a
    network which is run again with some of its weights replaced computes only what depends on them. ``place`` says how
    deep weights lie, and a result lies as deep as the deepest thing it came from. Those above ``keep`` are kept beyond
    the run, with every tensor they came from: keep what the next run can use, since memory that is not used again is
    taken anew, which takes time. What a run asks for twice it gets twice, since it may write to either. Without
    gradients only; randomness runs each time, and what comes of it lies deepest, where nothing is kept. ``num_run``
    and ``num_reused`` count operations that compute.
    """

    def __init__(self) -> None:
        super().__init__()
        self.keep: float = math.inf
        self.num_run = self.num_reused = 0
        self._known: dict[float, dict[Any, tuple[Any, tuple[int, ...], Any]]] = {}
        self._depths: dict[int, float] = {}
        self._turns: dict[Any, int] = {}

    def __exit__(self, *error: object) -> None:
        """End the run, and forget every result that does not lie above ``keep``."""
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._turns.clear()
        self._known = {depth: own for depth, own in self._known.items() if depth < self.keep}

    def place(self, depths: Iterable[tuple[Tensor, float]]) -> None:
        """Say how deep tensors lie; those that are not named lie above all."""
        self._depths.update((tensor.data_ptr(), depth) for tensor, depth in depths)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN204
        """Find or run one operation."""
        named = kwargs or {}
        seen = args[: _RUNNING.start] + args[_RUNNING.stop :] if func is _NORM and args[5] else args
        given = (*seen, *named.values())
        depth = max((self._depths.get(tensor.data_ptr(), _SURFACE) for tensor in _tensors(given)), default=_SURFACE)
        is_pure, writes, is_random = _nature(func)
        depth = math.inf if is_random else depth
        key = None
        if is_pure and (depth < self.keep or depth in self._known):
            asked = func, _key(seen), _key(named.items())
            turn = self._turns[asked] = self._turns.get(asked, 0) + 1
            key = asked, turn
            result, versions, _ = self._known.get(depth, {}).get(key, _NOTHING)
            if versions is not None and versions == _versions(result):
                self.num_reused += 1
                return result
        self.num_run += is_pure
        result = func(*args, **named)
        self.place((tensor, depth) for tensor in _tensors((result, args) if writes else (result,)))
        if key is not None and depth < self.keep:
            self._known.setdefault(depth, {})[key] = result, _versions(result), given
        return result


_NOTHING = None, None, None


@cache
def _nature(func: Any) -> tuple[bool, bool, bool]:  # noqa: ANN401
    """Whether an operation makes new tensors from its arguments alone, as views do not; writes; is random."""
    schema = schema_of(func)
    views = any(given.alias_info is not None for given in schema.returns)
    is_random = torch.Tag.nondeterministic_seeded in func.tags
    return not (views or schema.is_mutable or is_random), schema.is_mutable, is_random


def _key(values: Iterable[Any]) -> tuple[Any, ...]:
    """Something that is equal for equal arguments, with tensors by their memory and how often it was written to."""
    parts: list[Any] = []
    for value in values:
        if isinstance(value, Tensor):
            parts += (Tensor, value.data_ptr(), version_of(value), value.shape, value.stride(), value.dtype)
        elif isinstance(value, tuple | list):
            parts.append(_key(value))
        else:
            parts += (type(value), value.hex() if isinstance(value, float) else value)  # -0.0 is not 0.0
    return tuple(parts)


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, tuple | list):
            yield from _tensors(value)


def _versions(result: Any) -> tuple[int, ...]:  # noqa: ANN401
    return tuple(version_of(tensor) for tensor in _tensors((result,)))
