"""Detects writes to tensors, so that results computed from them are kept only until then."""

from collections.abc import Callable, Iterable
from functools import cache

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook

from nestling.torch_parts import is_transformed, is_wrapped, version_of

State = tuple[int, tuple[int, ...], tuple[int, ...]]


class _Steps:
    """Counts the steps of all optimisers: fused kernels (``fused=True``) don't count their writes in the tensors."""

    number = 0

    @classmethod
    def count(cls, *_: object) -> None:
        cls.number += 1


@cache
def _count_steps() -> None:
    """Begin to count when a write state is first needed, so that importing the library changes nothing."""
    register_optimizer_step_post_hook(_Steps.count)


def write_state(tensors: Iterable[Tensor]) -> State | None:
    """A value that changes with every write to one of the tensors, except writes through ``.data``.

    None if writes are not counted: while code is compiled, in inference mode, and for tensors of ``torch.func``.
    """
    watched = tuple(tensors)
    if torch.compiler.is_compiling() or any(map(Tensor.is_inference, watched)):
        return None
    if is_transformed() and any(map(is_wrapped, watched)):
        return None
    _count_steps()
    return _Steps.number, tuple(map(Tensor.data_ptr, watched)), tuple(map(version_of, watched))


class Kept:
    """A result computed from tensors, kept as long as they are the same and not written to, except through ``.data``.

    It is computed each time if writes are not counted, or if the tensors need gradients.
    """

    def __init__(self) -> None:
        self._last: tuple[tuple[Tensor, ...], State, object, Tensor] | None = None

    def of(self, tensors: Iterable[Tensor], work_out: Callable[[], Tensor], beside: object = None) -> Tensor:
        """The last result; a new one if a tensor has changed, or ``beside``, all else that the result depends on."""
        now = tuple(tensors)
        state, last = write_state(now), self._last
        if state is None or (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in now)):
            return work_out()
        if last is None or last[1:3] != (state, beside) or any(a is not b for a, b in zip(last[0], now, strict=True)):
            with torch.inference_mode(False), torch.no_grad():
                last = self._last = now, state, beside, work_out()
        return last[3]
