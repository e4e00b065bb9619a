"""Whether tensors were written to: what is worked out from them and kept is of use only until then."""

from collections.abc import Callable, Iterable
from functools import cache

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook

from nestling.torch_parts import is_wrapped, version_of

State = tuple[int, tuple[tuple[int, int], ...]]


class _Steps:
    """Counts the steps of all optimisers: those in one kernel (``fused=True``) leave no note in what they write to."""

    number = 0

    @classmethod
    def count(cls, *_: object) -> None:
        cls.number += 1


@cache
def _count_steps() -> None:
    """Begin to count: from the first state on that is asked for, so that importing the library changes nothing."""
    register_optimizer_step_post_hook(_Steps.count)


def write_state(tensors: Iterable[Tensor]) -> State | None:
    """Something that is another after a write to one of the tensors, unless it went through ``.data``.

    None where nothing is noted of them: while code is compiled, in inference mode, and for tensors of ``torch.func``.
    """
    given = tuple(tensors)
    if torch.compiler.is_compiling() or any(own.is_inference() or is_wrapped(own) for own in given):
        return None
    _count_steps()
    return _Steps.number, tuple((own.data_ptr(), version_of(own)) for own in given)


class Kept:
    """What was worked out from some tensors, as long as they are the same and nothing writes to them, but by ``.data``.

    Where nothing is noted of them, or gradients go back to them, it is worked out each time.
    """

    def __init__(self) -> None:
        self._last: tuple[tuple[Tensor, ...], State, object, Tensor] | None = None

    def of(self, tensors: Iterable[Tensor], work_out: Callable[[], Tensor], beside: object = None) -> Tensor:
        """The last result, or a new one if a tensor has changed, or ``beside``, what it depends on beside them."""
        given = tuple(tensors)
        state, last = write_state(given), self._last
        if state is None or (torch.is_grad_enabled() and any(own.requires_grad for own in given)):
            return work_out()
        if last is None or last[1:3] != (state, beside) or any(a is not b for a, b in zip(last[0], given, strict=True)):
            with torch.inference_mode(False), torch.no_grad():
                last = self._last = given, state, beside, work_out()
        return last[3]
