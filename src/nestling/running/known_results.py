"""Looks up results that a network has computed before: an operation on the same tensors gives the same result."""

import math
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

import torch
from torch import Tensor

from nestling.torch_parts import DispatchMode, schema_of, version_of

_NORM = torch.ops.aten.native_batch_norm.default
_RUNNING = slice(3, 5)
"""The arguments of that operation that are running statistics: in train mode it writes them and does not read them."""
_SURFACE = -1


class Reuse(DispatchMode):
    """Inside a ``with`` statement, which is one run, looks up the result of each operation by its arguments.

    Tensors are compared by their memory address and by how often they were written to, not by their values. So a
    network that runs again with some weights replaced computes only what depends on those weights.
    ``place`` says how deep in the network each weight lies; a result lies as deep as its deepest argument. Results
    above the depth ``keep`` are kept after the run, together with their arguments. Keep only what the next run can use,
    since a run must allocate new memory in place of what is kept. A repeated operation gets its own result tensor,
    because either may be written to. Random operations run each time, and nothing that depends on them is kept.
    Works without gradients only. ``num_run`` and ``num_reused`` count operations that compute.
    """

    def __init__(self) -> None:
        super().__init__()
        self.keep: float = math.inf
        self.num_run = self.num_reused = 0
        self._results: dict[float, dict[Any, tuple[Any, tuple[int, ...], Any]]] = {}
        self._depths: dict[int, float] = {}
        self._turns: dict[Any, int] = {}

    def __exit__(self, *error: object) -> None:
        """End the run, and forget every result that does not lie above ``keep``."""
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._turns.clear()
        self._results = {depth: results for depth, results in self._results.items() if depth < self.keep}

    def place(self, depths: Iterable[tuple[Tensor, float]]) -> None:
        """Say how deep tensors lie; tensors that are not named lie above all others."""
        self._depths.update((tensor.data_ptr(), depth) for tensor, depth in depths)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN204
        """Look up the result of one operation, or run it."""
        named = kwargs or {}
        read = args[: _RUNNING.start] + args[_RUNNING.stop :] if func is _NORM and args[5] else args
        inputs = (*read, *named.values())
        depth = max((self._depths.get(tensor.data_ptr(), _SURFACE) for tensor in _tensors(inputs)), default=_SURFACE)
        is_pure, writes, is_random = _nature(func)
        depth = math.inf if is_random else depth
        key = None
        if is_pure and (depth < self.keep or depth in self._results):
            call = func, _key(read), _key(named.items())
            turn = self._turns[call] = self._turns.get(call, 0) + 1
            key = call, turn
            result, versions, _ = self._results.get(depth, {}).get(key, _NO_RESULT)
            if versions is not None and versions == _versions(result):
                self.num_reused += 1
                return result
        self.num_run += is_pure
        result = func(*args, **named)
        self.place((tensor, depth) for tensor in _tensors((result, args) if writes else (result,)))
        if key is not None and depth < self.keep:
            self._results.setdefault(depth, {})[key] = result, _versions(result), inputs
        return result


_NO_RESULT = None, None, None


@cache
def _nature(func: Any) -> tuple[bool, bool, bool]:  # noqa: ANN401
    """Whether an operation is pure (makes new tensors, no views, from its arguments alone), writes, and is random."""
    schema = schema_of(func)
    views = any(output.alias_info is not None for output in schema.returns)
    is_random = torch.Tag.nondeterministic_seeded in func.tags
    return not (views or schema.is_mutable or is_random), schema.is_mutable, is_random


def _key(values: Iterable[Any]) -> tuple[Any, ...]:
    """Equal for equal arguments; tensors are compared by their memory address and by how often they were written to."""
    key: list[Any] = []
    for value in values:
        if isinstance(value, Tensor):
            key += (Tensor, value.data_ptr(), version_of(value), value.shape, value.stride(), value.dtype)
        elif isinstance(value, tuple | list):
            key.append(_key(value))
        else:
            key += (type(value), value.hex() if isinstance(value, float) else value)  # -0.0 is not 0.0
    return tuple(key)


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, tuple | list):
            yield from _tensors(value)


def _versions(result: Any) -> tuple[int, ...]:  # noqa: ANN401
    return tuple(version_of(tensor) for tensor in _tensors((result,)))
