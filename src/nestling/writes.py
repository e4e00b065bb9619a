"""Whether tensors were written to: what is worked out from them and kept is of use only until then."""

from collections.abc import Iterable
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
